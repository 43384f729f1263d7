"""Layers with a static input, from memory to a checkpoint and back, in both formats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import goldstick
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import CheckpointError, FormatError, RecipeError
from goldstick.jobs.load.load import load_float
from goldstick.jobs.load.plain_module import load_into
from goldstick.jobs.plan.choose_format import choose_format
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.save import finish
from goldstick.jobs.save.result import Result
from goldstick.recipes import Recipe
from tests.support.proofs import prove_here
from tests.support.stored_layers import layer
from tests.support.tiny_models import FAMILIES, VOCABULARY, output_tensor, sample_inputs

FORMATS = ("compressed-tensors", "native")
SCHEMES = ("w8a8-static", "w8a8-static-shifted", "w4a8-static-g32")


@pytest.fixture(autouse=True, scope="module")
def reference_backend() -> Iterator[None]:
    """Other backends promise closeness only; proofs run here, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDSTICK_BACKEND", "reference")
        patch.setattr(finish, "prove", prove_here)
        yield


def batches() -> list[dict[str, Tensor]]:
    ids = torch.randint(3, VOCABULARY, (3, 2, 16), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": batch} for batch in ids]


def recipe(scheme: str, format_: str = "auto") -> dict[str, Any]:
    return {"stages": [{"rtn": {"scheme": scheme}}], "export": {"format": format_}}


def saved(directory: Path, scheme: str, format_: str, model: nn.Module | None = None) -> Result:
    result = goldstick.apply(model or FAMILIES["llama_gqa"](), recipe(scheme, format_), data=batches())
    result.save(directory)
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Result, Path]]:
    """A result and its checkpoint for a scheme and a format, made once."""
    folder = tmp_path_factory.mktemp("static")

    @cache
    def make(scheme: str, format_: str) -> tuple[Result, Path]:
        return saved(folder / f"{scheme}-{format_}", scheme, format_), folder / f"{scheme}-{format_}"

    return make


Made = Callable[[str, str], tuple[Result, Path]]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_reloaded_model_answers_to_the_bit(scheme: str, format_: str, made: Made) -> None:
    result, directory = made(scheme, format_)
    inputs = sample_inputs(result.model)
    assert torch.equal(output_tensor(goldstick.load(directory), inputs), output_tensor(result.model, inputs))
    tensors = open_tensors(directory)
    scales = [name for name in tensors if name.endswith(".input_scale")]
    zeros = [name for name in tensors if name.endswith(".input_zero_point")]
    assert len(scales) == 14 and len(zeros) == (14 if "shifted" in scheme else 0)
    assert "model.layers.0.self_attn.q_proj.input_scale" in scales
    assert all(tuple(tensors[name].shape) == (1,) for name in scales + zeros)
    assert all(tensors[name].dtype == torch.int8 for name in zeros)


@pytest.mark.parametrize("format_", FORMATS)
def test_scales_have_the_dtype_of_the_model(format_: str, tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().to(torch.bfloat16).save_pretrained(tmp_path / "source")
    result = saved(tmp_path / "out", "w8a8-static-shifted", format_, load_float(tmp_path / "source"))
    inputs = sample_inputs(result.model)
    assert torch.equal(output_tensor(goldstick.load(tmp_path / "out"), inputs), output_tensor(result.model, inputs))
    tensors = open_tensors(tmp_path / "out")
    assert {info.dtype for name, info in tensors.items() if name.endswith(".input_scale")} == {torch.bfloat16}


@pytest.mark.parametrize("format_", FORMATS)
def test_the_report_counts_the_bytes_that_were_written(format_: str, made: Made) -> None:
    result, directory = made("w8a8-static-shifted", format_)
    written = sum(info.nbytes for info in open_tensors(directory).values())
    assert result.report.size.bytes_after == written
    assert {record.scheme for record in result.report.layers} == {"w8a8-static-shifted-channel", None}
    assert result.report.format == format_


@pytest.mark.parametrize("format_", FORMATS)
def test_the_plan_forecasts_every_tensor(format_: str, made: Made, tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "source")
    plan = make_plan(tmp_path / "source", Recipe.load(recipe("w8a8-static-shifted", format_)))
    assert plan.calibrated and not plan.streams
    _, directory = made("w8a8-static-shifted", format_)
    written = {name: (tuple(info.shape), info.dtype) for name, info in open_tensors(directory).items()}
    forecast = {
        name: (tuple(shape), dtype) for tensor in plan.tensors for name, (shape, dtype) in tensor.outputs.items()
    }
    assert forecast == written


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("lost", ["input_scale", "input_zero_point"])
def test_a_checkpoint_that_lacks_part_of_an_input_does_not_load(
    lost: str, format_: str, made: Made, tmp_path: Path
) -> None:
    shutil.copytree(made("w8a8-static-shifted", format_)[1], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.1.mlp.up_proj.{lost}"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"lacks the tensor 'model\.layers\.1\.mlp\.up_proj\.{lost}'"):
        goldstick.load(tmp_path)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_scale_that_the_config_does_not_call_for_is_refused(format_: str, tmp_path: Path) -> None:
    goldstick.apply(FAMILIES["llama_gqa"](), recipe("w8a8-dynamic", format_)).save(tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    save_file(load_file(file) | {"model.layers.1.mlp.up_proj.input_scale": torch.ones(1)}, file)
    with pytest.raises(CheckpointError, match=r"unexpected keys model\.layers\.1\.mlp\.up_proj\.input_scale"):
        goldstick.load(tmp_path / "out")


def plain() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 8))


def test_a_plain_module_is_stored_and_rebuilt(tmp_path: Path) -> None:
    x = torch.randn(16, 32)
    result = goldstick.apply(plain(), recipe("w4a8-static-shifted-g16"), data=[{"input": x}])
    result.save(tmp_path / "out")
    found = load_into(plain(), tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(found(x), result.model(x))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {"0.input_scale", "0.input_zero_point", "2.weight_packed"} <= set(tensors)
    del tensors["2.input_zero_point"]
    save_file(tensors, tmp_path / "out" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks the tensor '2\.input_zero_point'"):
        load_into(plain(), tmp_path / "out")


def test_4_bit_codes_take_a_byte_in_compressed_tensors_and_half_a_byte_natively(tmp_path: Path) -> None:
    sizes = {}
    for format_ in FORMATS:
        goldstick.apply(FAMILIES["llama_gqa"](), recipe("w4a8-dynamic-g32", format_)).save(tmp_path / format_)
        tensors = open_tensors(tmp_path / format_)
        sizes[format_] = sum(info.nbytes for name, info in tensors.items() if name.endswith(("proj.weight", "_packed")))
    assert sizes["compressed-tensors"] == 2 * sizes["native"]
    table = json.loads((tmp_path / "compressed-tensors" / "config.json").read_text())["quantization_config"]
    assert table["format"] == "int-quantized"


def test_asymmetric_weights_beside_8_bit_activations_go_to_the_native_format() -> None:
    layers = [layer("a", "w4a16-g32-asym"), layer("b", "w8a8-static")]
    storage, warnings = choose_format("auto", layers, {})
    assert storage.name == "native" and "rounding of all inputs dropped" in warnings[0]
    with pytest.raises(FormatError, match="rounding of all inputs dropped"):
        choose_format("compressed-tensors", layers, {})
    assert choose_format("auto", layers[:1], {})[0].name == "compressed-tensors"


def test_a_tied_weight_with_a_static_input_is_refused() -> None:
    stage = {"scheme": "w8a8-static", "tie": "keep", "targets": {"include": ["lm_head"]}}
    with pytest.raises(RecipeError, match=r"'tie: keep'.*gives that weight one input only"):
        goldstick.apply(FAMILIES["gemma2"](), {"stages": [{"rtn": stage}]}, data=batches())


def test_experts_take_no_static_input() -> None:
    with pytest.raises(RecipeError, match="cannot take 8-bit activations"):
        goldstick.apply(FAMILIES["mixtral"](), recipe("w8a8-static"), data=batches())


def test_weights_stored_the_other_way_round_take_one_too(tmp_path: Path) -> None:
    result = saved(tmp_path / "out", "w8a8-static", "auto", FAMILIES["gpt2"]())
    assert result.report.format == "native"
    inputs = sample_inputs(result.model)
    assert torch.equal(output_tensor(goldstick.load(tmp_path / "out"), inputs), output_tensor(result.model, inputs))
