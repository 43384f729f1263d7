"""The tensors that a run over the blocks writes: those of a block when it is finished, the others at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from goldstick.checkpoint.entries import Specs
from goldstick.checkpoint.shards import ShardedWriter
from goldstick.hf.names import CheckpointNames
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.plan.planned_tensors import PlannedTensor
from goldstick.jobs.save.pieces import float_tensors, quantized_pieces, save_entries
from goldstick.structure.blocks import block_of
from goldstick.structure.network import Network


class BlockTensors:
    """The tensors of a plan, block by block, in the order of the plan; those outside all blocks come last.

    Args:
        plan: The plan.
        network: Its network, as it is being rewritten.
        blocks: Paths of its blocks.
        names: How its checkpoint names tensors.
        cache: Tensors of its quantized KV cache, as many and of the shapes that there will be; the very last.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network,
        blocks: tuple[str, ...],
        names: CheckpointNames,
        cache: Mapping[str, Tensor],
    ) -> None:
        self._plan, self._network, self._blocks, self._names = plan, network, blocks, names
        self._cache: Specs = {name: (tensor.shape, tensor.dtype) for name, tensor in cache.items()}

    def specs(self) -> list[Specs]:
        """What is written, in its order."""
        return [tensor.outputs for block in (*self._blocks, None) for tensor in self._planned(block)] + [self._cache]

    def write(self, writer: ShardedWriter, block: str | None) -> None:
        """Write the tensors of a block, or those outside all blocks."""
        sites = [site for site in self._network.sites if site.block == block]
        pieces = quantized_pieces(self._network, self._plan.resolution, self._names, sites)
        floats = float_tensors(self._network, self._names, lambda name: block_of(name, self._blocks) == block)
        produced = {entry.name: entry for entry in save_entries(pieces, floats, self._plan.format)}
        for planned in self._planned(block):
            if planned.assignment is None:
                writer.write(planned.name, _as_stored(planned, floats.get(planned.name)))
                continue
            tensors = produced[planned.name].produce()
            for name in planned.outputs:
                writer.write(name, tensors[name])

    def write_cache(self, writer: ShardedWriter, cache: Mapping[str, Tensor]) -> None:
        """Write the tensors of the KV cache."""
        for name in self._cache:
            writer.write(name, cache[name])

    def _planned(self, block: str | None) -> Sequence[PlannedTensor]:
        return [tensor for tensor in self._plan.tensors if block_of(tensor.parameter, self._blocks) == block]


def _as_stored(planned: PlannedTensor, live: Tensor | None) -> Tensor:
    """A float tensor as the source stores it; where an algorithm changed it, the new values in the source's dtype."""
    original = planned.source.read()
    live = None if live is None else live.cpu()
    if live is None or torch.equal(original.to(live.dtype), live):
        return original
    return live.to(original.dtype)
