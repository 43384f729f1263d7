"""Checkpoints of AutoGPTQ's and AutoAWQ's older kind, whose config.json says nothing of how they are quantized."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import goldstick
from goldstick import api
from goldstick.checkpoint.source import read_config
from goldstick.errors import FormatError
from goldstick.hf.source import open_source
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.commands import change_json
from tests.support.other_tools import FOLDER

pytestmark = pytest.mark.usefixtures("reference_backend")

#: What the tools wrote: file, and words, as they stand in published repositories.
GPTQ = {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": False, "sym": True, "true_sequential": True,
        "model_name_or_path": None, "model_file_base_name": "model"}  # fmt: skip
AWQ = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
OLD: dict[str, tuple[str, dict[str, Any]]] = {
    "autogptq-gptq": ("quantize_config.json", GPTQ),
    "autogptq-act-order": ("quantize_config.json", GPTQ | {"desc_act": True}),
    "autoawq-gemm": ("quant_config.json", AWQ),
}
UP = "model.layers.0.mlp.up_proj"


def older(name: str, into: Path, **changes: Any) -> Path:
    directory = Path(shutil.copytree(FOLDER / name, into))
    change_json(directory / "config.json", lambda config: config.pop("quantization_config"))
    file, table = OLD[name]
    (directory / file).write_text(json.dumps(table | changes))
    return directory


def by_hand(directory: Path) -> torch.Tensor:
    """The weight of a layer, one number at a time, [out, in]."""
    file = next(path for path in directory.glob("*.safetensors") if not path.name.startswith("answer"))
    found = load_file(file)
    words, zeros, scales = (found[f"{UP}.{part}"].tolist() for part in ("qweight", "qzeros", "scales"))
    awq, (groups, outputs) = f"{UP}.g_idx" not in found, found[f"{UP}.scales"].shape
    inputs = 32 * groups
    weight = torch.zeros(outputs, inputs)
    field = [0, 4, 1, 5, 2, 6, 3, 7]  # of AWQ: where output 8w + i lies in its word
    for o in range(outputs):
        for i in range(inputs):
            group = i // 32 if awq else int(found[f"{UP}.g_idx"][i])
            if awq:
                code = words[i][o // 8] >> (4 * field[o % 8]) & 15
                zero = zeros[group][o // 8] >> (4 * field[o % 8]) & 15
            else:
                code = words[i // 8][o] >> (4 * (i % 8)) & 15
                zero = (zeros[group][o // 8] >> (4 * (o % 8)) & 15) + 1
            weight[o, i] = (code - zero) * scales[group][o]
    return weight


@pytest.mark.parametrize("name", OLD)
def test_it_is_read_as_what_the_file_beside_says(name: str, tmp_path: Path) -> None:
    directory = older(name, tmp_path / "old")
    model: Any = goldstick.load(directory, dtype=torch.float32)
    expected = by_hand(directory)
    assert torch.allclose(model.get_submodule(UP).weight.float(), expected, atol=1e-6)
    source = open_source(directory)
    assert source.quantized_as.startswith("awq" if "awq" in name else "gptq")
    assert "quantization_config" not in source.config
    assert torch.allclose(source.tensors[f"{UP}.weight"].read().float(), expected, atol=1e-3)
    assert "7 quantized layers" in verify_checkpoint(directory)["proof"]


@pytest.mark.parametrize("name", OLD)
def test_it_is_exported_and_quantized_again(name: str, tmp_path: Path) -> None:
    directory = older(name, tmp_path / "old")
    made = api.export(directory, "native", output=tmp_path / "native", proof="tensors").directory
    again = api.quantize(directory, "rtn-w8a16", output=tmp_path / "again").directory
    for folder in (made, again):
        assert not (folder / OLD[name][0]).exists()
    ids = torch.arange(16)[None]
    expected = goldstick.load(directory)(ids).logits
    assert torch.equal(goldstick.load(made)(ids).logits, expected)
    assert (goldstick.load(again)(ids).logits - expected).abs().max() < 0.05 * expected.abs().max()


def test_what_config_json_says_goes_before(tmp_path: Path) -> None:
    directory = older("autogptq-gptq", tmp_path / "old")
    said = {"quant_method": "gptq", "bits": 8}
    change_json(directory / "config.json", lambda config: config.update(quantization_config=said))
    assert read_config(directory)["quantization_config"] == said


def test_what_it_says_is_checked_as_config_json_is(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="declares the version 'GEMV'"):
        goldstick.load(older("autoawq-gemm", tmp_path / "gemv", version="GEMV"))
    with pytest.raises(FormatError, match="declares 5 bits"):
        goldstick.load(older("autogptq-gptq", tmp_path / "five", bits=5))


def test_files_of_that_name_that_say_nothing_of_bits_count_for_nothing(tmp_path: Path) -> None:
    directory = older("autogptq-gptq", tmp_path / "old")
    for name in ("quantize_config.json", "quant_config.json"):
        (directory / name).write_text('{"mode": "none"}')
    assert "quantization_config" not in read_config(directory)


@pytest.mark.parametrize("name", OLD)
def test_the_doctor_says_that_transformers_does_not_see_it(name: str, tmp_path: Path) -> None:
    directory = older(name, tmp_path / "old")
    plain = [one for one in api.doctor(directory).findings if one.check == "config-beside"]
    assert [(one.severity, one.where) for one in plain] == [("remark", (OLD[name][0],))]
    told = api.doctor(directory, runtime="transformers")
    assert "fault" in {one.severity for one in told.findings if one.check == "config-beside"}
    assert told.verdict is not None
    assert not told.verdict.loads
    assert "config-beside" not in {one.check for one in api.doctor(FOLDER / name, runtime="transformers").findings}
