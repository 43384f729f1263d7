"""Judged rows: rows of the layers of an input group, and the inputs by which their errors are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from goldstick.algorithms.base import Member
from goldstick.algorithms.hessian_factor import uncompensated
from goldstick.core.inputs import SAMPLE, InputObserver


@dataclass(frozen=True, kw_only=True)
class JudgedRows:
    """Rows of one layer or of several, and statistics of the inputs x that their errors are judged by.

    Attributes:
        members: The layers, of which a part's rows alone are meant where it weights its inputs.
        size: What their error is multiplied by.
        square: E[xⱼ²], float64 [in].
        sample: Some inputs as they are, float [k, in].
        moment: E[x xᵀ], float64 [in, in], of at most 512 channels; ``None`` for more.
        left: E[xⱼ²] without what the inputs that GPTQ takes later predict, float64 [in]; ``None`` where no layer is
            compensated, or that is not known.
        roots: What these are multiplied by, float64 [k, 1]; ``None`` for nothing.
    """

    members: Sequence[Member]
    size: float
    square: Tensor
    sample: Tensor
    moment: Tensor | None
    left: Tensor | None
    roots: Tensor | None = None

    @classmethod
    def of(cls, members: Sequence[Member], observer: InputObserver, size: float = 1.0) -> JudgedRows:
        """Layers judged by what an observer has seen.

        Raises:
            QuantizationError: More than 1 % of the inputs hold NaN or infinity.
        """
        device = members[0].weight.device
        exact = observer.in_features <= SAMPLE
        moment = (observer.hessian() / 2).to(device) if exact else None
        square, sample = observer.mean_square().to(device), observer.sample(SAMPLE).to(device)
        grids = [member.scheme.weight for member in members if member.compensated and not member.scheme.activation]
        left = uncompensated(observer.take_hessian().to(device), grids[0]) if grids else None
        left = None if left is None else left / 2  # in units of E[x xᵀ]
        return cls(members=members, size=size, square=square, sample=sample, moment=moment, left=left)


def judged_rows(members: Sequence[Member], observer: InputObserver) -> list[JudgedRows]:
    """The rows of a group's layers: all of them, or part by part where each layer weights its inputs.

    Args:
        members: The layers.
        observer: Their inputs as they are, by which all are judged where one layer cannot weight them.
    """
    found: list[JudgedRows] = []
    plain = observer.sample(SAMPLE).to(members[0].weight.device)
    for member in members:
        state = member.weighted()
        if state is None or any(seen.tokens != observer.tokens for _, seen in state.parts):
            return [JudgedRows.of(members, observer)]
        for (rows, seen), size in zip(state.parts, state.sizes, strict=True):
            part = JudgedRows.of([replace(member, weight=member.weight[rows])], seen, size)
            seen.release()
            lengths = [one.double().norm(dim=-1, keepdim=True) for one in (part.sample, plain)]
            roots = torch.where(lengths[1] > 0, lengths[0] / lengths[1], 0)
            found.append(replace(part, sample=plain, roots=roots))
    return found
