"""Layers whose weight the forward of another module reads, beside their own or in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from goldstick.calibration.task import Work
from goldstick.structure.network import Network


def read_elsewhere(network: Network, work: Work, look: Callable[[], Tensor] | None) -> frozenset[str]:
    """Names of the sites whose weights are read outside of their layers' calls; none where no stage has to know.

    What such a reader gets must be the weight itself, so no factor can be moved from a layer's input into its columns.

    Args:
        network: The network.
        work: What to do in the block at hand.
        look: The block's forward on one batch; runs once, on the first rank.
    """
    if not any(smoothing.stage.multiplies for smoothing in work.smoothing):
        return frozenset()
    found: frozenset[str] = frozenset()
    if work.ranks.first and look is not None:
        sites = {name: task.site for name, task in work.tasks.items() if task.multiplied}
        layers = {name: network.module(site) for name, site in sites.items()}
        weights = {id(layers[name]._parameters[site.parameter]): name for name, site in sites.items()}
        with _Reads(layers, weights) as reads:
            look()
        found = frozenset(reads.elsewhere)
    return work.ranks.of(found)


class _Reads(TorchFunctionMode):
    """Takes note of functions that make a tensor of a weight while its layer is not being called."""

    def __init__(self, layers: Mapping[str, nn.Module], weights: Mapping[int, str]) -> None:
        super().__init__()
        self.elsewhere: set[str] = set()
        self._layers, self._weights, self._running = layers, weights, dict.fromkeys(layers, 0)

    def __enter__(self) -> _Reads:
        self._hooks = [
            hook
            for name, layer in self._layers.items()
            for hook in (
                layer.register_forward_pre_hook(lambda *_, name=name: self._count(name, 1)),
                layer.register_forward_hook(lambda *_, name=name: self._count(name, -1)),
            )
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(one, Tensor) for one in tree_leaves(result)):  # its shape or dtype anybody may know
            names = [self._weights.get(id(one)) for one in tree_leaves((args, dict(kwargs or {})))]
            self.elsewhere |= {name for name in names if name is not None and not self._running[name]}
        return result

    def _count(self, name: str, step: int) -> None:
        self._running[name] += step
