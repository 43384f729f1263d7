"""Experts that the router sends too few tokens are solved on those of all, however the mixture stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms.gptq import GPTQ
from goldstick.errors import RecipeError
from tests.support.calibration import batches_for
from tests.support.tiny_models import FAMILIES

WIDTH, INNER, EXPERTS = 16, 32, 4
#: What a planted expert, to which nothing is routed, may lose beside those to which something is.
WORSE = 1.1


class Expert(nn.Module):
    """A gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def inner(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.gate(x)) * self.up(x)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.inner(x))
        return found


class Mixture(nn.Module):
    """Two experts for each token, each a module, of which the last is chosen for none, or for few."""

    def __init__(self, bias: float = -1e4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.router.bias.data[-1] = bias

    def chosen(self, x: Tensor) -> Tensor:
        found: Tensor = self.router(x).topk(2).indices
        return found

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        hidden, chosen = flat.clone(), self.chosen(flat)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).any(-1).nonzero().squeeze(-1)
            if len(rows):
                hidden[rows] += expert(flat[rows])
        return hidden.view_as(x)


def recipe(**options: Any) -> dict[str, Any]:
    targets = {"exclude": ["router"]} if options.pop("modules", True) else {}
    return {"stages": [{"gptq": {"scheme": "w3a16-g16", "targets": targets, **options}}]}


def data(rows: int = 8) -> list[Tensor]:
    mixing = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
    return [torch.randn(rows, 8, WIDTH, generator=torch.Generator().manual_seed(n)) @ mixing for n in range(4)]


def errors(model: Mixture, compressed: Mixture, x: Tensor) -> list[float]:
    """Each expert's relative error of outputs, were it given every token."""
    with torch.no_grad():
        pairs = [(one(x), other(x)) for one, other in zip(model.experts, compressed.experts, strict=True)]
    return [float((first - second).norm() / first.norm()) for first, second in pairs]


def notes_of(result: Any, number: int) -> dict[str, dict[str, Any]]:
    path = f"experts.{number}."
    found = {layer.name: dict(layer.notes) for layer in result.report.layers if layer.name.startswith(path)}
    return {name.split(".")[2]: notes for name, notes in found.items() if name.endswith("weight")}


@pytest.mark.parametrize("bias", [-1e4, -9.0], ids=["none", "few"])
def test_an_expert_module_that_gets_too_few_tokens_is_no_worse_than_the_others(bias: float) -> None:
    model, batches = Mixture(bias), data()
    tokens = torch.cat([x.flatten(0, 1) for x in batches])
    routed = [int((model.chosen(tokens) == number).sum()) for number in range(EXPERTS)]
    assert routed[-1] < WIDTH / 2 < min(routed[:-1]) and (routed[-1] > 0) == (bias > -1e4)
    result: Any = goldstick.apply(model, recipe(), data=batches)
    for layer in ("gate", "up", "down"):
        notes = notes_of(result, EXPERTS - 1)[layer]
        assert notes["shown_every_token"] == 1 and notes["tokens"] == 2 * len(tokens) and "fallback" not in notes
        assert "unreached" not in notes
        assert (
            notes_of(result, 0)[layer]["tokens"] == routed[0] and "shown_every_token" not in notes_of(result, 0)[layer]
        )
    lost = errors(model, result.model, tokens)
    assert lost[-1] <= WORSE * sum(lost[:-1]) / (EXPERTS - 1), lost
    assert torch.equal(result.model.chosen(tokens), model.chosen(tokens))
    assert not result.report.warnings or "No calibration batch reached" not in " ".join(result.report.warnings)


def test_it_is_solved_layer_by_layer_on_what_its_own_rounded_layers_give() -> None:
    model, batches = Mixture(), data()
    result: Any = goldstick.apply(model, recipe(), data=batches)
    tokens = torch.cat([x.flatten(0, 1) for x in batches])
    rounded = result.model.experts[-1]
    with torch.no_grad():
        inner = rounded.inner(tokens)
        lost = ((model.experts[-1].down.weight - rounded.down.weight) @ inner.T).square().sum()
    assert notes_of(result, EXPERTS - 1)["down"]["output_error"] == pytest.approx(
        2 * float(lost) / len(tokens), rel=1e-3
    )


def test_every_expert_is_shown_every_token_where_that_is_asked_for() -> None:
    batches = data()
    result: Any = goldstick.apply(Mixture(), recipe(experts="all"), data=batches)
    everything = 2 * sum(x.shape[0] * x.shape[1] for x in batches)
    for number in range(EXPERTS):
        assert {notes["tokens"] for notes in notes_of(result, number).values()} == {everything}
    mixtral = FAMILIES["mixtral"]()
    stage = {"gptq": {"scheme": "w4a16-g32", "experts": "all"}}
    result = goldstick.apply(mixtral, {"stages": [stage]}, data=batches_for(mixtral))
    experts = [layer for layer in result.report.layers if ".experts." in layer.name]
    assert experts and all(layer.notes["shown_every_token"] == layer.shape[0] for layer in experts)
    with pytest.raises(RecipeError, match="experts is routed or all, not 'none'"):
        GPTQ(experts="none")  # type: ignore[arg-type]


class Heads(nn.Module):
    """A list of layers that are no experts: each is given everything, or a tensor that is no list of tokens."""

    def __init__(self, shape: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads, self._shape = nn.ModuleList(Expert() for _ in range(2)), shape

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(self._shape(x)) for head in self.heads], -1)


@pytest.mark.parametrize("shape", [lambda x: x[0], lambda x: x], ids=["all", "batches"])
def test_layers_of_other_lists_are_judged_by_their_own_tokens(shape: Callable[[Tensor], Tensor]) -> None:
    result: Any = goldstick.apply(Heads(shape), recipe(modules=False), data=[torch.randn(1, 4, WIDTH)])
    notes = [layer.notes for layer in result.report.layers if layer.scheme]
    assert len(notes) == 6
    assert all(
        "shown_every_token" not in one and "4 inputs seen, fewer than 0.5" in str(one["fallback"]) for one in notes
    )
