"""Scale fold targets: what can take the scale of an input group, probed once for every kind of block, tried in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from goldstick.calibration.arguments import BlockCall
from goldstick.structure.network import Network
from goldstick.structure.probe.findings import BlockStructure, FoldPair
from goldstick.structure.probe.input_groups import block_signature, holds_in, probe_block

#: Tokens of one row that a probe runs on.
_TOKENS = 32


class ScaleFoldTargets:
    """The fold pairs of each block, found on the first of its kind, and tried in it.

    Args:
        network: The network.
        hidden: The first block's hidden state for :func:`small` inputs.
        calls: Every block's other arguments for them.
    """

    def __init__(self, network: Network, hidden: Tensor, calls: Mapping[str, BlockCall]) -> None:
        self._network, self._hidden, self._calls = network, hidden, calls
        self._found: dict[object, list[BlockStructure]] = {}

    def of(self, block: str) -> Sequence[FoldPair]:
        """The pairs of a block, whose weights are in memory."""
        module = self._network.model.get_submodule(block)
        sites = [site for site in self._network.sites if site.block == block]
        args, kwargs = self._calls[block].arguments(self._hidden)
        alike = self._found.setdefault(block_signature(self._network, block), [])
        for known in alike:
            moved = known.moved_to(block)
            if not moved.folds or holds_in(module, sites, args, kwargs, moved):
                return moved.folds
        alike.append(replace(probe_block(module, sites, args, kwargs), block=block))
        return alike[-1].folds


def small(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """A few tokens (or one picture) of a batch; all of one whose tokens stand for parts of something else."""
    tensors = [value for value in batch.values() if isinstance(value, Tensor)]
    ids = [value for value in tensors if _is_ids(value)]
    if ids and any(value.is_floating_point() for value in tensors):
        return batch
    return {name: _first(value) for name, value in batch.items()}


def _first(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    return value[:1, :_TOKENS] if _is_ids(value) else value[:1]


def _is_ids(value: Tensor) -> bool:
    return value.ndim == 2 and not value.is_floating_point()
