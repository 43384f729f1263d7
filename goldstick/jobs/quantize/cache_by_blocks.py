"""The quantized KV cache of a run over the blocks: what calibration notes, and what the proof runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.algorithms.stage import CacheQuantizer, DataRequirement
from goldstick.calibration.kv_ranges import KVRecorder
from goldstick.core.kv_cache import KVRanges, KVScales, KVSettings
from goldstick.core.ranks import Ranks
from goldstick.hf.cache import cached_decoder, new_cache, quantized_layers, use_quantized_cache

_ONE = KVScales(keys=torch.ones(1, 1, dtype=torch.float32), values=torch.ones(1, 1, dtype=torch.float32))


class BlockwiseCache:
    """The cache of a model whose blocks are calibrated one by one.

    The scales of a layer are known when its block is finished; until then a scale of 1 stands in for them, so that
    the model can be given a cache, and what will be stored has its shape, from the beginning.

    Args:
        stage: The stage.
        model: The model.
        journal: What :attr:`state` was when the run was stopped; empty at the start.
        batches: How many batches there are here; passes of higher numbers are those of the proof.
        ranks: Who has the other batches.
    """

    def __init__(
        self, stage: CacheQuantizer, model: nn.Module, journal: Mapping[str, Any], batches: int, ranks: Ranks
    ) -> None:
        self._stage, self._model, self._batches = stage, model, batches
        self._config = cached_decoder(model).config
        self._recorder = None
        if stage.data_requirement is not DataRequirement.NONE:
            found = {int(layer): _ranges(seen) for layer, seen in journal.items()}
            self._recorder = KVRecorder(found, ranks)
        self.settings = self._known()

    @property
    def label(self) -> str:
        """Short name of its scheme."""
        return self._stage.scheme.label

    @property
    def state(self) -> dict[str, dict[str, list[list[float]]]]:
        """What finished blocks have shown, as plain data; float32 numbers come back from it to the bit."""
        seen = {} if self._recorder is None else self._recorder.ranges
        return {
            str(layer): {"keys": ranges.keys.tolist(), "values": ranges.values.tolist()}
            for layer, ranges in seen.items()
        }

    def give_to_model(self) -> None:
        """Let the model hand its blocks caches like those that it will have, whatever it is called with."""
        use_quantized_cache(self._model, self.settings)

    def pass_cache(self, number: int) -> Any:
        """What a pass through the block at hand has for a cache: one of a batch notes, one of the proof quantizes."""
        if number >= self._batches:
            return new_cache(self._config, self.settings)
        return None if self._recorder is None else self._recorder.pass_cache(number)

    def settle(self) -> None:
        """The batches are through the block at hand: its scales are known.

        Raises:
            QuantizationError: Its keys or values are not finite.
        """
        if self._recorder is not None:
            self._recorder.settle()
            self.settings = self._known()

    def finish(self) -> KVSettings:
        """All blocks are done: the model runs on the cache from now on.

        Raises:
            QuantizationError: A layer was never seen.
        """
        self.settings = self._stage.solve({} if self._recorder is None else self._recorder.ranges)
        use_quantized_cache(self._model, self.settings)
        return self.settings

    def _known(self) -> KVSettings:
        if self._recorder is None:
            return self._stage.solve({})
        scales = dict.fromkeys(quantized_layers(self._config), _ONE)
        if ranges := self._recorder.ranges:
            scales |= self._stage.solve(ranges).scales
        return KVSettings(scheme=self._stage.scheme, scales=scales)


def _ranges(seen: Mapping[str, Any]) -> KVRanges:
    return KVRanges(keys=_float32(seen["keys"]), values=_float32(seen["values"]))


def _float32(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
