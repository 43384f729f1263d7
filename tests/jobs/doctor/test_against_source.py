"""Doctor beside the source: codes in another order are found, whatever their scales; sound weights give nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor

import goldstick
from goldstick import api
from goldstick.cli import main
from goldstick.jobs.doctor.finding import Finding
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here
from tests.support.small_checkpoints import WEIGHTS, small_checkpoints, small_float

Q = "model.layers.0.self_attn.q_proj"
FLOATS = ["nvfp4a16", "mxfp4a16", "fp8-dynamic", "mxfp8a16"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    found = small_checkpoints(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        for scheme in FLOATS:
            goldstick.quantize(found["float"], f"rtn-{scheme}", output=folder / scheme, proof="tensors")
            found[scheme] = folder / scheme
        goldstick.quantize(found["float"], "rotate-rtn-w4a16-g32", output=folder / "rotated")
    return found | {"rotated": folder / "rotated"}


def spoiled(directory: Path, target: Path, name: str, change: Callable[[Tensor], Tensor]) -> Path:
    folder = Path(shutil.copytree(directory, target))
    tensors = load_file(folder / WEIGHTS)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, folder / WEIGHTS)
    return folder


def exchanged(packed: Tensor) -> Tensor:
    """The two halves of each byte exchanged."""
    octets = packed.view(torch.uint8)
    return ((octets << 4) | (octets >> 4)).view(packed.dtype)


def reversed_words(packed: Tensor) -> Tensor:
    """The eight codes of each word of 32 bits in reverse order."""
    return exchanged(packed.view(torch.uint8).unflatten(-1, (-1, 4)).flip(-1).flatten(-2)).view(packed.dtype)


def faults(directory: Path, source: Path) -> list[Finding]:
    return [finding for finding in api.doctor(directory, source=source).findings if finding.severity == "fault"]


@pytest.mark.parametrize("name", ["compressed-tensors", "native", "gptq", "awq", "gguf", *FLOATS])
def test_weights_of_the_source_give_no_finding(name: str, made: dict[str, Path]) -> None:
    assert api.doctor(made[name], source=made["float"]).findings == ()


@pytest.mark.parametrize(
    "form, tensor, change, words",
    [
        ("nvfp4a16", f"{Q}.weight_packed", exchanged, "codes of each byte are exchanged"),
        ("mxfp4a16", f"{Q}.weight_packed", exchanged, "codes of each byte are exchanged"),
        ("native", f"{Q}.weight_packed", exchanged, "codes of each byte are exchanged"),
        ("compressed-tensors", f"{Q}.weight_packed", reversed_words, "in reverse order"),
    ],
)
def test_codes_in_another_order_are_a_fault(
    form: str, tensor: str, change: Callable[[Tensor], Tensor], words: str, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = spoiled(made[form], tmp_path / "spoiled", tensor, change)
    assert faults(folder, folder) == [], "without the float source they are plausible"
    (fault,) = faults(folder, made["float"])
    assert (fault.check, fault.where) == ("code-order", (f"{Q}.weight",))
    assert words in fault.what


def test_rotated_weights_are_remarked_and_no_fault(made: dict[str, Path]) -> None:
    found = api.doctor(made["rotated"], source=made["float"])
    assert found.healthy
    assert [finding.check for finding in found.findings] == ["source"]
    assert any("q_proj" in place and "rounding leaves" in place for place in found.findings[0].where)


def test_a_source_of_another_shape_is_remarked(made: dict[str, Path], tmp_path: Path) -> None:
    other = small_float(tmp_path / "other")
    tensors = load_file(other / WEIGHTS)
    tensors[f"{Q}.weight"] = tensors[f"{Q}.weight"][:32].contiguous()
    save_file(tensors, other / WEIGHTS)
    (finding,) = api.doctor(made["native"], source=other).findings
    assert (finding.severity, finding.where) == ("remark", (f"{Q}.weight",))


def test_the_command_takes_a_source(made: dict[str, Path], tmp_path: Path) -> None:
    folder = spoiled(made["nvfp4a16"], tmp_path / "spoiled", f"{Q}.weight_packed", exchanged)
    assert CliRunner().invoke(main, ["doctor", str(folder)]).exit_code == 0
    found = CliRunner().invoke(main, ["doctor", str(folder), "--source", str(made["float"])])
    assert found.exit_code == 1
    missing = CliRunner().invoke(main, ["doctor", str(folder), "--source", str(tmp_path / "nowhere")])
    assert missing.exit_code != 0 and "nowhere" in missing.stderr


@pytest.mark.parametrize(
    "scheme, tensor, value, words",
    [
        ("fp8-dynamic", f"{Q}.weight", 0x7F, "some are NaN"),
        ("mxfp8a16", f"{Q}.weight", 0xFF, "some are NaN"),
        ("mxfp8a16", f"{Q}.weight_scale", 0xFF, "e8m0 code 255"),
        ("mxfp4a16", f"{Q}.weight_scale", 0xFF, "e8m0 code 255"),
        ("nvfp4a16", f"{Q}.weight_scale", 0x7F, "some are NaN or infinite"),
        ("nvfp4a16", f"{Q}.weight_scale", 0x00, "zero-scales: "),
        ("nvfp4a16", f"{Q}.weight_global_scale", 0x00, "divided by is 0.0; it is a positive number"),
        ("fp8-dynamic", f"{Q}.weight_scale", 0x00, "zero-scales: "),
    ],
)
def test_planted_faults_of_float_codes_are_found(
    scheme: str, tensor: str, value: int, words: str, made: dict[str, Path], tmp_path: Path
) -> None:
    def change(found: Tensor) -> Tensor:
        octets = found.view(torch.uint8)
        octets[(0,) * (octets.ndim - 1)][: found.element_size()] = value
        return found

    found = api.doctor(spoiled(made[scheme], tmp_path / "spoiled", tensor, change))
    told = [f"{one.check}: {place}" for one in found.findings if one.severity == "fault" for place in one.where]
    assert any(words in one and Q in one for one in told), told


def test_clipped_float_codes_are_found(made: dict[str, Path], tmp_path: Path) -> None:
    def clipped(found: Tensor) -> Tensor:
        return (found.float() * 1e4).clamp(-448, 448).to(found.dtype)

    found = api.doctor(spoiled(made["fp8-dynamic"], tmp_path / "spoiled", f"{Q}.weight", clipped))
    assert "saturated" in [finding.check for finding in found.findings if finding.severity == "fault"]
