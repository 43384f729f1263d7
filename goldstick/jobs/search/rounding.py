"""A model in memory some of whose layers run on rounded weights for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from goldstick.algorithms.column_importance import without_importance
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme
from goldstick.jobs.search.layers import FLOAT
from goldstick.jobs.search.runtimes import Runtime
from goldstick.structure.network import Network, Site


class RoundedLayers:
    """Layers of a float model, rounded to nearest as candidates ask for it.

    Args:
        network: The model, in float32; its weights are numbers of the sites' dtype.
        runtime: How ranges are searched.
        dtypes: Site → the dtype that it is stored in.
    """

    def __init__(self, network: Network, runtime: Runtime, dtypes: Mapping[str, torch.dtype]) -> None:
        self.network, self._search, self._dtypes = network, without_importance(runtime.search), dtypes

    def matrix(self, site: Site, scheme: str) -> Tensor:
        """The weight of a site as ``scheme`` has it, float32 [..., out, in]."""
        weight = self.network.weight(site)
        if scheme == FLOAT:
            return weight
        stored = weight.to(self._dtypes[site.name])
        return quantize_with_search(stored, Scheme.parse(scheme).weight, self._search).dequantize().float()

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
