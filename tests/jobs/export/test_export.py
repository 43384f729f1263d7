"""Checkpoints from one storage format into another and back, loaded, refused, damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor

import goldstick
from goldstick import api
from goldstick.cli import main
from goldstick.errors import CheckpointError, FormatError, SourceError, UsageError
from goldstick.jobs.export import export as exporting
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.proofs import answer
from tests.support.tiny_models import FAMILIES, VOCABULARY, sample_inputs

pytestmark = pytest.mark.usefixtures("all_proofs_here")

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A checkpoint of a tiny Llama by scheme, format and dtype, made once; never to be changed."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def make(scheme: str, format_: str, dtype: torch.dtype = torch.bfloat16) -> Path:
        source = folder / str(dtype)
        if not source.exists():
            FAMILIES["llama_gqa"]().to(dtype).save_pretrained(source)
        output = folder / f"{scheme}-{format_}-{dtype}"
        recipe = {"stages": [{"rtn": {"scheme": scheme}}], "export": {"format": format_}}
        goldstick.quantize(source, recipe, output=output, proof="tensors")
        return output

    return make


Made = Callable[..., Path]


def logits(directory: Path) -> Tensor:
    model: Any = goldstick.load(directory)
    return answer(model, sample_inputs(model))


def equal_files(one: Path, other: Path) -> bool:
    a, b = load_file(one / WEIGHTS), load_file(other / WEIGHTS)
    return a.keys() == b.keys() and all(x.dtype == b[name].dtype and x.equal(b[name]) for name, x in a.items())


def config_of(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


@pytest.mark.parametrize(
    ("scheme", "target"),
    [
        ("w4a16-g32", "gptq"),
        ("w4a16-g32", "awq"),
        ("w4a16-g32-asym", "awq"),
        ("w4a16-g32-asym", "gptq-v2"),
        ("w8a16", "gptq"),
        ("w3a16-g32", "gptq-v2"),
        ("w2a16-g32", "native"),
    ],
)
def test_an_export_gives_the_same_logits_and_comes_back_byte_for_byte(
    scheme: str, target: str, made: Made, tmp_path: Path
) -> None:
    source = made(scheme, "compressed-tensors")
    there = api.export(source, target, output=tmp_path / "there")
    assert there.report.format == target
    assert there.report.proof["max_abs_difference"] == 0.0
    assert torch.equal(logits(tmp_path / "there"), logits(source))
    api.export(tmp_path / "there", "compressed-tensors", output=tmp_path / "back", proof="tensors")
    assert equal_files(tmp_path / "back", source)
    assert config_of(tmp_path / "back") == config_of(source)
    manifest = json.loads((tmp_path / "back" / "goldstick.json").read_text())
    first = json.loads((source / "goldstick.json").read_text())
    assert {key: manifest[key] for key in ("recipe", "layers", "source")} == {
        key: first[key] for key in ("recipe", "layers", "source")
    }
    assert manifest["exported_from"]["format"] == target
    assert read_report(tmp_path / "back").size == read_report(source).size
    assert verify_checkpoint(tmp_path / "there")["passed"] is True


@pytest.mark.parametrize(("scheme", "format_"), [("w4a16-g32", "gptq"), ("w4a16-g32-asym", "awq")])
def test_quantizing_into_a_format_and_exporting_to_it_give_the_same_files(
    scheme: str, format_: str, made: Made, tmp_path: Path
) -> None:
    direct = made(scheme, format_)
    api.export(made(scheme, "compressed-tensors"), format_, output=tmp_path / "out", proof="tensors")
    assert equal_files(direct, tmp_path / "out")
    assert config_of(direct) == config_of(tmp_path / "out")


def test_a_float16_model_does_the_same(made: Made, tmp_path: Path) -> None:
    source = made("w4a16-g32", "compressed-tensors", torch.float16)
    api.export(source, "gptq", output=tmp_path / "there", proof="tensors")
    assert torch.equal(logits(tmp_path / "there"), logits(source))
    api.export(tmp_path / "there", "compressed-tensors", output=tmp_path / "back", proof="tensors")
    assert equal_files(tmp_path / "back", source)


def test_finer_scales_than_the_models_dtype_stay_in_float16_formats(made: Made, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made("w4a16-g32", "gptq"), tmp_path / "copy"))
    tensors = load_file(folder / WEIGHTS)
    tensors[f"{Q}.scales"][0, 0] = 1 + 2**-10
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(FormatError, match=rf"{Q}: 1 of 128 of its float16 scales are no bfloat16 .*\"dtype\""):
        api.export(folder, "compressed-tensors", output=tmp_path / "out")
    api.export(folder, "awq", output=tmp_path / "out", proof="tensors")
    assert load_file(tmp_path / "out" / WEIGHTS)[f"{Q}.scales"].equal(tensors[f"{Q}.scales"])


@pytest.mark.parametrize("format_", ["gptq", "awq"])
def test_float32_scales_are_refused_before_any_weight_is_read(format_: str, made: Made, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"_proj: its scales are float32.*convert the float model to float16"):
        made("w4a16-g32", format_, torch.float32)
    source = made("w4a16-g32", "compressed-tensors", torch.float32)
    with pytest.raises(FormatError, match=r"\d+ of \d+ of its float32 scales are no float16 numbers.*compressed"):
        api.export(source, format_, output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_names_the_layer_the_reason_and_what_would_work(made: Made, tmp_path: Path) -> None:
    source = made("w4a16-g32-asym", "compressed-tensors")
    with pytest.raises(
        FormatError, match=r"gptq cannot hold this: model.*overflows.*exported to native and gptq-v2 and"
    ):
        api.export(source, "gptq", output=tmp_path / "out")
    with pytest.raises(UsageError, match="stored as compressed-tensors already"):
        api.export(source, "compressed-tensors", output=tmp_path / "out")
    with pytest.raises(UsageError, match="no format 'exl2'"):
        api.export(source, "exl2", output=tmp_path / "out")
    with pytest.raises(SourceError, match="is not quantized"):
        api.export(source.parent / "torch.bfloat16", "gptq", output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("scheme", "format_"), [("w4a16-g32", "gptq"), ("w4a16-g32-asym", "awq")])
def test_a_checkpoint_of_another_tool_is_inspected_verified_loaded_and_exported(
    scheme: str, format_: str, made: Made, tmp_path: Path
) -> None:
    mine = made(scheme, format_)
    foreign = Path(shutil.copytree(mine, tmp_path / "foreign"))
    for name in ("goldstick.json", "report.json", "README.md"):
        (foreign / name).unlink()
    report = read_report(foreign)
    assert report.size.bytes_after == read_report(mine).size.bytes_after
    assert {layer.scheme for layer in report.layers} == {scheme, None}
    assert "what the config declares is what is stored: 14 quantized layers" in verify_checkpoint(foreign)["proof"]
    shown = CliRunner().invoke(main, ["inspect", str(foreign)])
    assert f"format: {format_}; made elsewhere" in shown.stdout
    assert shown.stdout.splitlines()[-1].startswith("kernels on ")
    told = CliRunner().invoke(main, ["inspect", str(foreign), "--json"])
    assert json.loads(told.stdout)["kernels"] == shown.stdout.splitlines()[-1]
    assert torch.equal(logits(foreign), logits(mine))
    arguments = ["export", str(foreign), "--format", "compressed-tensors", "-o", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"]["format"] == "compressed-tensors"
    assert equal_files(tmp_path / "out", made(scheme, "compressed-tensors"))
    assert json.loads((tmp_path / "out" / "goldstick.json").read_text())["recipe"] is None


Q = "model.layers.1.self_attn.q_proj"


def damaged(tensors: dict[str, Tensor], how: str) -> None:
    match how:
        case "missing":
            del tensors[f"{Q}.qzeros"]
        case "dtype":
            tensors[f"{Q}.scales"] = tensors[f"{Q}.scales"].float()
        case "words":
            tensors[f"{Q}.qweight"] = tensors[f"{Q}.qweight"].long()
        case "shape":
            tensors[f"{Q}.scales"] = tensors[f"{Q}.scales"][:1].contiguous()
        case "undeclared":
            tensors["model.layers.1.self_attn.scales"] = torch.ones(3)
        case "stranger":
            tensors["model.layers.9.up_proj.qweight"] = torch.ones(3, 4, dtype=torch.int32)
        case "order":
            tensors[f"{Q}.g_idx"][0] = 1
        case "zeros":
            tensors[f"{Q}.qzeros"] += 1


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("missing", rf"lacks the tensor '{Q}\.qzeros'"),
        ("dtype", r"scales .* is float32 .*calls for float16"),
        ("words", r"qweight .* is int64 .*calls for int32"),
        ("shape", r"scales .* is float16 \[1, 64\].* calls for float16 \[2, 64\]"),
        ("undeclared", r"unexpected keys model\.layers\.1\.self_attn\.scales"),
        ("stranger", r"'model\.layers\.9\.up_proj\.qweight' belongs to no layer"),
        ("order", rf"{Q} cannot be loaded: its g_idx does not make groups of 32"),
        ("zeros", rf"{Q} cannot be loaded: its config declares symmetric weights"),
    ],
)
def test_a_checkpoint_that_is_not_what_it_declares_does_not_load(
    how: str, complaint: str, made: Made, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made("w4a16-g32", "gptq"), tmp_path / "copy"))
    tensors = load_file(folder / WEIGHTS)
    damaged(tensors, how)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises((CheckpointError, FormatError), match=complaint):
        goldstick.load(folder)


def test_experts_stored_apart_go_into_the_native_format_and_back(tmp_path: Path) -> None:
    FAMILIES["mixtral"]().bfloat16().save_pretrained(tmp_path / "float")
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}
    goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "made", proof="tensors")
    with pytest.raises(FormatError, match=r"experts.*exported to native and gguf\."):
        api.export(tmp_path / "made", "gptq", output=tmp_path / "out")
    there = api.export(tmp_path / "made", "native", output=tmp_path / "there")
    assert there.report.proof["max_abs_difference"] == 0.0
    api.export(tmp_path / "there", "compressed-tensors", output=tmp_path / "back", proof="tensors")
    assert equal_files(tmp_path / "back", tmp_path / "made")
    assert config_of(tmp_path / "back") == config_of(tmp_path / "made")


def test_a_quantized_cache_goes_along(tmp_path: Path) -> None:
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}, {"kv_cache": {"keys": "tensor", "values": "tensor"}}]}
    batch = torch.randint(3, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(5))
    goldstick.apply(FAMILIES["llama_gqa"]().bfloat16(), recipe, data=[batch]).save(tmp_path / "made")
    assert any(name.endswith(".k_scale") for name in load_file(tmp_path / "made" / WEIGHTS))
    there = api.export(tmp_path / "made", "gptq", output=tmp_path / "there")
    assert there.report.proof["max_abs_difference"] == 0.0
    assert not any(name.endswith(".k_scale") for name in load_file(tmp_path / "there" / WEIGHTS))
    sidecar = "goldstick_kv_cache.json"
    assert (tmp_path / "there" / sidecar).read_bytes() == (tmp_path / "made" / sidecar).read_bytes()
    api.export(tmp_path / "there", "compressed-tensors", output=tmp_path / "back", proof="tensors")
    assert equal_files(tmp_path / "back", tmp_path / "made")
    assert config_of(tmp_path / "back") == config_of(tmp_path / "made")


@pytest.mark.parametrize("form", ["compressed-tensors", "gptq", "awq"])
def test_a_checkpoint_of_goldsticks_that_lost_its_manifest_is_not_taken_for_another_tools(
    form: str, made: Made, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made("w4a16-g32", form), tmp_path / "copy"))
    (folder / "goldstick.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no goldstick\.json"):
        read_report(folder)


@pytest.mark.parametrize("zeros", ["fractions", "whole"])
def test_zeros_of_a_native_checkpoint_decide_whether_it_can_leave_the_format(
    zeros: str, made: Made, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made("w4a16-g32-asym", "native"), tmp_path / "copy"))
    tensors = load_file(folder / WEIGHTS)
    if zeros == "fractions":
        tensors[f"{Q}.weight_zero_point"] += 0.5
        save_file(tensors, folder / WEIGHTS)
        with pytest.raises(FormatError, match=rf"{Q}: its zeros are fractions.*Only the native"):
            api.export(folder, "awq", output=tmp_path / "out")
        for name in tensors:
            tensors[name] += 0.25 if name.endswith("zero_point") else 0
        save_file(tensors, folder / WEIGHTS)
        with pytest.raises(FormatError, match=r"Q4_1 and Q5_1 store.*only the native format holds these"):
            api.export(folder, "gguf", output=tmp_path / "out")
        return
    api.export(folder, "awq", output=tmp_path / "out", proof="tensors")
    assert equal_files(tmp_path / "out", made("w4a16-g32-asym", "awq"))


def test_an_export_that_writes_something_else_is_caught_and_leaves_nothing(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = exporting._converted

    def wrong(plan: Any, layer: Any) -> dict[str, Tensor]:
        parts = convert(plan, layer)
        parts[f"{layer.name.removesuffix('.weight')}.scales"][0, 0] *= 2
        return parts

    monkeypatch.setattr(exporting, "_converted", wrong)
    with pytest.raises(CheckpointError, match="is not what was exported"):
        api.export(made("w4a16-g32", "compressed-tensors"), "gptq", output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
