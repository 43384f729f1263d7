"""RTN: round to nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from goldstick.algorithms.base import Exposure, Quantizer
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.core.edits import Edit, Quantize
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.structure.network import Site


@dataclass(frozen=True, kw_only=True)
class RTN(Quantizer):
    """Round every weight to the nearest point of its grid; needs no data.

    ŵ = (clamp(round(w / s) + z, 0, 2^b − 1) − z) · s with s and z from ``range_search``.

    Attributes:
        range_search: Where scales come from: the ``minmax`` of the values, the shrunken range of least error
            (``mse``), or ``hqq``, which also moves the zero to a real number (asymmetric grids only).
    """

    name: ClassVar[str] = "rtn"
    exposure: ClassVar[Exposure] = Exposure.NONE

    range_search: RangeSearch = "minmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.range_search == "hqq":
            for scheme in self.schemes():
                if scheme.weight.symmetric:
                    raise RecipeError(
                        f"range_search hqq moves zeros, which the symmetric scheme {scheme.label} does not have; "
                        f"use {scheme.label}-asym, or range_search mse."
                    )

    @property
    def fractional_zeros(self) -> bool:
        """True for ``hqq``."""
        return self.range_search == "hqq"

    def attach(self, site: Site) -> None:
        """Nothing: RTN looks at weights only."""

    def solve(self, site: Site, weight: Tensor, state: None, scheme: Scheme) -> Sequence[Edit]:
        """One ``Quantize`` edit for a matrix [..., out, in]."""
        tensor = quantize_with_search(weight, scheme.weight, self.range_search)
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name)]
