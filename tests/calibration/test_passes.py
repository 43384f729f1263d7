"""Both ways through a block give the same numbers; scales are folded where they were found to be absorbed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.calibration.block import BlockCalibration
from goldstick.calibration.block_loop import calibrate
from goldstick.calibration.task import Assignment
from goldstick.core.edits import Quantize
from goldstick.core.error import WeightError
from goldstick.core.token_mask import TokenMask
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.run import calibrated_work
from goldstick.structure.network import Network
from tests.support.calibration import batches_for, first_block
from tests.support.tiny_models import FAMILIES, output_tensor

STAGES: dict[str, list[dict[str, Any]]] = {
    "gptq": [{"gptq": {"scheme": "w3a16-g32"}}],
    "awq": [{"awq": {"scheme": "w3a16-g32"}}],
    "awq-gptq": [{"awq": {"quantize": False}}, {"gptq": {"scheme": "w3a16-g32"}}],
    "smoothquant": [{"smoothquant": {"alpha": "search"}}, {"rtn": {"scheme": "w8a8-dynamic"}}],
    "static": [{"rtn": {"scheme": "w8a8-static"}}],
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("family", ["llama_gqa", "opt", "mixtral"])
def test_batches_one_by_one_give_the_same_bits_as_all_together(family: str, name: str) -> None:
    if family == "mixtral" and name == "static":
        pytest.skip("experts cannot take 8-bit activations")
    stages = STAGES[name]
    if family == "mixtral" and name == "smoothquant":
        stages = [stages[0], {"rtn": {"scheme": "w8a16"}}]
    together, outputs = first_block(family, stages, together=True)
    alone, others = first_block(family, stages, together=False)
    assert together.keys() == alone.keys() and together
    for site, edit in together.items():
        assert torch.equal(edit.tensor.codes, alone[site].tensor.codes), site
        assert torch.equal(edit.tensor.scale, alone[site].tensor.scale), site
        assert edit.notes == alone[site].notes
    assert all(torch.equal(one, other) for one, other in zip(outputs, others, strict=True))


def outliers(model: Any) -> None:
    """Make a few channels behind every norm of the blocks large, and the layers that read them small to match."""
    with torch.no_grad():
        for layer in model.model.layers:
            for norm, readers in (
                (layer.input_layernorm, (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)),
                (layer.post_attention_layernorm, (layer.mlp.gate_proj, layer.mlp.up_proj)),
            ):
                norm.weight[:3] *= 100
                for reader in readers:
                    reader.weight[:, :3] /= 100


def test_smoothquant_recovers_planted_outliers() -> None:
    model = FAMILIES["llama_gqa"]()
    outliers(model)
    batches = batches_for(model)
    float_answer = output_tensor(model, batches[0])

    def distance(stages: list[Mapping[str, Any]], data: Any = None) -> float:
        result = goldstick.apply(model, {"stages": stages}, data=data)
        return float((output_tensor(result.model, batches[0]) - float_answer).norm() / float_answer.norm())

    rounding = {"rtn": {"scheme": "w8a8-dynamic"}}
    plain, smooth = distance([rounding]), distance([{"smoothquant": {}}, rounding], batches)
    assert smooth < 0.3 * plain


def test_a_scale_folded_into_a_rounded_layer_changes_its_scales_and_not_its_codes() -> None:
    model = FAMILIES["llama_mha"]()
    with torch.no_grad():
        for layer in model.model.layers:  # channels of very different size where o_proj and down_proj read
            layer.self_attn.v_proj.weight[:8] *= 30
            layer.self_attn.o_proj.weight[:, :8] /= 30
            layer.mlp.up_proj.weight[:8] *= 30
    batches = batches_for(model)
    result = goldstick.apply(model, {"stages": [{"awq": {"scheme": "w4a16-g32"}}]}, data=batches)
    notes = {layer.name: layer.notes for layer in result.report.layers}
    folded = [name for name, note in notes.items() if "awq_balanced_error" in note]
    assert any("down_proj" in name or "o_proj" in name for name in folded)
    plain = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]})
    answers = [output_tensor(one, batches[0]) for one in (model, result.model, plain.model)]
    assert (answers[1] - answers[0]).norm() < (answers[2] - answers[0]).norm()


def test_padding_is_no_input() -> None:
    model = FAMILIES["llama_gqa"]()
    (batch,) = batches_for(model, count=1, rows=4)
    mask = torch.ones_like(batch["input_ids"])
    mask[2:, 12:] = 0
    padded = {"input_ids": batch["input_ids"], "attention_mask": mask}
    result = goldstick.apply(model, {"stages": [{"gptq": {"scheme": "w4a16-g32"}}]}, data=[padded])
    tokens = {layer.notes["tokens"] for layer in result.report.layers if layer.scheme}
    assert tokens == {int(mask.sum())}


class Loop(nn.Module):
    """A layer that is called three times; two that share two inputs, and one that reads only the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.places = nn.Parameter(torch.randn(7, 16))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + 4 * self.again(x).relu()
        places = self.places * 2
        near = self.query(x) @ self.key(x).mT + self.query(places).sum() - self.key(places).sum()
        found: Tensor = self.out(near.softmax(-1) @ self.value(x))
        return found


def looped(
    *, together: bool, stage: Mapping[str, Any]
) -> tuple[Any, dict[str, Quantize], dict[str, Tensor], list[Tensor]]:
    """The model calibrated as one block, what was decided, the inputs of its float layers, and what it then gives."""
    torch.manual_seed(3)
    model = Loop()
    network, data = Network(model), [torch.randn(2, 9, 16) for _ in range(3)]
    given: dict[str, list[Tensor]] = {}
    for name, layer in model.named_children():
        layer.register_forward_pre_hook(lambda _, args, name=name: given.setdefault(name, []).append(args[0]))
    with torch.no_grad():
        for x in data:
            model(x)
    rows = {name: torch.cat([x.reshape(-1, 16) for x in inputs]).double() for name, inputs in given.items()}
    edits: dict[str, Quantize] = {}

    def note(task: Assignment, edit: Quantize, error: WeightError) -> None:
        edits[task.site.name] = edit

    work = calibrated_work(network, resolve(Recipe.load({"stages": [stage]}).stages, network), note)
    runs = [lambda x=x: model(x) for x in data]
    with torch.no_grad():
        outputs = calibrate(BlockCalibration(network, work, runs, [TokenMask()] * 3, together=together))
    return model, edits, rows, outputs


@pytest.mark.parametrize("together", [True, False])
def test_all_calls_of_a_layer_count(together: bool) -> None:
    _, edits, rows, _ = looped(together=together, stage={"gptq": {"scheme": "w8a16"}})
    tokens = {name: edit.notes["tokens"] for name, edit in edits.items()}
    assert tokens == {"again": 162, "query": 75, "key": 75, "value": 54, "out": 54}
    assert {name: len(inputs) for name, inputs in rows.items()} == tokens
    model, _, rows, _ = looped(together=together, stage={"rtn": {"scheme": "w8a8-static"}})
    largest = float(rows["again"].abs().max())  # nothing before the layer is rounded: its inputs are the float model's
    torch.testing.assert_close(float(model.again.input_scale), largest / 127.5, rtol=1e-6, atol=0)


@pytest.mark.parametrize("stage", [{"gptq": {"scheme": "w4a16-channel"}}, {"awq": {"scheme": "w4a16-channel"}}])
def test_layers_that_are_called_again_are_solved_alike_in_both_ways(stage: Mapping[str, Any]) -> None:
    _, together, _, outputs = looped(together=True, stage=stage)
    _, alone, _, others = looped(together=False, stage=stage)
    for name, edit in together.items():
        assert torch.equal(edit.tensor.codes, alone[name].tensor.codes), name
        assert edit.notes == alone[name].notes
    assert all(torch.equal(one, other) for one, other in zip(outputs, others, strict=True))


def test_layers_that_are_called_again_are_not_paired_with_those_of_the_float_model() -> None:
    torch.manual_seed(3)
    data = [{"x": torch.randn(2, 9, 16)} for _ in range(3)]
    result = goldstick.apply(Loop(), {"stages": [{"gptq": {"scheme": "w4a16-channel", "gptaq": True}}]}, data=data)
    notes = {layer.name: layer.notes for layer in result.report.layers if layer.scheme}
    assert {name for name, note in notes.items() if "symmetric" in note} == {
        "again.weight",
        "query.weight",
        "key.weight",
    }
