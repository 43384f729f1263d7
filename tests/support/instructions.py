"""The instruction sets of the C++ kernels, for tests that run with each."""

from __future__ import annotations

import pytest

from goldstick.kernels import cpu

_ALL = ("scalar", "avx2", "avx512", "amx")
_BEST = 0 if cpu._C is None else _ALL.index(cpu._C.isa())

#: For tests with a parameter ``isa``; those that this processor lacks are skipped.
every_isa = pytest.mark.parametrize(
    "isa",
    [
        pytest.param(name, marks=pytest.mark.skipif(index > _BEST, reason=f"this processor has no {name}"))
        for index, name in enumerate(_ALL)
    ],
)

#: Those that this processor has, the portable one first.
AVAILABLE = _ALL[: _BEST + 1]
