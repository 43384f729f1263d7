"""Forward passes of one model on fixed inputs that begin at any of its blocks, with what came before kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.evaluation.forward import without_cache
from goldstick.jobs.sensitivity.measures import Answer, Measure
from goldstick.structure.blocks import find_blocks
from goldstick.structure.calls import ForwardLeft, standing_in
from goldstick.structure.trace import tensors_in


class BlockRuns:
    """Runs a model in memory on fixed batches, without repeating the blocks before the one that changed.

    A block that is passed over is not run: it hands on what the last of them gave when all were run. The model's own
    code does everything else, so masks and positions are its own. Where a model's blocks are not one chain, and where
    passing over them would give other answers, every run is of the whole model.

    Args:
        model: The model. It is left as it was found after each run.
        batches: Keyword arguments of its forward.
        blocks: Paths of its blocks, for a quantized model, in which they are not recognised; found where ``None``.
        measure: What of the model's outputs is its answer; its logits by default.

    Attributes:
        blocks: Paths of the blocks that may be passed over, in order; empty for none.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Mapping[str, Tensor]],
        blocks: tuple[str, ...] | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.model, self.batches, self._measure = model, batches, measure or Measure()
        self._settings = without_cache(model)
        blocks = find_blocks(model) if blocks is None else blocks
        self.blocks = blocks if len({block.rpartition(".")[0] for block in blocks}) == 1 else ()
        self._first = 0
        self._given: list[Any] = [None] * len(batches)  # what the block before the first one gave, batch by batch
        if self.blocks and not self._equal_from_the_second():
            self.blocks = ()

    def position(self, block: str | None, *, at_the_end: bool = False) -> int:
        """The number of the first block that must run where ``block``, or what lies outside all blocks, changed.

        Args:
            block: A block's path, or ``None`` for what lies outside the blocks.
            at_the_end: Whether what lies outside comes after all blocks.
        """
        if block is None:
            return len(self.blocks) if at_the_end else 0
        return self.blocks.index(block) if block in self.blocks else 0

    def cost(self, number: int) -> float:
        """What a run costs that begins at a block of this number: the blocks from there on, and what lies behind."""
        return len(self.blocks) - number + 1

    def start_at(self, number: int) -> None:
        """Pass over the blocks before ``number`` from now on: they will give what they give now.

        Blocks are passed over in their order; those that are already stay so.
        """
        for place in range(self._first, number):
            self._given = [self._output(place, index) for index in range(len(self.batches))]
            self._first = place + 1

    @torch.no_grad()
    def logits(self) -> Iterator[Tensor]:
        """The model's logits on each batch, [rows, tokens, vocabulary]."""
        yield from self.answers()

    @torch.no_grad()
    def answers(self) -> Iterator[Answer]:
        """What the measure compares of the model's outputs on each batch."""
        for index in range(len(self.batches)):
            yield self._run(index)

    def _run(self, index: int) -> Answer:
        model: Any = self.model
        with standing_in(model, dict.fromkeys(self.blocks[: self._first], lambda *_, **__: self._given[index])):
            return self._measure.answer(model(**self.batches[index], **self._settings))

    @torch.no_grad()
    def _output(self, place: int, index: int) -> Any:
        found: list[Any] = []

        def stop(_: nn.Module, __: Any, output: Any) -> None:
            found.append(output)
            raise ForwardLeft

        handle = self.model.get_submodule(self.blocks[place]).register_forward_hook(stop)
        try:
            self._run(index)
        except ForwardLeft:
            pass
        finally:
            handle.remove()
        return found[0]

    @torch.no_grad()
    def _equal_from_the_second(self) -> bool:
        """Whether passing over all blocks but the last gives the answer of a whole run, to the bit."""
        whole = self._run(0)
        batches, self.batches = self.batches, self.batches[:2]  # of the second is then what blocks left on the model
        self._given = [None] * len(self.batches)
        try:
            self.start_at(len(self.blocks) - 1)
            return all(map(torch.equal, tensors_in(self._run(0)), tensors_in(whole)))
        except Exception:  # any code of the model may fail, such as blocks that read what one before has left for them
            return False
        finally:
            self._first, self.batches, self._given = 0, batches, [None] * len(batches)
