"""Wrong inputs: what a forward raises on them, in the words of who gave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

#: What torch names where the processor's memory is exhausted, which has no error of its own.
_ALLOCATOR = "DefaultCPUAllocator"


@contextmanager
def wrong_inputs(say: Callable[[str], Exception]) -> Iterator[None]:
    """Run a forward on inputs that somebody gave; exhausted memory is no fault of theirs, and raised as it is.

    Args:
        say: Makes the error of the reason, a line without a full stop.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError) as error:  # what other arguments and shapes cause
        if _ALLOCATOR in str(error):
            raise
        raise say(" ".join(str(error).split()).rstrip(".")) from error
