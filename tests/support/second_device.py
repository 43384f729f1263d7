"""A device of tests: its tensors lie in the processor's memory, and meet no others without an error.

torch's own devices say so too where a tensor of another one comes to an operator, but there is none on most machines.
Here tensors of the device ``gold`` hold one of the CPU each; every operator runs on those and gives tensors like them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from goldstick.algorithms import ranges
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.load.load import load_float
from goldstick.structure.trace import map_tensors, tensors_in

NAME = "gold"
_DEVICES = 1
#: Operators that take tensors of two devices: copies, and indices on the CPU.
_BETWEEN = ("aten::_to_copy", "aten::copy_", "aten::index", "aten::_index_put")


class OnDevice(Tensor):
    """A tensor of the device, which holds one of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, index: int) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=torch.device(NAME, index), requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {self.device}"

    def data_ptr(self) -> int:
        """Where its numbers lie."""
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """What its numbers lie in."""
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        """Its numbers; torch has this for no subclass."""
        return self.inner.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = OnDevice(self.inner.detach().clone(), self.device.index)
        memo[id(self)] = copied = torch.nn.Parameter(copied, False) if isinstance(self, torch.nn.Parameter) else copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.inner.__reduce_ex__(protocol)  # as what is loaded onto the CPU


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = func.name()
    tensors = list(tensors_in((args, kwargs)))
    held = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    devices = {tensor.device for tensor in held}
    devices |= {tensor.device for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.dim()}
    if held and len(devices) > 1 and not name.startswith(_BETWEEN):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {sorted(map(str, devices))}")
    asked = kwargs.get("device")
    if asked is not None and torch.device(asked).type == NAME:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    place = torch.device(asked) if asked is not None else next((tensor.device for tensor in held), None)
    if name.startswith("aten::copy_") and isinstance(args[0], Tensor):
        place = args[0].device
    known = {id(tensor.inner): tensor for tensor in held}
    inner_args, inner_kwargs = map_tensors(
        (args, kwargs), lambda leaf: leaf.inner if isinstance(leaf, OnDevice) else leaf
    )
    output = func(*inner_args, **inner_kwargs)
    if place is None or place.type != NAME:
        return output
    return map_tensors(output, lambda leaf: known[id(leaf)] if id(leaf) in known else OnDevice(leaf, place.index or 0))


def install() -> None:
    """Make the name known to torch, once. What transformers prepares with its first model is not to see the mode."""
    load_float(reference_directory())
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME)
        torch.gold.device_count = lambda: _DEVICES  # type: ignore[attr-defined]


def few_candidates() -> AbstractContextManager[Any]:
    """Inside, searches for ranges try two: each takes the same operators, all of which pass through Python."""
    return patch.object(ranges, "_ratios", lambda grid: (1.0, 0.9))


@contextlib.contextmanager
def second_device() -> Iterator[None]:
    """Inside, there are devices of the name, as many as there are processes."""
    install()
    plain = torch.tensor

    def tensor(data: Any, *, device: Any = None, **settings: Any) -> Tensor:
        made = plain(data, **settings)  # which lets no mode see where its numbers go
        return made if device is None else made.to(device)

    torch.tensor = tensor
    try:
        with _Mode():
            yield
    finally:
        torch.tensor = plain
