"""The block loop: every block is loaded, calibrated on what those before it gave, and written.

In memory, loading a block does nothing and writing it keeps what it gives. From disk, one block is in memory at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import BlockCall, block_calls
from goldstick.calibration.block import BlockCalibration
from goldstick.calibration.float32_products import multiplying_in_float32
from goldstick.calibration.kv_ranges import with_cache
from goldstick.calibration.original import Original
from goldstick.calibration.scale_fold_targets import ScaleFoldTargets
from goldstick.calibration.task import Work
from goldstick.calibration.wrong_batch import naming_batch
from goldstick.core.token_mask import TokenMask, encoder_mask, token_mask
from goldstick.structure.network import Network

#: What transformers' blocks call an encoder's output that they look at.
_ENCODED = "encoder_hidden_states"

Batches = Sequence[Mapping[str, Tensor]]
Calls = Sequence[Mapping[str, BlockCall]]


class Caches(Protocol):
    """What passes through blocks have for a KV cache."""

    def pass_cache(self, number: int) -> Any:
        """The cache of a pass; called anew where it runs again."""

    def settle(self) -> None:
        """The batches are through the block at hand."""


@dataclass(frozen=True, kw_only=True)
class BlockLoop:
    """What a loop over blocks that feed one another does with each of them.

    Passes run through each block in this order: those of the batches, on which it is calibrated; ``calls`` beyond the
    batches, which only run through it when it is finished; those of the float model, through its copy.

    Attributes:
        network: The network.
        work: What to do in the blocks.
        batches: Calibration batches; none where no stage looks at data.
        calls: Every block's other arguments, for each batch, and then for each further pass.
        float_calls: The same in the float model, for each batch; none where no stage compares with it.
        fold_targets: What can take scales, where a stage smooths.
        gradients: Block → gradients of the float model's loss at what it gives, for each batch, where a stage asks.
            They lie on disk; those of a block are let go with it.
        caches: What the passes have for a KV cache, where the model gives blocks one; ``None`` for nothing.
        load: Has a block in memory, with everything done that needs no data; its float copy, where there is one.
        write: Takes a block and what it gives, pass by pass; it is finished when the last came out. Gives the states
            that the next one is given, which may lie on disk.
        fits_together: Whether the activations of all batches fit into memory, given a block, a pass and the number of
            models that run.
    """

    network: Network
    work: Work
    batches: Batches
    calls: Calls
    float_calls: Calls = ()
    gradients: dict[str, Sequence[Tensor]] = field(default_factory=dict)
    fold_targets: ScaleFoldTargets | None = None
    caches: Caches | None = None
    load: Callable[[str], nn.Module | None]
    write: Callable[[str, Iterator[Tensor]], Sequence[Tensor]] = lambda block, outputs: list(outputs)
    fits_together: Callable[[str, Callable[[], Tensor], int], bool] = lambda block, run, models: True

    def advance(self, block: str, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """Let the hidden states of all passes through a block; returns what it gives."""
        return self.write(block, self._outputs(block, self.load(block), states))

    def _outputs(self, block: str, copy: nn.Module | None, states: Sequence[Tensor]) -> Iterator[Tensor]:
        module, count = self.network.model.get_submodule(block), len(self.batches)
        first = len(states) - len(self.float_calls)
        runs = block_runs(module, block, self.calls, states, self.caches, batches=self.batches)
        original = None
        if copy is not None:
            float_runs = block_runs(copy, block, self.float_calls, states, first=first, batches=self.batches)
            original = Original(module=copy, path=block, runs=float_runs)
        with multiplying_in_float32(*([copy] if copy is not None else [])):
            calibration = None
            if count or not self.work.ranks.alone:
                with multiplying_in_float32(module):
                    calibration = self._calibration(block, runs, original)
                    calibration.solve()
                    yield from calibration.outputs()
                    calibration.finish()
            if self.caches is not None:
                self.caches.settle()
            yield from (run() for run in runs[count:])
            if calibration is not None:
                yield from calibration.original_outputs()

    def _calibration(
        self, block: str, runs: Sequence[Callable[[], Tensor]], original: Original | None
    ) -> BlockCalibration:
        count = len(self.batches)
        ranks = self.work.ranks
        fits = not runs or self.fits_together(block, runs[0], 1 if original is None else 2)
        together = not ranks.any(not fits)
        return BlockCalibration(
            self.network,
            self.work.within(block),
            runs[:count],
            _masks_in(self.network.model.get_submodule(block), block, self.batches, self.calls),
            pairs=self.fold_targets.of(block) if self.fold_targets is not None else (),
            together=together,
            original=original,
            gradients=self.gradients.pop(block, None),
            look=runs[count] if len(runs) > count and self._alike(block) else None,
        )

    def _alike(self, block: str) -> bool:
        """Whether any pass shows the order of a block's layers: unless inputs choose them, or a cache would keep what
        it is shown."""
        chosen = any(isinstance(module, nn.ModuleList) for module in self.network.model.get_submodule(block).modules())
        return not chosen and self.caches is None


def starts(model: nn.Module, chain: Sequence[str], batches: Batches) -> tuple[list[Tensor], Calls]:
    """The first block's hidden states, and every block's other arguments, for all batches."""
    found: list[tuple[Tensor, dict[str, BlockCall]]] = []
    first: list[Tensor] = []  # arguments of the first batch: most are the same for all
    for batch in batches:
        known = list(first)
        bare = bool(found) and found[0][1][chain[0]].rest is None
        found.append(block_calls(model, chain, batch, known, bare=bare))
        first = first or known
    overwrites = any(calls[chain[0]].overwrites for _, calls in found)  # which blocks that do not run do not show
    every = [
        {path: dataclasses.replace(call, overwrites=overwrites) for path, call in each.items()} for _, each in found
    ]
    return [hidden for hidden, _ in found], every


def block_runs(
    module: nn.Module,
    block: str,
    calls: Calls,
    hidden: Sequence[Tensor],
    caches: Caches | None = None,
    first: int = 0,
    batches: Batches = (),
) -> list[Callable[[], Tensor]]:
    """A block's forward on each batch.

    Args:
        module: The block, or a copy of it.
        block: Its path.
        calls: Every block's other arguments, for each batch.
        hidden: The hidden states, batch by batch; indexed when a pass begins, so they may lie on disk.
        caches: Give each pass its cache, where the model gave the block one; ``None`` for no caches.
        first: Where the hidden states of the first batch stand.
        batches: What the first of the calls are of, which errors name.
    """

    def run(index: int) -> Tensor:
        call = calls[index][block]
        if caches is not None:
            call = with_cache(call, caches.pass_cache(index))
        named = naming_batch(batches[index], index + 1, block) if index < len(batches) else nullcontext()
        with named:
            return call.run(module, hidden[first + index])

    return [partial(run, index) for index in range(len(calls))]


def masks_of(batches: Batches) -> list[TokenMask]:
    """Which tokens of each batch count in a whole network."""
    return [token_mask(batch) for batch in batches]


def _masks_in(module: nn.Module, block: str, batches: Batches, calls: Calls) -> list[TokenMask]:
    """Which count in a block: where it is given what an encoder gave, its own tokens are a decoder's."""
    encoded = [call[block].argument(module, _ENCODED) for call in calls[: len(batches)]]
    return [
        token_mask(batch, given) if isinstance(given, Tensor) else encoder_mask(batch)
        for batch, given in zip(batches, encoded, strict=True)
    ]


@torch.no_grad()
def calibrate(calibration: BlockCalibration) -> list[Tensor]:
    """Calibrate a block whose outputs stay in memory; returns them, batch by batch."""
    calibration.solve()
    outputs = list(calibration.outputs())
    calibration.finish()
    return outputs
