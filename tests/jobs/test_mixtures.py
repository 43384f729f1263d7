"""Mixtures of experts in miniature: rounded and solved by GPTQ, stored, and read by goldstick and by transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

import goldstick
from goldstick.checkpoint.source import open_tensors
from goldstick.jobs.save import finish
from goldstick.nn.packed import PackedWeight
from goldstick.nn.parameter import parameter_of
from goldstick.report import Report
from tests.support.plain_transformers import write_plain_logits
from tests.support.proofs import answer, prove_here
from tests.support.tiny_mixtures import MIXTURES
from tests.support.tiny_models import sample_inputs

pytestmark = [
    pytest.mark.usefixtures("reference_backend"),
    pytest.mark.filterwarnings("ignore:.*RoPE scaling factor"),
]

METHODS = ("rtn", "gptq")
every_mixture = pytest.mark.parametrize("family", MIXTURES)
every_method = pytest.mark.parametrize("method", METHODS)

#: Families whose checkpoints keep experts apart, which is what compressed-tensors can hold.
APART = ("qwen3_moe", "qwen3_next", "deepseek_v3", "mixtral", "olmoe")
#: Families whose experts are stored [experts, in, out].
INPUTS_FIRST = ("gpt_oss", "llama4", "aria")
#: Matrices of a block that stay float: what decides, biases of all experts, and convolutions that groups do not divide.
STAYS = {
    "gpt_oss": {"mlp.router.weight", "mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"},
    "qwen3_moe": {"mlp.gate.weight"},
    "qwen3_next": {"mlp.gate.weight", "mlp.shared_expert_gate.weight", "linear_attn.conv1d.weight"},
    "deepseek_v3": {"mlp.gate.weight"},
    "llama4": {"feed_forward.router.weight"},
    "mixtral": {"mlp.gate.weight"},
    "aria": {"mlp.router.weight"},
    "olmoe": {"mlp.gate.weight"},
}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A float miniature, the same compressed in memory, and where both are stored."""

    model: PreTrainedModel
    source: Path
    compressed: PreTrainedModel
    directory: Path

    @property
    def report(self) -> Report:
        """What its checkpoint says of itself."""
        return Report.read(self.directory)


Maker = Callable[[str, str], Made]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    """Each mixture by each method, once: rounded from checkpoint to checkpoint, solved in memory and saved."""
    folder = tmp_path_factory.mktemp("mixtures")

    @cache
    def make(family: str, method: str) -> Made:
        model = MIXTURES[family]()
        source, directory = folder / family, folder / f"{family}-{method}"
        model.save_pretrained(source)
        recipe = {"stages": [{method: {"scheme": "w4a16-g32", "group_size_mismatch": "skip"}}]}
        if method == "rtn":
            compressed = goldstick.apply(model, recipe).model
            goldstick.quantize(source, recipe, output=directory)
        else:
            result = goldstick.apply(model, recipe, data=[sample_inputs(model, batch=16)])
            compressed = result.model
            result.save(directory)
        assert isinstance(compressed, PreTrainedModel)
        return Made(model=model, source=source, compressed=compressed, directory=directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        yield make


@every_mixture
@every_method
def test_the_stored_mixture_loads_as_it_was_in_memory(family: str, method: str, made: Maker) -> None:
    one = made(family, method)
    inputs = sample_inputs(one.model)
    expected = answer(one.compressed, inputs)
    assert torch.equal(answer(goldstick.load(one.directory), inputs), expected)
    cls = AutoModelForImageTextToText if family == "aria" else AutoModelForCausalLM
    if family not in APART:  # the native format, which goldstick has told transformers to read
        assert torch.equal(answer(cls.from_pretrained(one.directory), inputs), expected)
    assert one.report.format == ("compressed-tensors" if family in APART else "native")
    assert not torch.equal(expected, answer(one.model, inputs)), "nothing was quantized"


def test_plain_transformers_answers_as_goldstick(made: Maker, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    inputs = {}
    for family in APART:
        for method in METHODS:
            (tmp_path / f"{family}-{method}").symlink_to(made(family, method).directory)
            inputs[f"{family}-{method}"] = sample_inputs(made(family, method).model)
    write_plain_logits(tmp_path, inputs)
    for name, given in inputs.items():
        theirs = load_file(tmp_path / f"{name}.logits")["logits"]
        ours = answer(goldstick.load(tmp_path / name), given)
        assert float(ours.abs().max()) > 1
        assert torch.equal(ours, theirs), name


@every_mixture
@every_method
def test_it_computes_what_the_float_mixture_does_with_its_numbers(family: str, method: str, made: Maker) -> None:
    one = made(family, method)
    twin = MIXTURES[family]()
    rounded = {parameter_of(path): weight.stored_numbers() for path, weight in _packed(one.compressed)}
    for name, parameter in twin.named_parameters():
        if (numbers := rounded.get(name, rounded.get(name.removesuffix(".weight")))) is not None:
            parameter.data.copy_(numbers)
    inputs = sample_inputs(twin)
    torch.testing.assert_close(answer(one.compressed, inputs), answer(twin, inputs), rtol=1e-4, atol=1e-4)


@every_mixture
@every_method
def test_each_output_of_each_expert_has_16_values_in_a_group_of_inputs(family: str, method: str, made: Maker) -> None:
    experts = [
        weight.stored_numbers() for path, weight in _packed(made(family, method).compressed) if "experts" in path
    ]
    stacks = [numbers for numbers in experts if numbers.ndim == 3]
    assert len(stacks) >= 2
    for numbers in stacks:
        rows = numbers.transpose(1, 2) if family in INPUTS_FIRST else numbers  # [experts, out, in]
        ordered = rows.unflatten(-1, (-1, 32)).sort(-1).values
        assert int((ordered.diff(dim=-1) > 0).sum(-1).max()) < 16


@every_mixture
def test_experts_are_solved_on_what_they_are_given(family: str, made: Maker) -> None:
    layers = [layer for layer in made(family, "gptq").report.layers if layer.scheme and len(layer.shape) == 3]
    assert layers
    for layer in layers:
        assert layer.algorithm == "gptq" and "fallback" not in layer.notes, layer.name
        assert float(layer.notes["output_error"]) < float(layer.notes["rtn_output_error"]), layer.name


@every_mixture
@every_method
def test_what_decides_stays_float_and_all_else_in_a_block_is_quantized(family: str, method: str, made: Maker) -> None:
    one = made(family, method)
    inside = {
        name: value for name, value in one.model.named_parameters() if ".layers." in name and "vision" not in name
    }
    matrices = {name for name, value in inside.items() if value.ndim >= 2}
    quantized = {layer.name for layer in one.report.layers if layer.scheme}
    floats = {name.split(".layers.")[1].partition(".")[2] for name in matrices - quantized}
    assert floats == STAYS[family]
    loaded = dict(goldstick.load(one.directory).named_parameters())
    for name in inside.keys() - quantized:
        assert torch.equal(loaded[name], inside[name]), name


def _packed(model: Any) -> list[tuple[str, PackedWeight]]:
    return [(path, module) for path, module in model.named_modules() if isinstance(module, PackedWeight)]


#: What such checkpoints call the blocks that predict further tokens, which transformers passes over.
FURTHER: dict[str, tuple[str, str]] = {
    "deepseek_v3": ("model.layers.1.", "model.layers.2."),
    "qwen3_next": ("model.layers.1.", "mtp.layers.0."),
}


@pytest.mark.parametrize("family", FURTHER)
@every_method
def test_blocks_that_predict_further_tokens_are_copied_and_listed(
    family: str, method: str, tmp_path: Path, proof_here: None
) -> None:
    model = MIXTURES[family]()
    model.save_pretrained(tmp_path / "source")
    added = _add_further_block(family, tmp_path / "source")
    recipe: dict[str, Any] = {"stages": [{method: {"scheme": "w4a16-g32", "group_size_mismatch": "skip"}}]}
    if method == "gptq":
        save_file(sample_inputs(model, batch=16), tmp_path / "ids.safetensors")
        recipe["calibration"] = {"dataset": str(tmp_path / "ids.safetensors"), "samples": 16}
    directory = goldstick.quantize(tmp_path / "source", recipe, output=tmp_path / "out").directory
    stored = open_tensors(directory)
    written: dict[str, Tensor] = {}
    for file in directory.glob("*.safetensors"):
        written |= load_file(file)
    assert stored.keys() >= added.keys()
    assert all(torch.equal(written[name], value) for name, value in added.items())
    table = json.loads((directory / "config.json").read_text())["quantization_config"]
    matrices = {name.removesuffix(".weight") for name, value in added.items() if value.ndim == 2}
    listed = [one.removeprefix("re:") if one.startswith("re:") else re.escape(one) for one in table["ignore"]]
    missed = {name for name in matrices if not any(re.fullmatch(one, name) for one in listed)}
    assert len(matrices) > 10 and not missed
    assert set(json.loads((directory / "goldstick.json").read_text())["unused"]) == set(added)
    inputs = sample_inputs(model)
    expected = answer(AutoModelForCausalLM.from_pretrained(directory), inputs)
    assert torch.equal(answer(goldstick.load(directory), inputs), expected)


def _add_further_block(family: str, source: Path) -> dict[str, Tensor]:
    """Copy the last block of a checkpoint into one more, with a projection of its own, and return what was added."""
    old, new = FURTHER[family]
    tensors = load_file(source / "model.safetensors")
    added = {name.replace(old, new): value + 1 for name, value in tensors.items() if name.startswith(old)}
    added[f"{new if family == 'deepseek_v3' else 'mtp.'}eh_proj.weight"] = torch.randn(64, 128)
    save_file({**tensors, **added}, source / "model.safetensors", metadata={"format": "pt"})
    return added
