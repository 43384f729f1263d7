"""The warning of an installation without compiled kernels, which the command line shows as a note."""

from __future__ import annotations


class SlowKernelsWarning(RuntimeWarning):
    """What runs gives the same and takes much longer, since the compiled kernels are not there."""
