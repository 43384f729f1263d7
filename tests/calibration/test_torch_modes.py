"""What a forward switches on for its thread, such as autocast, holds in its own passes and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import goldstick
from goldstick.calibration.passes import PausedPasses, RepeatedPasses
from goldstick.core.torch_modes import TorchModes, as_written
from goldstick.nn import PackedWeight

MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
    "autocast that keeps its casts": partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=True),
    "inference": torch.inference_mode,
    "gradients": torch.enable_grad,
    "no gradients": torch.no_grad,
    "device": partial(torch.device, "cpu"),
}


class Perceptron(nn.Module):
    """Two layers under a mode; that of gradients gives the forces of an energy."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.up, self.down, self.kind = nn.Linear(32, 64), nn.Linear(64, 32), kind

    def forward(self, x: Tensor) -> Tensor:
        with MODES[self.kind]():
            if self.kind == "gradients":
                x = x.detach().requires_grad_()
            energies = self.down(functional.gelu(self.up(x)))
            if self.kind == "gradients":
                return torch.autograd.grad(energies.square().sum(), x)[0]
        return energies.float().clone()


class Block(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(self.down(functional.gelu(self.up(self.norm(x)))))


class Around(nn.Module):
    """A mode around a list of blocks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.layers, self.kind = nn.Linear(32, 32), nn.ModuleList([Block(), Block()]), kind

    def forward(self, x: Tensor) -> Tensor:
        with MODES[self.kind]():
            x = self.first(x)
            for layer in self.layers:
                x = layer(x)
        return x.float().clone()


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, PackedWeight)]


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(16, 32, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("kind", MODES)
@torch.no_grad()
def test_passes_that_pause_give_what_passes_in_turn_give_and_each_side_keeps_its_modes(kind: str) -> None:
    torch.manual_seed(0)
    model, before = Perceptron(kind), TorchModes.here()
    runs, groups = [partial(model, x) for x in batches()], [[model.up], [model.down]]
    seen: dict[type, list[Tensor]] = {}
    found = {}
    for passes in (PausedPasses(runs, groups), RepeatedPasses(runs, groups)):
        for number in passes.groups():
            assert TorchModes.here() == before
            captured = list(passes.captured_inputs())
            assert TorchModes.here() == before
            seen.setdefault(type(passes), []).extend(one.tensor.clone() for one in captured)
            seen[type(passes)].extend(one.through(groups[number][0].forward) for one in captured)
            groups[number][0].weight.mul_(0.5)
        found[type(passes)] = list(passes.outputs())
        for module in (model.up, model.down):
            module.weight.mul_(2)
        assert TorchModes.here() == before
    assert all(map(torch.equal, *seen.values()))
    assert len(seen[PausedPasses]) == 12
    for x, paused in zip(batches(), found[PausedPasses], strict=True):
        halved = Perceptron(kind)
        halved.load_state_dict({name: w / 2 if "weight" in name else w for name, w in model.state_dict().items()})
        assert torch.equal(halved(x), paused)


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("model", [Perceptron, Around])
@pytest.mark.parametrize("recipe", ["gptq-w4a16-g32", "awq-rtn-w8a8-static"])
def test_a_forward_with_a_mode_of_its_own_calibrates_and_the_caller_keeps_his(
    model: Callable[[str], nn.Module], kind: str, recipe: str
) -> None:
    before, found = TorchModes.here(), []
    for each in (kind, "no gradients"):
        torch.manual_seed(0)
        found.append(goldstick.apply(model(each).eval(), recipe, data=batches()).model)
        assert TorchModes.here() == before
    weights = [torch.cat([layer.weight.numbers().flatten() for layer in layers_of(one)]) for one in found]
    if kind.startswith("autocast"):  # what bfloat16 rounds decides otherwise between codes that are as good
        assert (weights[0] != weights[1]).float().mean() < 0.2
    else:
        assert torch.equal(*weights)


@pytest.mark.parametrize("kind", MODES)
def test_blocks_are_given_what_the_forward_gives_them_under_its_mode(kind: str) -> None:
    torch.manual_seed(0)
    network, largest = Around(kind).eval(), dict[str, float]()

    def note(name: str, _: nn.Module, args: tuple[Tensor]) -> None:
        largest[name] = max(largest.get(name, 0), float(args[0].detach().abs().max()))

    names = ("layers.0.up", "layers.0.down")
    handles = [network.get_submodule(name).register_forward_pre_hook(partial(note, name)) for name in names]
    for x in batches():
        network(x.clone())
    for handle in handles:
        handle.remove()
    recipe = {"stages": [{"rtn": {"scheme": "w8a8-static", "targets": {"include": list(names)}}}]}
    compressed = goldstick.apply(network, recipe, data=batches()).model
    scales = {name: float(compressed.get_submodule(name).input_scale) for name in names}
    assert scales == pytest.approx({name: largest[name] / 127.5 for name in names}, rel=0.01)


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("where", ["solve", "forward"])
def test_an_error_leaves_the_callers_modes(kind: str, where: str) -> None:
    model, before, data = Perceptron(kind), TorchModes.here(), batches()
    passes = PausedPasses([partial(model, x) for x in data], [[model.up], [model.down]])
    if where == "forward":
        model.down.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        for number in passes.groups():
            if number and where == "solve":
                raise ZeroDivisionError
    del passes
    assert TorchModes.here() == before


def test_a_compiled_module_is_calibrated_as_it_is_written_and_nothing_is_compiled_for_it() -> None:
    torch.manual_seed(0)
    network, graphs = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    plain = goldstick.apply(network, "gptq-w4a16-g32", data=batches()).model
    compiled = torch.compile(network, backend=backend)
    compressed = goldstick.apply(compiled, "gptq-w4a16-g32", data=batches()).model
    assert not graphs
    x = batches()[0]
    assert torch.equal(compressed._orig_mod(x), plain(x))
    assert not graphs
    compiled(x)
    assert graphs


def test_what_is_compiled_is_compiled_again_when_the_last_of_several_threads_is_done() -> None:
    graphs: list[torch.fx.GraphModule] = []

    @partial(torch.compile, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    def double(x: Tensor) -> Tensor:
        return x * 2

    first, second = as_written(), as_written()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    double(torch.ones(2))
    assert not graphs
    second.__exit__(None, None, None)
    double(torch.ones(2))
    assert graphs


class Small(nn.Module):
    """Blocks whose activation lets no scale through."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("recipe", ["smoothquant-rtn-w8a8-static", "awq-gptq-w4a16-g32"])
def test_the_callers_autocast_changes_nothing(recipe: str) -> None:
    torch.manual_seed(0)
    network = Small().eval()
    plain = goldstick.apply(network, recipe, data=batches())
    with torch.autocast("cpu", torch.bfloat16):
        before = TorchModes.here()
        same = goldstick.apply(network, recipe, data=batches())
        assert TorchModes.here() == before
    assert same.report.layers == plain.report.layers
    assert all(map(torch.equal, plain.model.state_dict().values(), same.model.state_dict().values()))
