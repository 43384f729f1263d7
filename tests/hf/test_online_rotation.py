"""Layers that turn their input when they run: stored, and loaded by goldstick, transformers and compressed-tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import goldstick
from goldstick import surgery
from goldstick.algorithms.rotation import RandomRotation
from goldstick.core.input_rotation import input_rotation, release_input
from goldstick.errors import GoldstickError
from goldstick.formats.transform_config import TRANSFORM_CONFIG, transform_config
from goldstick.jobs.load.load import load_float
from goldstick.jobs.save import finish
from goldstick.jobs.save.result import Result
from goldstick.jobs.verify.verify import verify_checkpoint
from goldstick.nn import QuantizedLinear
from goldstick.structure import Network
from tests.support.calibration import batches_for
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs
from tests.support.tiny_tokenizer import write_tokenizer

Made = Callable[[str, str, str], tuple[Result, Path]]
ONLINE: dict[str, Any] = {"rotate": {"online": True}}
BLOCK = "model.layers.0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Result, Path]]:
    """What a scheme makes of a family, and its checkpoint in a format, made once."""
    folder = tmp_path_factory.mktemp("turned")

    @cache
    def make(family: str, scheme: str, format_: str, method: str) -> tuple[Result, Path]:
        source, output = folder / family, folder / f"{family}-{scheme}-{format_}-{method}"
        if not source.exists():
            FAMILIES[family]().save_pretrained(source)
            write_tokenizer(source)
        model: Any = load_float(source)
        stages = [ONLINE, {method: {"scheme": scheme, "group_size_mismatch": "smaller"}}]
        recipe = {"stages": stages, "export": {"format": format_}}
        data = batches_for(model) if method == "gptq" or "static" in scheme else None
        result = goldstick.apply(model, recipe, data=data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(finish, "prove", prove_here)
            result.save(output)
        return result, output

    return lambda family, scheme, format_, method="rtn": make(family, scheme, format_, method)


def turned_layers(model: nn.Module) -> dict[str, int]:
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}
    return {name: layer.rotated for name, layer in layers.items() if layer.rotated}


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return output_tensor(model, sample_inputs(model))  # type: ignore[arg-type]


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(
    ("family", "scheme", "format_", "method"),
    [
        ("llama_gqa", "w4a16-g32", "compressed-tensors", "gptq"),
        ("llama_gqa", "w8a8-static", "compressed-tensors", "rtn"),
        ("llama_gqa", "nvfp4", "compressed-tensors", "gptq"),
        ("opt", "w8a8-dynamic", "compressed-tensors", "rtn"),
        ("gpt2", "w4a16-g32", "native", "gptq"),
        ("mixtral", "w4a16-g32", "native", "rtn"),
    ],
)
def test_a_reloaded_model_turns_the_same_inputs_and_answers_to_the_bit(
    family: str, scheme: str, format_: str, method: str, made: Callable[..., tuple[Result, Path]]
) -> None:
    result, directory = made(family, scheme, format_, method)
    loaded = goldstick.load(directory)
    assert turned_layers(loaded) == turned_layers(result.model) == result.report.rotation["inputs"]  # type: ignore[index]
    assert torch.equal(logits(loaded), logits(result.model))


def test_plain_transformers_loads_what_goldstick_stored_in_its_own_format(made: Made) -> None:
    result, directory = made("llama_gqa", "w4a16-g32", "native")
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert turned_layers(model) == {
        f"model.layers.{index}.{name}": size
        for index in range(2)
        for name, size in (("mlp.down_proj", 128), ("self_attn.o_proj", 64))
    }
    assert torch.equal(logits(model), logits(result.model))


def test_experts_are_not_turned_and_the_report_says_so(made: Made) -> None:
    result, _ = made("mixtral", "w4a16-g32", "native")
    rotation: Any = result.report.rotation
    assert list(rotation["inputs"]) == [f"model.layers.{index}.self_attn.o_proj" for index in range(2)]
    assert rotation["inputs_left"] == [f"model.layers.{index}.mlp.experts.down_proj" for index in range(2)]


def test_a_layer_that_stays_float_is_not_turned(made: Made) -> None:
    model: Any = FAMILIES["llama_gqa"]()
    stage = {"rtn": {"scheme": "w8a16", "targets": {"exclude": ["*down_proj"]}}}
    result = goldstick.apply(model, {"stages": [ONLINE, stage]})
    assert set(turned_layers(result.model)) == {f"model.layers.{index}.self_attn.o_proj" for index in range(2)}
    assert not any(input_rotation(layer) for layer in result.model.modules())
    torch.testing.assert_close(logits(result.model), logits(model), rtol=0.2, atol=0.2)


def float_with_turned_inputs() -> tuple[Any, dict[str, int]]:
    """A float model that turns inputs by hooks, and the size of each."""
    model: Any = FAMILIES["llama_gqa"]()
    network, stage = Network(model), RandomRotation(online=True)
    plan = stage.find(network, sample_inputs(model))
    surgery.apply(network, stage.edits(plan))
    return model, {name.removesuffix(".weight"): size for name, size in plan.inputs.items()}


def test_compressed_tensors_turns_a_float_model_as_goldstick_does() -> None:
    transform = pytest.importorskip("compressed_tensors.transform", reason="compressed-tensors is not installed")
    model, sizes = float_with_turned_inputs()
    expected, original = logits(model), logits(FAMILIES["llama_gqa"]())
    torch.testing.assert_close(expected, original, rtol=1e-4, atol=1e-4)
    for name in sizes:
        assert release_input(model.get_submodule(name)) == sizes[name]
    assert not torch.allclose(logits(model), original, rtol=1e-2, atol=1e-2)
    others = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name not in sizes]
    config = transform.TransformConfig.model_validate(transform_config(sizes, others))
    transform.apply_transform_config(model, config)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", ["w4a16-g32", "w8a8-dynamic"])
def test_transformers_with_compressed_tensors_answers_alike_once_it_turns_inputs(scheme: str, made: Made) -> None:
    transform = pytest.importorskip("compressed_tensors.transform", reason="compressed-tensors is not installed")
    _, directory = made("llama_gqa", scheme, "compressed-tensors")
    expected = logits(goldstick.load(directory))
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    assert not any(isinstance(layer, QuantizedLinear) for layer in model.modules())
    assert apart(logits(model), expected) > 0.3
    table = json.loads((directory / "config.json").read_text())["quantization_config"][TRANSFORM_CONFIG]
    transform.apply_transform_config(model, transform.TransformConfig.model_validate(table))
    assert apart(logits(model), expected) < (0.01 if scheme == "w8a8-dynamic" else 1e-4)  # sums that round differently


def changed(directory: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy whose quantization_config is another."""
    copy = Path(shutil.copytree(directory, tmp_path / "changed"))
    config = json.loads((directory / "config.json").read_text())
    change(config["quantization_config"])
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def group_of(table: dict[str, Any]) -> dict[str, Any]:
    return deepcopy(next(iter(table[TRANSFORM_CONFIG]["config_groups"].values())))


def test_a_float_layer_whose_input_is_to_be_turned_is_refused(made: Made, tmp_path: Path) -> None:
    def turn_head(table: dict[str, Any]) -> None:
        group = group_of(table)
        group["apply"][0]["targets"] = ["lm_head"]
        group["head_dim"] = 64
        table[TRANSFORM_CONFIG]["config_groups"]["more"] = group

    _, directory = made("llama_gqa", "w4a16-g32", "compressed-tensors")
    with pytest.raises(GoldstickError, match="lm_head turned at run time, which is a float layer"):
        goldstick.load(changed(directory, tmp_path, turn_head))


def test_a_transform_that_is_meant_for_no_layer_is_refused(made: Made, tmp_path: Path) -> None:
    def misname(table: dict[str, Any]) -> None:
        for group in table[TRANSFORM_CONFIG]["config_groups"].values():
            group["apply"][0]["targets"] = [r"re:language_model\.layers\..*\.down_proj$"]

    _, directory = made("llama_gqa", "w4a16-g32", "compressed-tensors")
    with pytest.raises(GoldstickError, match=r"names no layer of the model.*Correct its targets"):
        goldstick.load(changed(directory, tmp_path, misname))


@pytest.mark.parametrize("rotated", [{f"{BLOCK}.mlp.down_proj": 24}, {f"{BLOCK}.mlp.down_proj": 256}, {"x": 8}, 3])
def test_a_native_table_that_makes_no_sense_is_refused(rotated: object, made: Made, tmp_path: Path) -> None:
    _, directory = made("llama_gqa", "w4a16-g32", "native")
    copy = changed(directory, tmp_path, lambda table: table.update(rotated=rotated))
    with pytest.raises(GoldstickError, match=r"cannot be turned in blocks|no table of sizes|does not quantize it"):
        goldstick.load(copy)


@pytest.mark.parametrize("format_", ["gptq", "awq", "gguf"])
def test_formats_that_cannot_say_it_are_refused(format_: str, tmp_path: Path) -> None:
    model: Any = FAMILIES["llama_gqa"]().to(torch.bfloat16)
    recipe = {"stages": [ONLINE, {"rtn": {"scheme": "w4a16-g32"}}], "export": {"format": format_}}
    with pytest.raises(GoldstickError, match="turned by a Hadamard transform when it runs"):
        goldstick.apply(model, recipe).save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_keeps_turning_when_it_is_exported_and_other_formats_refuse_it(made: Made, tmp_path: Path) -> None:
    result, directory = made("llama_gqa", "w4a16-g32", "compressed-tensors")
    goldstick.export(directory, "native", output=tmp_path / "native")
    assert torch.equal(logits(goldstick.load(tmp_path / "native")), logits(result.model))
    with pytest.raises(GoldstickError, match="turned by a Hadamard transform when it runs"):
        goldstick.export(directory, "gptq", output=tmp_path / "gptq")


def test_a_checkpoint_that_turns_inputs_verifies(made: Made) -> None:
    _, directory = made("llama_gqa", "w4a16-g32", "compressed-tensors")
    assert verify_checkpoint(directory)["passed"]


@pytest.mark.parametrize("scheme", ["w4a16-g32", "w8a8-dynamic"])
def test_an_export_says_what_is_true_of_its_own_format(
    scheme: str, made: Made, tmp_path: Path, proof_here: None
) -> None:
    for before, after in (("native", "compressed-tensors"), ("compressed-tensors", "native")):
        _, directory = made("llama_gqa", scheme, before)
        report = goldstick.export(directory, after, output=tmp_path / after).report
        said = [one for one in report.warnings if "Layers turn their input at run time" in one]
        assert len(said) == (1 if after == "compressed-tensors" else 0)
