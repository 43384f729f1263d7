"""What quantizers have in common that solve a layer in the Hessian of its inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from goldstick.algorithms.base import DataRequirement, Quantizer
from goldstick.algorithms.column_importance import OF_GGML
from goldstick.algorithms.hessian_factor import Order
from goldstick.algorithms.observers import observers_for
from goldstick.core.inputs import InputObserver
from goldstick.errors import RecipeError
from goldstick.structure.network import Site


@dataclass(frozen=True, kw_only=True)
class HessianQuantizer(Quantizer):
    """A quantizer that looks at the Hessian of a layer's inputs, and with ``gptaq`` at their drift.

    Attributes:
        range_search: Where scales come from.
        order: Which columns come first (:func:`column_order`).
        damping: Added to the diagonal of the Hessian, in units of its mean.
        token_floor: A layer that saw fewer inputs than this fraction of its input features is rounded to nearest.
        experts: What an expert of a mixture is solved on.
        gptaq: Aim at the output of the float model (GPTAQ, arXiv 2504.02692).
        alpha: How much of the errors before a layer it makes up for, 0 to 1.
    """

    data_requirement: ClassVar[DataRequirement] = DataRequirement.BLOCKWISE
    compensates: ClassVar[bool] = True

    range_search: Literal["minmax", "mse", "imatrix", "ggml", "ggml-imatrix"] = "mse"
    order: Order = "gar"
    damping: float = 0.01
    token_floor: float = 0.5
    experts: Literal["routed", "all"] = "routed"
    gptaq: bool = False
    alpha: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.damping <= 1:
            raise RecipeError(f"damping is a fraction of the mean diagonal in (0, 1], not {self.damping}.")
        if not self.token_floor >= 0:
            raise RecipeError(f"token_floor is a fraction of the input features, 0 or more, not {self.token_floor}.")
        if not 0 <= self.alpha <= 1:
            raise RecipeError(f"alpha is how much of the drift is made up for, 0 to 1, not {self.alpha}.")
        if self.experts not in ("routed", "all"):
            raise RecipeError(f"experts is routed or all, not {self.experts!r}.")
        if self.order not in get_args(Order):
            raise RecipeError(f"order is gar, activation or natural, not {self.order!r}.")

    def passes(self, batches: int) -> float:
        """With ``gptaq`` the float model runs beside, and drifts are summed as well."""
        return super().passes(batches) + (2.5 if self.gptaq else 0.0)

    @property
    def fractional_zeros(self) -> bool:
        """True for minimums."""
        return self.float16_ranges

    @property
    def float16_ranges(self) -> bool:
        """True for the searches of ggml."""
        return self.range_search in OF_GGML

    @property
    def needs_float_inputs(self) -> bool:
        """With ``gptaq``."""
        return self.gptaq

    @property
    def statistics(self) -> tuple[str, ...]:
        """The Hessian, and with ``gptaq`` the drift."""
        return ("hessian", "cross_covariance") if self.gptaq else ("hessian",)

    def attach(self, site: Site) -> InputObserver | list[InputObserver]:
        """The Hessian of the site's inputs; for experts a list of them, one each."""
        return observers_for(site)

    def least_inputs(self, site: Site) -> float:
        """As many as it does not round to nearest for; with ``experts: all`` there are never enough."""
        return math.inf if self.experts == "all" else max(1.0, self.token_floor * site.in_features)
