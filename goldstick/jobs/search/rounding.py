"""A model in memory some of whose layers run on rounded weights for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from goldstick.algorithms.column_importance import without_importance
from goldstick.algorithms.gptq import GPTQ
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.edits import Quantize
from goldstick.core.inputs import InputObserver
from goldstick.core.scheme import Scheme
from goldstick.jobs.search.layers import FLOAT
from goldstick.jobs.search.runtimes import Runtime
from goldstick.structure.network import Network, Site

#: Bytes of rounded weights that are kept for the next time.
MOST_KEPT = 1_000_000_000


class RoundedLayers:
    """Layers of a float model, rounded as candidates ask for it.

    Args:
        network: The model, in float32; its weights are numbers of the sites' dtype.
        runtime: How ranges are searched.
        dtypes: Site → the dtype that it is stored in.
        inputs: Site → what it is given; these are rounded by GPTQ, all others to nearest.
    """

    def __init__(
        self,
        network: Network,
        runtime: Runtime,
        dtypes: Mapping[str, torch.dtype],
        inputs: Mapping[str, InputObserver] | None = None,
    ) -> None:
        self.network, self._dtypes, self._inputs = network, dtypes, inputs or {}
        self._search = without_importance(runtime.search)
        self._gptq = GPTQ(range_search=runtime.data_search)  # type: ignore[arg-type]
        self._kept: OrderedDict[tuple[str, str], Tensor] = OrderedDict()

    @property
    def words(self) -> str:
        """How layers are rounded."""
        return "linear layers rounded by GPTQ, each alone" if self._inputs else "rounded to nearest"

    def matrix(self, site: Site, scheme: str) -> Tensor:
        """The weight of a site as ``scheme`` has it, float32 [..., out, in]; not to be changed in place."""
        if scheme == FLOAT:
            return self.network.weight(site)
        key = site.name, scheme
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            self._kept[key] = self._rounded(site, scheme)
            while sum(matrix.nbytes for matrix in self._kept.values()) > MOST_KEPT and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return self._kept[key]

    def _rounded(self, site: Site, scheme: str) -> Tensor:
        stored = self.network.weight(site).to(self._dtypes[site.name])
        parsed = Scheme.parse(scheme)
        if site.name not in self._inputs:
            return quantize_with_search(stored, parsed.weight, self._search).dequantize().float()
        (edit,) = self._gptq.solve(site, stored, self._inputs[site.name], parsed)
        assert isinstance(edit, Quantize)
        return edit.tensor.dequantize().float()

    @contextmanager
    def become(self, chosen: Mapping[str, str]) -> Iterator[None]:
        """Inside the context the sites are what is chosen for them: site name → scheme."""
        with ExitStack() as stack:
            for name, scheme in chosen.items():
                if scheme != FLOAT:
                    site = self.network.by_name[name]
                    stack.enter_context(self._replaced(site, self.matrix(site, scheme)))
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
