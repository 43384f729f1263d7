"""Environment variables that goldstick reads, or a library at its request: a value that means nothing is refused."""

from __future__ import annotations

import os
import re

from goldstick.errors import UsageError

#: Variable → what it can be. The last two are of OpenMP: a number of threads, or one for each level of nesting.
_CHOICES = {
    "GOLDSTICK_BACKEND": ("cpu-integer", "cpu", "cpu-float", "triton", "reference", "scaled-mm"),
    "GOLDSTICK_ISA": ("amx", "avx512", "avx2", "scalar"),
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_NUMBERS = re.compile(r" *0*[1-9][0-9]{0,5} *(, *0*[1-9][0-9]{0,5} *)*")


def check_environment() -> None:
    """Refuse values that no reader of these variables knows, before anything is imported that reads them.

    Raises:
        UsageError: There is one; the message names variable, value and remedy.
    """
    for name, known in _CHOICES.items():
        value = os.environ.get(name)
        if value and value not in known:
            raise UsageError(f"{name} is {value!r}; it can be {', '.join(known)}. Set one of these, or unset it.")
    for name in _THREADS:
        value = os.environ.get(name)
        if value and not _NUMBERS.fullmatch(value):
            raise UsageError(f"{name} is {value!r}, which is no number of threads. Set one from 1 on, or unset it.")
