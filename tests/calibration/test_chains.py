"""Blocks are calibrated one by one only where each is given what the one before it gives, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import block_calls
from goldstick.calibration.sweep import sweep
from goldstick.calibration.task import Assignment, Work
from goldstick.core.edits import Quantize
from goldstick.core.progress import quiet
from goldstick.errors import StructureError
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.structure.network import Network

WIDTH = 16


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def branch(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.up(self.norm(x)).relu())
        return found

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Stack(nn.Module):
    """Blocks in a list, and a way through them."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor], make: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.layers, self.way = nn.ModuleList(make() for _ in range(4)), way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.layers, x)


def straight(layers: Any, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def with_activations_between(layers: Any, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x).relu()
    return x


def with_a_skip(layers: Any, x: Tensor) -> Tensor:
    first = layers[0](x)
    return straight(layers[3:], layers[2](layers[1](first)) + 3 * first)


def backwards(layers: Any, x: Tensor) -> Tensor:
    return straight(layers[::-1], x)


class Streams(Block):
    """A block that hands on its residual beside what it gives, as those of mamba_ssm do."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        residual = x if residual is None else residual + x
        return self.branch(residual), residual


def two_streams(layers: Any, x: Tensor) -> Tensor:
    residual = None
    for layer in layers:
        x, residual = layer(x, residual)
    found: Tensor = x + residual
    return found


def sharing() -> Callable[[], nn.Module]:
    layer = nn.Linear(WIDTH, 32)

    def make() -> nn.Module:
        block = Block()
        block.up = layer
        return block

    return make


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


class Overwriting(Block):
    """A block that adds to what it is given in its place."""

    def forward(self, x: Tensor) -> Tensor:
        x += self.branch(x)
        return x


class Counting(Block):
    """A block that adds to a state that it is handed for all of its tokens, as RWKV's do."""

    def forward(self, x: Tensor, state: list[Tensor]) -> Tensor:
        state[0] += x.mean(1)
        return x + self.branch(x + state[0].unsqueeze(1))


def with_states(layers: Any, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x, [torch.zeros(len(x), WIDTH)])
    return x


CHAINS = {
    "a chain": lambda: Stack(straight),
    "blocks that overwrite their input": lambda: Stack(lambda layers, x: straight(layers, x.clone()), Overwriting),
    "blocks that add to a state": lambda: Stack(with_states, Counting),
}

NO_CHAINS = {
    "activations between linear layers": (lambda: Stack(with_activations_between, linear), "something made of it"),
    "a skip": (lambda: Stack(with_a_skip), "something made of it"),
    "backwards": (lambda: Stack(backwards), r"calls layers\.3 before layers\.0"),
    "two streams": (lambda: Stack(two_streams, Streams), "hand on a second state"),
    "a shared layer": (lambda: Stack(straight, sharing()), r"layers\.1 runs layers of layers\.0"),
}


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(4, 12, WIDTH, generator=generator)} for _ in range(3)]


def calibrated(model: nn.Module) -> dict[str, Tensor]:
    """Calibrate a model in place; the mean squares of the inputs on which each layer was solved."""
    network, found = Network(model), dict[str, Tensor]()
    assignments = resolve(Recipe.load({"stages": [{"gptq": {"scheme": "w4a16-channel"}}]}).stages, network).assignments

    def decide(task: Assignment, weight: Tensor, state: Any, notes: Any) -> Quantize:
        found[task.site.name] = state.mean_square()
        (edit,) = task.stage.solve(task.site, weight, state, task.scheme)
        assert isinstance(edit, Quantize)
        return edit

    sweep(network, Work(tasks=assignments, decide=decide), batches(), quiet)
    return found


def given(model: nn.Module, names: Any) -> dict[str, Tensor]:
    """The same of what the layers of a finished model are given."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    for name in names:
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: seen[name].append(args[0].reshape(-1, args[0].shape[-1]).double())
        )
    with torch.no_grad():
        for batch in batches():
            model(**batch)
    return {name: torch.cat(rows).square().mean(0) for name, rows in seen.items()}


@pytest.mark.parametrize("kind", [*CHAINS, *NO_CHAINS])
def test_every_layer_is_solved_on_what_the_finished_model_gives_it(kind: str) -> None:
    torch.manual_seed(1)
    model = CHAINS[kind]() if kind in CHAINS else NO_CHAINS[kind][0]()
    seen = calibrated(model)
    finished = given(model, seen)
    once = [name for name in seen if kind != "a shared layer" or not name.endswith("up")]  # whose inputs change again
    for name in once:
        torch.testing.assert_close(seen[name], finished[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", CHAINS)
def test_what_is_a_chain_is_taken_for_one(kind: str) -> None:
    model = CHAINS[kind]()
    with torch.no_grad():
        _, calls = block_calls(model, Network(model).blocks, batches()[0])
    assert all(call.overwrites is (kind != "a chain") for call in calls.values())


@pytest.mark.parametrize("kind", NO_CHAINS)
def test_what_is_no_chain_is_refused_as_one(kind: str) -> None:
    make, reason = NO_CHAINS[kind]
    model = make()
    with torch.no_grad(), pytest.raises(StructureError, match=reason):
        block_calls(model, Network(model).blocks, batches()[0])


class FilledCache:
    """A cache of keys and values in which another part of a model has left some."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def get_seq_length(self) -> int:
        return self.tokens


@pytest.mark.parametrize("tokens", [0, 3])
def test_blocks_that_read_what_others_have_cached_are_not_run_one_by_one(tokens: int) -> None:
    class Reading(Block):
        def forward(self, x: Tensor, cache: Any = None) -> Tensor:
            return x + self.branch(x)

    def way(layers: Any, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x, cache=FilledCache(tokens))
        return x

    model = Stack(way, Reading)
    if tokens:
        with pytest.raises(StructureError, match=r"layers\.0 reads keys and values that another part of the model has"):
            block_calls(model, Network(model).blocks, batches()[0])
    else:
        assert len(block_calls(model, Network(model).blocks, batches()[0])[1]) == 4
