"""The float model beside a run over the blocks: its hidden states lie in the run's file behind those of the run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from goldstick.calibration.arguments import run_around
from goldstick.calibration.original import Original, original_block
from goldstick.calibration.sweep import Calls
from goldstick.structure.trace import tensors_in


class FloatStream:
    """What asymmetric stages compare with, one block at a time.

    Args:
        model: The model, with nothing rounded yet.
        chain: Its blocks.
        batches: Calibration batches.
        calls: Every block's other arguments in this model, for each batch.
        outside: Whether layers outside the blocks are to be compared, too; these are then held a second time.
    """

    def __init__(
        self,
        model: nn.Module,
        chain: Sequence[str],
        batches: Sequence[Mapping[str, Tensor]],
        calls: Calls,
        outside: bool,
    ) -> None:
        self._chain, self._batches, self._calls = chain, batches, calls
        self._model = copy.deepcopy(model) if outside else None
        if self._model is not None:
            for block in chain:
                self._model.get_submodule(block).to("meta")

    def block(self, module: nn.Module, path: str, states: Sequence[Tensor]) -> Original:
        """A block's copy, in which nothing is rounded yet, on the last of ``states``."""
        return original_block(copy.deepcopy(module), path, self._calls, states, self._first(states))

    def whole(self, states: Sequence[Tensor]) -> Original | None:
        """The model around blocks that have given the last of ``states``; ``None`` where it is not compared."""
        model = self._model
        if model is None:
            return None
        first = self._first(states)

        def run(index: int) -> Tensor:
            rest = self._calls[index][self._chain[0]].rest
            output = run_around(model, self._chain, states[first + index], rest, lambda: model(**self._batches[index]))
            return next(tensors_in(output))

        return Original(module=model, path="", runs=[partial(run, index) for index in range(len(self._calls))])

    def _first(self, states: Sequence[Tensor]) -> int:
        return len(states) - len(self._calls)
