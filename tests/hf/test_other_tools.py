"""Files that other tools wrote (``make miniatures``), beside what their own readers answered.

Each folder of tests/data/other_tools holds a Llama of one block in float16 and ``answer.safetensors``: tokens, and the
logits that plain transformers with the tool's own package gave for them in float32; of AutoGPTQ, AutoAWQ, auto-round
and bitsandbytes, on the weights that the tool's own layers and dequantization give, and of MLX its own layers. Those of
all but llm-compressor, bitsandbytes and MLX multiply codes and scales in float16, whatever the model computes in; so do
goldstick's in a float16 model, and not in one of float32. The first comparison is of the same arithmetic, the second
shows how little the other is apart.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import goldstick
from goldstick import api
from goldstick.errors import FormatError, SourceError
from goldstick.hf.checkpoint import open_quantized
from goldstick.hf.layers import StoredLayers
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.verify.verify import verify_checkpoint
from goldstick.nn import QuantizedLinear
from tests.support.other_tools import FOLDER

pytestmark = pytest.mark.usefixtures("reference_backend")

SCHEMES = {
    "gptqmodel-gptq": "w4a16-g32",
    "gptqmodel-act-order": "w4a16-g32",
    "gptqmodel-gptq-v2-asymmetric": "w4a16-g32-asym",
    "autogptq-gptq": "w4a16-g32",
    "autogptq-act-order": "w4a16-g32",
    "autogptq-asymmetric": "w4a16-g32-asym",
    "autoawq-gemm": "w4a16-g32-asym",
    "auto-round-w4a16": "w4a16-g32",
    "auto-round-asymmetric": "w4a16-g32-asym",
    "auto-round-mixed": "w2a16-g32, w8a16-g64",
    "bitsandbytes-nf4": "nf4a16",
    "bitsandbytes-nf4-nested": "nf4a16",
    "bitsandbytes-fp4": "w-bnbfp4-g64-a-16",
    "bitsandbytes-int8": "w8a16-channel",
    "mlx-w4": "w4a16-g64-asym",
    "mlx-w3": "w3a16-g32-asym",
    "llm-compressor-w4a16": "w4a16-g32",
    "llm-compressor-w4a16-asymmetric": "w4a16-g32-asym",
    "llm-compressor-w8a8": "w8a8-dynamic-channel",
}
ACT_ORDER = FOLDER / "gptqmodel-act-order"
AUTOGPTQ = FOLDER / "autogptq-gptq"
#: What the same weights may differ by in float32, and what weights rounded to float16 may beside unrounded ones.
BOUND, HALF = 5e-4, 2e-3
every_file = pytest.mark.parametrize("name", SCHEMES)


def answer(directory: Path, ids: Tensor) -> Tensor:
    model: Any = goldstick.load(directory, dtype=torch.float32)
    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids).logits
    return logits


def answer_on_float16_weights(directory: Path, ids: Tensor) -> Tensor:
    model: Any = goldstick.load(directory, dtype=torch.float16)
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear):
            layer = nn.Linear(module.in_features, module.out_features, bias=False)
            layer.weight.data = module.weight.float()
            model.set_submodule(name, layer)
    with torch.inference_mode():
        logits: Tensor = nn.Module.float(model)(input_ids=ids).logits
    return logits


def contents(stored: StoredLayers) -> dict[str, dict[str, Any]]:
    found = {}
    for layer in stored.layers:
        tensor = stored.format.unpack(stored.read(layer), layer.scheme, layer.shape[-1])
        values = {field.name: getattr(tensor, field.name) for field in dataclasses.fields(tensor)}
        found[layer.name] = {key: value.tolist() for key, value in values.items() if isinstance(value, Tensor)}
    return found


def test_every_folder_is_looked_at() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == sorted(SCHEMES)


@every_file
def test_a_checkpoint_of_another_tool_answers_as_its_own_reader_does(name: str) -> None:
    expected = load_file(FOLDER / name / "answer.safetensors")
    half = not name.startswith(("llm-compressor", "bitsandbytes", "mlx"))
    found = (answer_on_float16_weights if half else answer)(FOLDER / name, expected["ids"])
    largest = float(expected["logits"].abs().max())
    assert largest > 0.3, "there is something to compare"
    assert float((found - expected["logits"]).abs().max()) <= BOUND
    assert float((answer(FOLDER / name, expected["ids"]) - expected["logits"]).abs().max()) <= HALF * largest


@every_file
def test_its_layers_are_found_in_its_headers(name: str) -> None:
    stored = open_quantized(FOLDER / name).stored
    schemes, count = {*SCHEMES[name].split(", ")}, 6 if "mixed" in name else 9 if "mlx" in name else 7
    assert {layer.scheme.label for layer in stored.layers} == schemes
    assert len(stored.layers) == count
    assert {layer.scheme for layer in read_report(FOLDER / name).layers} == {*schemes, None}
    assert f"what is stored: {count} quantized layers" in verify_checkpoint(FOLDER / name)["proof"]


def test_act_order_scatters_the_groups_and_they_are_put_in_order() -> None:
    stored = open_quantized(ACT_ORDER).stored
    assert all(layer.act_order for layer in stored.layers)
    g_idx = stored.tensors["model.layers.0.mlp.down_proj.g_idx"].read()
    assert int(g_idx.diff().abs().sum()) > 1, "groups lie scattered in the file"
    model: Any = goldstick.load(ACT_ORDER)
    order = model.model.layers[0].mlp.down_proj.input_order
    assert g_idx[order].tolist() == [0] * 32 + [1] * 32


@pytest.mark.parametrize("way", [["native"], ["gptq-v2"], ["native", "gptq"]])
def test_act_order_survives_an_export_to_what_holds_it(way: list[str], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(ACT_ORDER, tmp_path / "0"))
    for number, format_ in enumerate(way, 1):
        api.export(directory, format_, output=tmp_path / str(number), proof="tensors")
        directory = tmp_path / str(number)
    assert contents(open_quantized(directory).stored) == contents(open_quantized(ACT_ORDER).stored)
    ids = load_file(ACT_ORDER / "answer.safetensors")["ids"]
    assert torch.equal(answer(directory, ids), answer(ACT_ORDER, ids))
    table = json.loads((directory / "config.json").read_text())["quantization_config"]
    assert len(table["reordered"]) == 7 if "native" in way[-1] else table["desc_act"] is True
    if way[-1] == "gptq":
        before, after = (load_file(path / "model.safetensors") for path in (ACT_ORDER, directory))
        assert all(value.equal(after[key]) for key, value in before.items())


@pytest.mark.parametrize("format_", ["compressed-tensors", "awq"])
def test_act_order_is_not_exported_to_what_cannot_hold_it(format_: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"_proj: its groups take their inputs from all over.*to native and gptq-v2"):
        api.export(ACT_ORDER, format_, output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("gptqmodel-gptq", "compressed-tensors"),
        ("llm-compressor-w4a16-asymmetric", "awq"),
        ("autogptq-gptq", "compressed-tensors"),
        ("autogptq-act-order", "gptq-v2"),
        ("autogptq-asymmetric", "awq"),
        ("autoawq-gemm", "gptq-v2"),
    ],
)
def test_files_of_other_tools_are_exported_with_every_code_and_scale(name: str, format_: str, tmp_path: Path) -> None:
    api.export(FOLDER / name, format_, output=tmp_path / "out", proof="tensors")
    assert contents(open_quantized(tmp_path / "out").stored) == contents(open_quantized(FOLDER / name).stored)
    ids = load_file(FOLDER / name / "answer.safetensors")["ids"]
    assert torch.equal(answer(tmp_path / "out", ids), answer(FOLDER / name, ids))


def test_a_file_is_found_under_the_name_that_autogptq_gives_it(tmp_path: Path) -> None:
    (file,) = (path.name for path in AUTOGPTQ.glob("gptq_model-*.safetensors"))
    found = api.doctor(AUTOGPTQ)
    assert found.healthy
    assert {finding.check: finding.where for finding in found.findings}["file-name"] == (file,)
    renamed = Path(shutil.copytree(AUTOGPTQ, tmp_path / "renamed"))
    (renamed / file).rename(renamed / "model.safetensors")
    ids = load_file(AUTOGPTQ / "answer.safetensors")["ids"]
    assert torch.equal(answer(renamed, ids), answer(AUTOGPTQ, ids))
    twice = Path(shutil.copytree(AUTOGPTQ, tmp_path / "twice"))
    shutil.copyfile(twice / file, twice / "gptq_model-8bit--1g.safetensors")
    with pytest.raises(
        SourceError, match=r"several weight files \(gptq_model-4bit-32g\.safetensors, gptq_model-8bit--1g"
    ):
        goldstick.load(twice)


def test_autogptq_stores_its_zeros_less_one() -> None:
    stored = open_quantized(FOLDER / "autogptq-asymmetric").stored
    (layer,) = (layer for layer in stored.layers if layer.name.endswith("q_proj.weight"))
    parts = stored.read(layer)
    words = parts[".qzeros"].to(torch.int64) & 0xFFFFFFFF
    fields = torch.stack([(words >> 4 * place) & 15 for place in range(8)], dim=-1).flatten(1)
    zeros = stored.format.unpack(parts, layer.scheme, layer.shape[-1]).zero
    assert zeros is not None
    assert torch.equal((fields + 1).T.double(), zeros.double())
