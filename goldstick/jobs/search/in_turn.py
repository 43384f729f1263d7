"""The float32 model of a checkpoint, whole in memory or with one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.freed_memory import return_freed_memory
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.load.load import load_float
from goldstick.jobs.search.chain import find_chain
from goldstick.structure.network import Network, Site

#: Bytes of the float32 weights of a model that is in memory as a whole; of a larger one a block at a time is.
MOST_WHOLE = 1_000_000_000


class SearchedModel:
    """The float32 model of a checkpoint, and how its blocks come into memory.

    Args:
        directory: A float checkpoint.
        weights: How many weights it has.
        model: The model, where it is in memory already.

    Attributes:
        model: The model; no gradients are taken in its weights.
        network: The same.
        dtypes: Site → the dtype that it is stored in.
        streamed: Blocks that are read when they are called; none where the model is in memory as a whole.
    """

    def __init__(self, directory: Path, weights: int, model: nn.Module | None = None) -> None:
        self.model: nn.Module
        self.network: Network
        self.streamed: frozenset[str] = frozenset()
        self._here: str | None = None
        self._changed: Mapping[str, Mapping[str, str]] = {}
        self._matrix: Callable[[Site, str], Tensor] | None = None
        if model is None and 4 * weights > MOST_WHOLE:
            self._from(StreamedModel(directory))
            self._begin()
            if self.streamed and find_chain(self.network, _PROBE, self) == self.network.blocks:
                return
            self.streamed = frozenset()
        self.model = load_float(directory) if model is None else model
        self._begin()

    def _from(self, source: StreamedModel) -> None:
        self._source, self.model, self.streamed = source, source.model, frozenset(source.blocks)
        for block in source.blocks:
            source.model.get_submodule(block).register_forward_pre_hook(partial(self._called, block))

    def _begin(self) -> None:
        self.dtypes = {site.name: site.dtype for site in Network(self.model).sites}
        self.model = self.model.float().eval().requires_grad_(False)
        self.network = Network(self.model)

    def _called(self, block: str, module: nn.Module, _: Any) -> None:
        if "forward" not in vars(module):  # otherwise something stands in its place
            self.load(block)

    def load(self, block: str) -> nn.Module:
        """A block, in memory, with what it is changed to."""
        module = self.model.get_submodule(block)
        if block in self.streamed and block != self._here:
            self._drop()
            self._source.load(block)
            module.float().requires_grad_(False)
            self._here = block
            self._change(block)
        return module

    def release(self, block: str) -> None:
        """See :class:`goldstick.calibration.end_gradients.FloatBlocks`: the next that is loaded takes its place."""

    def become(
        self, chosen: Mapping[str, Mapping[str, str]], matrix: Callable[[Site, str], Tensor] | None = None
    ) -> None:
        """What layers of streamed blocks are from now on: block → site name → scheme; all others as they were.

        Args:
            chosen: The layers.
            matrix: The weight of a site as a scheme has it.
        """
        if self._here in self._changed or self._here in chosen:
            self._drop()
        self._changed, self._matrix = chosen, matrix

    def _change(self, block: str) -> None:
        sites = {self.network.by_name[name]: scheme for name, scheme in self._changed.get(block, {}).items()}
        if self._matrix is not None and sites:
            matrices = {site: self._matrix(site, scheme) for site, scheme in sites.items()}
            for site, matrix in matrices.items():
                parameter = nn.Parameter(site.layout.from_matrix(matrix, site.shape), requires_grad=False)
                self.network.module(site)._parameters[site.parameter] = parameter

    def _drop(self) -> None:
        if self._here is not None:
            self._source.release(self._here)
            return_freed_memory()
        self._here = None


_PROBE = {"input_ids": torch.zeros(1, 4, dtype=torch.long), "use_cache": False}
