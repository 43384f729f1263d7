"""Input smoothing factors: what a scale becomes where no norm and no linear layer before a group can absorb it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from goldstick import surgery
from goldstick.calibration.task import Assignment
from goldstick.core.edits import SetWeight
from goldstick.core.qtensor import scale_dtype
from goldstick.structure.network import Network, Site


class InputMultipliers:
    """The factors in front of layers that are still float, W·x = (W·diag(1/m))·(x ∘ m), until packed ones hold them.

    m is what will be stored: 1/s rounded to the dtype that the layer's scales will have. The columns are multiplied by
    1/m and not by s, so the float function stays but for the rounding of the products.

    While the layers are float, a hook on each multiplies what it is given. It comes before all other hooks: whoever
    pauses a pass or looks at an input sees it multiplied.

    Args:
        network: The network; the weights of the layers are in memory.
        read_elsewhere: Names of sites whose weights others read, too.
    """

    def __init__(self, network: Network, read_elsewhere: Collection[str] = ()) -> None:
        self._network, self._read_elsewhere = network, frozenset(read_elsewhere)
        self._factors: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []

    def obstacle(self, group: Sequence[Assignment]) -> str | None:
        """Why inputs of layers stay as they are: what others read of a weight is to stay; ``None`` for no reason."""
        others = {task.site.name for task in group} & self._read_elsewhere
        return f"other modules read the weight of {', '.join(sorted(others))}, too" if others else None

    def divide(self, group: Sequence[Assignment], scale: Tensor) -> bool:
        """Divide the inputs of layers by s and multiply their columns by it; may be called again.

        Args:
            group: The layers.
            scale: s, positive, float32 [in].

        Returns:
            Whether all dtypes could hold the factors and the weights; otherwise nothing was changed.
        """
        factors: dict[str, Tensor] = {}
        weights: list[SetWeight] = []
        for task in group:
            weight, before = self._network.weight(task.site), self.of(task.site)
            after = (before.float() / scale.to(before.device)).to(before.dtype)
            columns = (weight.float() * (before.float() / after.float())).to(weight.dtype)
            if not bool((torch.isfinite(after) & (after > 0)).all() and torch.isfinite(columns).all()):
                return False
            factors[task.site.name] = after
            weights.append(SetWeight(site=task.site.name, weight=columns))
        surgery.apply(self._network, weights)
        for task in group:
            if task.site.name not in self._factors:
                self._multiply_inputs(task.site)
        self._factors |= factors
        return True

    def of(self, site: Site) -> Tensor:
        """The factors of a layer, [in]; ones where its inputs are not multiplied."""
        weight = self._network.weight(site)
        found = self._factors.get(site.name)
        if found is None:
            return torch.ones(site.in_features, dtype=scale_dtype(weight.dtype), device=weight.device)
        return found

    def among(self, group: Sequence[Assignment]) -> Tensor | None:
        """The factors of layers that read one tensor, [in]; ``None`` where their inputs are not multiplied."""
        return self._factors.get(group[0].site.name)

    def remove(self) -> None:
        """Take the hooks away: the packed layers multiply by themselves."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _multiply_inputs(self, site: Site) -> None:
        def multiply(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            factors = self._factors[site.name]
            if args:
                return (args[0] * factors, *args[1:]), kwargs
            name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
            return args, kwargs | {name: kwargs[name] * factors}

        module = self._network.module(site)
        self._hooks.append(module.register_forward_pre_hook(multiply, prepend=True, with_kwargs=True))
