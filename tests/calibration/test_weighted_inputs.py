"""Inputs weighted by what an error costs: against autograd of the whole model, and which layers have them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms import rtn
from goldstick.calibration import end_gradients
from goldstick.calibration.end_gradients import output_gradients
from goldstick.calibration.gradient_passes import GradientPasses
from goldstick.calibration.predictions import signs
from goldstick.calibration.spilled import Spilled
from goldstick.core.token_mask import TokenMask
from goldstick.errors import OutputError, QuantizationError
from tests.support.calibration import seeded_llama, token_batches
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("reference_backend")

IMATRIX = {"rtn": {"scheme": "w2a16-g16", "range_search": "imatrix"}}
AWQ = {"awq": {"scheme": "w2a16-g16", "grid": 10}}
every_stage = pytest.mark.parametrize("stage", [IMATRIX, AWQ], ids=["rtn", "awq"])


def with_options(stage: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"stages": [{name: given | options} for name, given in stage.items()]}


def slow_importance(model: nn.Module, data: list[dict[str, Tensor]], path: str, mix: float) -> Tensor:
    """mean_t w_k(t) · x_tj² of two parts k of a layer's outputs, from the loss of the whole model, [2, in]."""
    squares, weights = [], []
    for index, batch in enumerate(data):
        seen: list[Tensor] = []

        def keep(_: nn.Module, given: Any, output: Tensor, seen: list[Tensor] = seen) -> None:
            seen.extend([given[0], output])

        handle = model.get_submodule(path).register_forward_hook(keep)
        scores = model(**batch).logits
        handle.remove()
        p = (scores.detach().double() / 3).softmax(-1)
        chance = signs(p, torch.Generator().manual_seed(index))
        slope = p.sqrt() * chance - p * (p.sqrt() * chance).sum(-1, keepdim=True)
        (gradient,) = torch.autograd.grad(scores, seen[1], slope.float())
        squares.append(seen[0].detach().double().square().flatten(0, 1))
        weights.append(
            torch.stack([half.square().mean(-1) for half in gradient.double().chunk(2, -1)], -1).flatten(0, 1)
        )
    x, a = torch.cat(squares), torch.cat(weights)  # [tokens, in], [tokens, 2]
    units = torch.tensor([2.0 ** math.floor(math.log2(float(part.mean()))) for part in a.T], dtype=torch.float64)
    return ((1 - mix) * a / units + mix).T @ x / len(x)


@pytest.mark.parametrize("mix", [0.0, 0.3])
def test_importances_are_those_of_the_loss_of_the_whole_model(mix: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = seeded_llama().eval(), token_batches(3)
    seen: list[tuple[Tensor, Tensor]] = []
    honest = rtn.quantize_with_search

    def search(weight: Tensor, grid: Any, search: Any, importance: Tensor, largest: Any = None) -> Any:
        seen.append((weight.clone(), importance))
        return honest(weight, grid, search, importance, largest)

    monkeypatch.setattr(rtn, "quantize_with_search", search)
    goldstick.apply(model, with_options(IMATRIX, objective="loss", output_groups=2, mix=mix), data=data)
    monkeypatch.undo()
    for name in ("q_proj", "k_proj", "v_proj"):  # whose inputs nothing has changed yet
        path = f"model.layers.0.self_attn.{name}"
        expected = slow_importance(model, data, path, mix)
        for part, counts in zip(model.get_submodule(path).weight.chunk(2), expected, strict=True):
            (found,) = [importance for weight, importance in seen if torch.equal(weight, part)]
            torch.testing.assert_close(found.double(), counts, rtol=2e-3, atol=1e-6)


@every_stage
@pytest.mark.parametrize("objective", ["output", "loss"])
def test_layers_in_blocks_are_solved_by_the_objective_and_notes_say_so(stage: dict[str, Any], objective: str) -> None:
    model, data = seeded_llama().eval(), token_batches(3)
    plain = goldstick.apply(model, with_options(stage), data=data)
    found = goldstick.apply(model, with_options(stage, objective=objective), data=data)
    name = "objective" if stage is IMATRIX else "awq_objective"
    notes = [record.notes for record in found.report.layers if record.scheme]
    assert {one[name] for one in notes if "no norm" not in str(one.get("awq_unbalanced"))} == {objective}
    logits = [one.model(**data[0]).logits for one in (plain, found)]
    assert not torch.equal(*logits)


@pytest.mark.parametrize(
    "codes",
    [{"gptq": {"scheme": "w2a16-g16", "gptaq": True}}, {"rtn": {"scheme": "w2a16-g16", "range_search": "imatrix"}}],
    ids=["gptq", "rtn"],
)
def test_scales_and_codes_may_have_objectives_of_their_own(codes: dict[str, Any]) -> None:
    scales = {"awq": {"quantize": False, "grid": 3, "objective": "loss"}}
    stages = [scales, *with_options(codes, objective="output", output_groups=2)["stages"]]
    found = goldstick.apply(seeded_llama().eval(), {"stages": stages}, data=token_batches(3))
    notes = [record.notes for record in found.report.layers if record.scheme]
    assert {one["objective"] for one in notes} == {"output"}
    assert {one["awq_objective"] for one in notes if "awq_objective" in one} == {"loss"}


def test_experts_are_solved_by_their_own_error_and_say_so() -> None:
    recipe = with_options(IMATRIX, objective="output")
    found = goldstick.apply(FAMILIES["mixtral"]().eval(), recipe, data=token_batches(3))
    for record in found.report.layers:
        if record.scheme:
            assert str(record.notes["objective"]).startswith("layer:" if ".experts" in record.name else "output")


@every_stage
def test_a_model_without_scores_is_solved_for_the_square_of_what_it_gives(stage: dict[str, Any]) -> None:
    body = seeded_llama().eval().get_submodule("model")
    found = goldstick.apply(body, with_options(stage, objective="loss"), data=token_batches(2))
    notes = [value for record in found.report.layers for name, value in record.notes.items() if "objective" in name]
    assert notes and set(notes) == {"loss"}


@every_stage
def test_a_gradient_that_is_no_number_names_its_block(stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = end_gradients._through
    monkeypatch.setattr(end_gradients, "_through", lambda *arguments: honest(*arguments) * torch.nan)
    with pytest.raises(QuantizationError, match=r"output of model\.layers\.\d+ is NaN"):
        goldstick.apply(seeded_llama().eval(), with_options(stage, objective="loss"), data=token_batches(2))


@pytest.mark.parametrize(
    ("twice", "room", "free", "again"),
    [((), 9, 15360, 3), (("q_proj",), 9, 15360, 0), (("q_proj",), 2, 15360, 3), (("q_proj",), 9, 15359, 3)],
    ids=["once", "twice", "no-room", "more-than-half-of-what-is-free"],
)
def test_gradients_that_are_looked_at_twice_are_found_once_where_there_is_room(
    twice: tuple[str, ...], room: int, free: int, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = seeded_llama().eval().model.layers[0]
    states = torch.randn(3, 2, 5, 64, generator=torch.Generator().manual_seed(0))
    passed: list[int] = []
    append = Spilled.append

    def append_while_there_is_room(spilled: Spilled, tensor: Tensor) -> int:
        if len(spilled) >= room:
            raise OutputError("No space left on device")
        return append(spilled, tensor)

    def run(number: int) -> Tensor:
        passed.append(number)
        return nn.Sequential(block.self_attn.q_proj, block.self_attn.o_proj)(states[number])

    monkeypatch.setattr(Spilled, "append", append_while_there_is_room)
    monkeypatch.setattr("goldstick.calibration.gradient_passes.free_for_temporary_files", lambda: free)
    runs = [partial(run, number) for number in range(len(states))]
    masks = [TokenMask(torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])), TokenMask(), TokenMask()]
    layers = {name: getattr(block.self_attn, name) for name in ("q_proj", "o_proj")}
    passes = GradientPasses(layers=layers, runs=runs, ahead=None, masks=masks, first=0, twice=twice)
    first, second = list(passes.once()), list(passes.again())
    assert len(passed) == 3 + again
    for before, after in zip(first, second, strict=True):
        assert set(after) >= set(twice)
        for name, (gradient, mask) in after.items():
            assert torch.equal(gradient, before[name][0]) and gradient.abs().sum() > 0
            assert mask is before[name][1] or torch.equal(mask, before[name][1])


def test_what_padding_gives_does_not_count_for_the_objective_output() -> None:
    mixing = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5, bias=False))  # of tokens, each with all others
    layer, states = nn.Linear(8, 8), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])

    def of(mask: Tensor | None, weight: Tensor) -> Tensor:
        def run() -> Tensor:
            found: Tensor = mixing(layer(states).mT).mT * weight.unsqueeze(-1)
            return found

        return output_gradients({"layer": layer}, run, None, TokenMask(mask))["layer"]

    ones = torch.ones(2, 5)
    assert torch.equal(of(mask, ones), of(None, mask.float()))
    assert not torch.equal(of(mask, ones), of(None, ones))
