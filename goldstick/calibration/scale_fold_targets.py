"""Scale fold targets: what can take the scale of an input group, probed once for every kind of block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from goldstick.calibration.arguments import BlockCall
from goldstick.structure.network import Network
from goldstick.structure.probe.findings import FoldPair
from goldstick.structure.probe.input_groups import block_signature, probe_block

#: Tokens of one row that a probe runs on.
_TOKENS = 32


class ScaleFoldTargets:
    """The fold pairs of each block, found on the first of its kind.

    Args:
        network: The network.
        hidden: The first block's hidden state for :func:`small` inputs.
        calls: Every block's other arguments for them.
    """

    def __init__(self, network: Network, hidden: Tensor, calls: Mapping[str, BlockCall]) -> None:
        self._network, self._hidden, self._calls = network, hidden, calls
        self._found: dict[object, tuple[str, tuple[FoldPair, ...]]] = {}

    def of(self, block: str) -> Sequence[FoldPair]:
        """The pairs of a block, whose weights are in memory."""
        kind = block_signature(self._network, block)
        if kind not in self._found:
            sites = [site for site in self._network.sites if site.block == block]
            args, kwargs = self._calls[block].arguments(self._hidden)
            probed = probe_block(self._network.model.get_submodule(block), sites, args, kwargs)
            self._found[kind] = block, probed.folds
        first, pairs = self._found[kind]
        return [pair.moved(first, block) for pair in pairs]


def small(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A few tokens (or one picture) of a batch."""
    return {
        name: value[:1, :_TOKENS] if value.ndim == 2 and not value.is_floating_point() else value[:1]
        for name, value in batch.items()
    }
