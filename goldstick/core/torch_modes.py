"""What torch keeps for each thread: autocast, gradients, inference mode, and what sees every function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device

_AUTOCAST = tuple(device for device in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(device))


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
