"""bitsandbytes' files: written and read again, and what is refused of them. Its own are in test_other_tools.py."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import goldstick
from goldstick import api
from goldstick.core.element import ELEMENTS
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError, FormatError, GoldstickError
from goldstick.formats.base import StoredLayer
from goldstick.formats.bitsandbytes import BITSANDBYTES
from goldstick.jobs.doctor.examine import examine
from tests.support.commands import change_json
from tests.support.other_tools import FOLDER

pytestmark = pytest.mark.usefixtures("reference_backend")

IDS = torch.arange(16)[None]
NF4, NESTED, FP4, INT8 = (FOLDER / f"bitsandbytes-{name}" for name in ("nf4", "nf4-nested", "fp4", "int8"))
NF4_GRID = Scheme.parse("nf4a16").weight
DOWN = "model.layers.0.mlp.down_proj"
STATE = f"{DOWN}.weight.quant_state.bitsandbytes__nf4"


def logits(directory: Path) -> Tensor:
    model: Any = goldstick.load(directory, dtype=torch.float32)
    with torch.no_grad():
        found: Tensor = model(IDS).logits
    return found


def changed(source: Path, into: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    directory = Path(shutil.copytree(source, into))
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def state(**changes: Any) -> Tensor:
    words = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [64, 64]} | changes
    return torch.tensor(list(json.dumps(words).encode()), dtype=torch.uint8)


def test_codes_lie_row_after_row_the_first_of_two_in_the_upper_half() -> None:
    scheme = Scheme.parse("nf4a16")
    codes = torch.arange(256, dtype=torch.uint8).reshape(2, 128) % 16
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    parts = BITSANDBYTES.pack(QuantizedTensor(codes=codes, scale=scale, zero=None, grid=scheme.weight), scheme)
    assert parts[""].flatten()[:3].tolist() == [0x01, 0x23, 0x45]
    assert parts[""].shape == (128, 1)
    assert parts[".weight.absmax"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert parts[".weight.quant_map"].tolist() == list(map(float, torch.tensor(ELEMENTS["nf4"].values)))
    words = json.loads(bytes(parts[".weight.quant_state.bitsandbytes__nf4"].tolist()))
    assert words == {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [2, 128]}


def test_what_it_holds_comes_back_to_the_bit_through_the_native_format(tmp_path: Path) -> None:
    """The JSON alone is longer: it ends in spaces."""
    there = api.export(NF4, "native", output=tmp_path / "native").directory
    back = api.export(there, "bitsandbytes", output=tmp_path / "back").directory
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (NF4, back))
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        if "quant_state" in name:
            words = [json.loads(bytes(tensor.tolist())) for tensor in (value, ours[name])]
            assert {**words[0], "dtype": ""} == {**words[1], "dtype": ""}
        else:
            assert torch.equal(value, ours[name]), name
    assert torch.equal(logits(back), logits(NF4))
    assert examine(back).healthy


def test_scales_of_scales_are_read_into_scales(tmp_path: Path) -> None:
    there = api.export(NESTED, "native", output=tmp_path / "native").directory
    back = api.export(there, "bitsandbytes", output=tmp_path / "back").directory
    assert torch.equal(logits(back), logits(NESTED))
    assert not torch.equal(logits(back), logits(NF4))


def test_a_model_is_quantized_into_it_and_its_layers_are_a_source_again(tmp_path: Path) -> None:
    recipe = {"stages": [{"rtn": {"scheme": "nf4a16"}}], "export": {"format": "bitsandbytes"}}
    source = api.quantize(NF4, recipe, output=tmp_path / "again", proof="tensors").directory
    table = json.loads((source / "config.json").read_text())["quantization_config"]
    assert table["llm_int8_skip_modules"] == ["lm_head"]
    assert (table["load_in_4bit"], table["bnb_4bit_quant_type"]) == (True, "nf4")
    assert examine(source).healthy
    of_int8 = api.export(INT8, "compressed-tensors", output=tmp_path / "int8").directory
    assert torch.equal(logits(of_int8), logits(INT8))


def test_what_transformers_needs_for_it_is_said() -> None:
    assert "package bitsandbytes" in str(api.doctor(NF4, runtime="transformers").verdict)
    assert "vllm_bnb_plugin" in str(api.doctor(NF4, runtime="vllm").findings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(STATE), "stored as codes without a quant_state"),
        (lambda tensors: tensors.update({STATE: state(shape=[64])}), "says the shape"),
        (lambda tensors: tensors.update({STATE: state(shape=[10**30, 64])}), "says the shape"),
        (lambda tensors: tensors.update({STATE: torch.full((10**5,), ord("["), dtype=torch.uint8)}), "is no JSON"),
        (lambda tensors: tensors.update({STATE: state(shape=[32, 128])}), "its layer has 64 inputs"),
        (lambda tensors: tensors.update({STATE: state(shape=[128, 64])}), "misshapen keys"),
        (lambda tensors: tensors.update({STATE: state(blocksize=48)}), "run over the ends of rows"),
        (lambda tensors: tensors.update({STATE: torch.zeros(9, dtype=torch.uint8)}), "is no JSON"),
        (lambda tensors: tensors.update({STATE: torch.tensor(list(b"[1]"), dtype=torch.uint8)}), "is a table"),
        (lambda tensors: tensors[f"{DOWN}.weight.quant_map"].mul_(2), "stand for other numbers"),
        (lambda tensors: tensors.pop(f"{DOWN}.weight.absmax"), "lacks the tensor"),
    ],
)
def test_what_makes_no_sense_is_refused(
    change: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    with pytest.raises((FormatError, CheckpointError), match=message):
        goldstick.load(changed(NF4, tmp_path / "changed", change))


def test_codes_in_the_order_of_a_gpu_and_in_other_words_are_refused(tmp_path: Path) -> None:
    ordered = changed(INT8, tmp_path / "ordered", lambda tensors: tensors[f"{DOWN}.weight_format"].fill_(1))
    with pytest.raises(GoldstickError, match="the order of a GPU's registers"):
        goldstick.load(ordered)
    words = Path(shutil.copytree(NF4, tmp_path / "words"))
    change_json(
        words / "config.json", lambda config: config["quantization_config"].update(bnb_4bit_quant_storage="bfloat16")
    )
    with pytest.raises(FormatError, match="has them in 'bfloat16'"):
        goldstick.load(words)


def layer(name: str, label: str = "nf4a16", shape: tuple[int, int] = (64, 64), **more: Any) -> StoredLayer:
    return StoredLayer(
        name=f"{name}.weight", site=name, kind="linear", shape=torch.Size(shape), scheme=Scheme.parse(label),
        fractional_zeros=False, **more,
    )  # fmt: skip


def test_what_it_cannot_hold_is_refused_with_the_reason() -> None:
    assert BITSANDBYTES.refuses(layer("a")) is None
    assert "nf4a16" in str(BITSANDBYTES.refuses(layer("a", "w4a16-g64")))
    small = dataclasses.replace(layer("a"), scheme=Scheme(weight=dataclasses.replace(NF4_GRID, group_size=16)))
    assert "nf4a16 as bitsandbytes" in str(BITSANDBYTES.refuses(small))
    assert "ends of rows" in str(BITSANDBYTES.refuses(layer("a", shape=(64, 96))))
    assert "factor" in str(BITSANDBYTES.refuses(layer("a", multiplied=True)))
    assert "runs on the quantized weight" in str(BITSANDBYTES.refuses_together([layer("a")], {"b": "a"}))


@pytest.mark.parametrize("float_module", ["head", "a.b"])
def test_a_float_layer_that_readers_would_take_for_a_quantized_one_is_refused(float_module: str) -> None:
    with pytest.raises(FormatError, match=f"{float_module} stays float, and readers would take a.b.head"):
        BITSANDBYTES.config([layer("a.b.head")], [float_module], {})
    assert BITSANDBYTES.config([layer("a.b.head")], ["b"], {})["llm_int8_skip_modules"] == ["b"]
