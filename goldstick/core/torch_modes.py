"""What torch keeps for each thread: autocast, gradients, inference mode, and what sees every function."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device

_AUTOCAST = tuple(device for device in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(device))

_LOCK = threading.Lock()
#: Of dynamo, for the whole process: what gives back the one before, and an entry for each who is inside.
_STANCE: list[Any] = []


@dataclass(frozen=True, kw_only=True)
class TorchModes:
    """The modes of a thread.

    Attributes:
        autocast: For each type of device, whether autocast is on, and its dtype.
        keeps_casts: Whether autocast keeps the weights that it has cast.
        gradients: Whether gradients are recorded.
        inference: Whether inference mode is on.
        functions: What sees every function of torch, the innermost last.
        device: That of ``with torch.device(…)``.
    """

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    keeps_casts: bool
    gradients: bool
    inference: bool
    functions: tuple[TorchFunctionMode, ...]
    device: torch.device | None

    @classmethod
    def here(cls) -> TorchModes:
        """Those of this thread, now."""
        return cls(
            autocast=tuple((one, torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in _AUTOCAST),
            keeps_casts=torch.is_autocast_cache_enabled(),
            gradients=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            functions=_functions(),
            device=default_device.CURRENT_DEVICE,
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside the context the thread has these; afterwards those that it had, whatever was done inside."""
        before = TorchModes.here()
        try:
            with torch.inference_mode(self.inference):  # gives back what it found, whoever changed it meanwhile
                self._set()
                yield
        finally:
            before._set()

    def for_a_call(self) -> TorchModes:
        """These for a module that is called by itself, but gradients as they are now, or as here where on here."""
        now = TorchModes.here()
        gradients = now.gradients or (self.gradients and not now.inference)
        return replace(self, gradients=gradients, inference=now.inference, keeps_casts=False)

    def _set(self) -> None:
        """Have this thread take them, but for inference mode."""
        torch.clear_autocast_cache()  # weights may have changed since they were cast
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.keeps_casts)
        torch._C._set_grad_enabled(self.gradients)
        if (seeing := _functions()) != self.functions:
            for _ in seeing:
                torch._C._pop_torch_function_stack()
            for mode in self.functions:
                torch._C._push_on_torch_function_stack(mode)
        default_device.CURRENT_DEVICE = self.device


def _functions() -> tuple[TorchFunctionMode, ...]:
    """What sees every function of torch in this thread."""
    return tuple(torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack()))


@contextmanager
def as_written() -> Iterator[None]:
    """Inside, the caller's autocast is off, and what was compiled runs as its code says.

    Autocast would round products of what is measured, and keep weights that it cast before they were changed; dynamo
    would pass by the hooks that watch layers. A forward may switch autocast on for itself.
    """
    here = TorchModes.here()
    off = tuple((device, False, dtype) for device, _, dtype in here.autocast)
    with _uncompiled(), replace(here, autocast=off, keeps_casts=False).entered():
        yield


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Inside, in all threads, compiled functions run as they are written; until the last thread inside leaves."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        yield
        return
    with _LOCK:
        if not _STANCE:
            _STANCE.append(torch.compiler.set_stance("force_eager"))
        _STANCE.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _STANCE.pop()
            if len(_STANCE) == 1:
                _STANCE.pop().__exit__(None, None, None)
