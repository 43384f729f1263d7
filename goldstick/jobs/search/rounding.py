"""A model in memory some of whose layers run on rounded weights for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.algorithms.column_importance import without_importance
from goldstick.algorithms.gptq import GPTQ
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.calibration.spilled import Spilled
from goldstick.core.edits import Quantize
from goldstick.core.grid import Grid
from goldstick.core.inputs import InputObserver
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.jobs.search.in_turn import SearchedModel
from goldstick.jobs.search.layers import FLOAT
from goldstick.jobs.search.runtimes import Runtime
from goldstick.structure.network import Network, Site

#: Bytes of codes and scales that are kept in memory for the next time; others wait on disk.
MOST_KEPT = 500_000_000


class RoundedLayers:
    """Layers of a float model, rounded as candidates ask for it.

    Args:
        network: The model, in float32; its weights are numbers of the sites' dtype.
        runtime: How ranges are searched.
        dtypes: Site → the dtype that it is stored in.
        inputs: Site → what it is given; these are rounded by GPTQ, all others to nearest.
        searched: Loads the blocks, where they are not in memory.
    """

    def __init__(
        self,
        network: Network,
        runtime: Runtime,
        dtypes: Mapping[str, torch.dtype],
        inputs: Mapping[str, InputObserver] | None = None,
        searched: SearchedModel | None = None,
    ) -> None:
        self.network, self._dtypes, self._inputs = network, dtypes, inputs or {}
        self._search = without_importance(runtime.search)
        self._gptq = GPTQ(range_search=runtime.data_search)  # type: ignore[arg-type]
        self._searched = searched
        self._kept = _Kept()

    @property
    def words(self) -> str:
        """How layers are rounded."""
        return "linear layers rounded by GPTQ, each alone" if self._inputs else "rounded to nearest"

    def matrix(self, site: Site, scheme: str) -> Tensor:
        """The weight of a site as ``scheme`` has it, float32 [..., out, in]; not to be changed in place."""
        key = site.name, scheme
        found = self._kept.get(key)
        if found is None and self._searched is not None and site.block is not None:
            self._searched.load(site.block)
        if scheme == FLOAT:
            return self.network.weight(site)
        if found is None:
            found = self._rounded(site, scheme)
            self._kept.keep(key, found)
        return found.dequantize().float()

    def _rounded(self, site: Site, scheme: str) -> QuantizedTensor:
        stored = self.network.weight(site).to(self._dtypes[site.name])
        parsed = Scheme.parse(scheme)
        if site.name not in self._inputs:
            return quantize_with_search(stored, parsed.weight, self._search)
        (edit,) = self._gptq.solve(site, stored, self._inputs[site.name], parsed)
        assert isinstance(edit, Quantize)
        return edit.tensor

    @contextmanager
    def become(self, chosen: Mapping[str, str]) -> Iterator[None]:
        """Inside the context the sites are what is chosen for them: site name → scheme."""
        later: dict[str, dict[str, str]] = {}  # of blocks that are not in memory
        with ExitStack() as stack:
            for name, scheme in chosen.items():
                if scheme != FLOAT:
                    site = self.network.by_name[name]
                    if self._searched is not None and site.block in self._searched.streamed:
                        later.setdefault(site.block, {})[name] = scheme
                    else:
                        stack.enter_context(self._replaced(site, self.matrix(site, scheme)))
            if self._searched is not None:
                self._searched.become(later, self.matrix)
                stack.callback(self._searched.become, {})
            yield

    @contextmanager
    def _replaced(self, site: Site, matrix: Tensor) -> Iterator[None]:
        tied = [one for one in self.network.sites if one.tied_to == site.parameter_name]
        places = [(self.network.module(one)._parameters, one.parameter) for one in (site, *tied)]
        originals = [parameters[name] for parameters, name in places]
        parameter = nn.Parameter(site.layout.from_matrix(matrix, site.shape), requires_grad=False)
        try:
            for parameters, name in places:
                parameters[name] = parameter
            yield
        finally:
            for (parameters, name), original in zip(places, originals, strict=True):
                parameters[name] = original


_PARTS = ("codes", "scale", "zero", "global_scale", "input_order")


class _Kept:
    """Rounded weights: the first of them in memory, the others in a temporary file."""

    def __init__(self) -> None:
        self._here: dict[tuple[str, str], QuantizedTensor] = {}
        self._size = 0
        self._file: Spilled | None = None
        self._away: dict[tuple[str, str], tuple[Grid, dict[str, int]]] = {}

    def get(self, key: tuple[str, str]) -> QuantizedTensor | None:
        """What is kept under a key."""
        if key not in self._away or self._file is None:
            return self._here.get(key)
        grid, places = self._away[key]
        found: dict[str, Any] = {name: self._file[place] for name, place in places.items()}
        return QuantizedTensor(grid=grid, **({"zero": None} | found))

    def keep(self, key: tuple[str, str], tensor: QuantizedTensor) -> None:
        """Keep a tensor."""
        parts = {name: part for name in _PARTS if (part := getattr(tensor, name)) is not None}
        size = sum(part.nbytes for part in parts.values())
        if self._size + size <= MOST_KEPT:
            self._here[key], self._size = tensor, self._size + size
            return
        self._file = self._file or Spilled([])
        places = {name: self._file.append(part) for name, part in parts.items()}
        self._away[key] = tensor.grid, places
