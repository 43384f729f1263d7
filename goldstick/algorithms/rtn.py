"""RTN: round to nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from goldstick.algorithms.base import DataRequirement
from goldstick.algorithms.column_importance import OF_GGML, WITH_IMPORTANCE
from goldstick.algorithms.guided import Guided
from goldstick.algorithms.observers import Observers, observers_for, observers_of
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.core.edits import Edit, Quantize
from goldstick.core.input_squares import InputSquares
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.qtensor import QuantizedTensor, joined
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Site


@dataclass(frozen=True, kw_only=True)
class RTN(Guided):
    """Round every weight to the nearest point of its grid; needs no data but for ``imatrix`` and static input grids.

    ŵ = (clamp(round(w / s) + z, 0, 2^b − 1) − z) · s with s and z from ``range_search``.

    Attributes:
        range_search: Where scales come from: the ``minmax`` of the values, the shrunken range of least error
            (``mse``), the same with each column's error counting as much as its inputs are large on calibration data
            (``imatrix``), or ``hqq``, which also moves the zero to a real number (asymmetric grids only). ``ggml`` and
            ``ggml-imatrix`` are the published searches of llama.cpp's block types, byte for byte.
        importance: An importance matrix, a GGUF file as llama.cpp's tools write it, which then takes the place of
            calibration data; for the searches that weight errors by inputs.
        objective: What each token's inputs count where errors are weighted by them: alike (``layer``), or as much as an
            error of the output there costs the block's ``output`` or the ``loss`` at the end (arXiv 2505.07004).
        output_groups: Into how many parts the rows are taken apart, each with an importance of its own.
        mix: How much of the plain importance is mixed in, 0 to 1.
    """

    name: ClassVar[str] = "rtn"

    range_search: RangeSearch = "minmax"
    importance: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.importance is not None and self.range_search not in WITH_IMPORTANCE:
            raise RecipeError(
                f"range_search {self.range_search} looks at no importance matrix; {' and '.join(WITH_IMPORTANCE)} do."
            )
        if self.guide is not None and self.data_requirement is DataRequirement.NONE:
            given = "takes its importance from a file" if self.importance else "looks at no inputs"
            raise RecipeError(
                f"objective: {self.objective} weights the inputs of {' and '.join(WITH_IMPORTANCE)} by what an error "
                f"costs, and range_search {self.range_search} {given}; leave objective out."
            )
        if self.range_search == "hqq":
            for scheme in self.schemes():
                if scheme.weight.symmetric:
                    raise RecipeError(
                        f"range_search hqq moves zeros, which the symmetric scheme {scheme.label} does not have; "
                        f"use {scheme.label}-asym, or range_search mse."
                    )
                if scheme.weight.superblock is not None:
                    raise RecipeError(
                        f"range_search hqq moves zeros, and {scheme.label} has whole minimums; use range_search ggml."
                    )

    @property
    def fractional_zeros(self) -> bool:
        """True for ``hqq``, and for minimums."""
        return self.range_search == "hqq" or self.float16_ranges

    @property
    def float16_ranges(self) -> bool:
        """True for the searches of ggml."""
        return self.range_search in OF_GGML

    @property
    def data_requirement(self) -> DataRequirement:
        """``imatrix`` observes inputs, where no file says what they are; the other searches look at weights only."""
        looks = self.range_search in WITH_IMPORTANCE and self.importance is None
        return DataRequirement.BLOCKWISE if looks else DataRequirement.NONE

    @property
    def given_importance(self) -> str | None:
        """The file of ``importance``."""
        return self.importance

    def attach(self, site: Site) -> InputObserver | list[InputObserver] | None:
        """The statistics of the site's inputs, one for each expert, for ``imatrix`` and for the range of a static input
        grid; otherwise nothing."""
        return observers_for(site) if self.needs_inputs(self.scheme_for(site)) else None

    @property
    def statistics(self) -> tuple[str, ...]:
        """The importance, where the search takes one."""
        return ("mean_square",) if self.range_search in WITH_IMPORTANCE else ()

    def solve(
        self, site: Site, weight: Tensor, state: Observers | OutputGroups | InputSquares | None, scheme: Scheme
    ) -> Sequence[Edit]:
        """One ``Quantize`` edit for a matrix [..., out, in].

        Raises:
            QuantizationError: The weight, or more than 1 % of the inputs, hold NaN or infinity.
        """
        if self.range_search not in WITH_IMPORTANCE:
            plain = self.range_search == "minmax" and scheme.floats
            tensor, notes = quantize_with_search(weight, scheme.weight, self.range_search, plain=plain), {}
        elif state is None:
            raise QuantizationError(f"The search {self.range_search} needs the statistics of the layer's inputs.")
        elif isinstance(state, InputSquares):
            tensor, notes = self._weighted(weight, state, scheme), _notes(state)
        elif isinstance(state, OutputGroups):
            tensor, notes = self._in_parts(weight, state, scheme)
        else:
            observers = observers_of(state, weight)
            squares = InputSquares.of(observers)
            tensor, notes = self._weighted(weight, squares, scheme), _notes(squares)
            notes["dropped_tokens"] = sum(observer.dropped for observer in observers)
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name, notes=notes)]

    def _in_parts(
        self, weight: Tensor, state: OutputGroups, scheme: Scheme
    ) -> tuple[QuantizedTensor, dict[str, float | str]]:
        """Each part of the outputs by the inputs as it weights them."""
        largest = weight.abs().max()

        def solve(part: slice, observer: InputObserver) -> tuple[QuantizedTensor, InputSquares]:
            squares = InputSquares.of([observer])
            return self._weighted(weight[part], squares, scheme, largest), squares

        tensors, squares = zip(*state.each(solve), strict=True)
        notes = {**_notes(squares[0]), "dropped_tokens": state.plain.dropped}
        return joined(tensors, weight.shape, scheme.weight), notes

    def _weighted(
        self, weight: Tensor, squares: InputSquares, scheme: Scheme, largest: Tensor | None = None
    ) -> QuantizedTensor:
        importance = squares.mean_square().reshape(*weight.shape[:-2], weight.shape[-1])
        return quantize_with_search(weight, scheme.weight, self.range_search, importance, largest)


def _notes(squares: InputSquares) -> dict[str, float | str]:
    """What the report says of a site: the inputs seen, of experts the fewest; and where there were none."""
    notes: dict[str, float | str] = {"tokens": int(squares.counts.min())}
    unseen = int((squares.counts == 0).sum())
    if unseen:
        share = f"{unseen} of {len(squares.counts)} matrices: " if len(squares.counts) > 1 else ""
        notes["fallback"] = f"{share}no inputs seen, all columns count alike"
    return notes
