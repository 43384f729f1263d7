"""What a block is given, and which tensor each of its layers receives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import StructureError
from goldstick.structure.calls import ForwardLeft

#: Positional and keyword arguments of one call of a block.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One call of a layer inside a block.

    Attributes:
        module: Path of the layer relative to the block (empty for the block itself).
        tensor: What it received: the first tensor among its arguments. Held, so that no other tensor can take
            its place in memory while the trace is in use.
        key: Equal for two calls exactly when they received the same numbers in the same memory.
    """

    module: str
    tensor: Tensor
    key: tuple[object, ...]


def capture_block_inputs(model: nn.Module, block_path: str, inputs: Mapping[str, Any], *, seed: int = 0) -> Arguments:
    """What the block at ``block_path`` is given when the model runs on ``inputs``; the forward stops there.

    See :func:`capture_inputs`.
    """
    return capture_inputs(model, (block_path,), inputs, seed=seed)[block_path]


def capture_inputs(
    model: nn.Module, paths: Collection[str], inputs: Mapping[str, Any], *, args: tuple[Any, ...] = (), seed: int = 0
) -> dict[str, Arguments]:
    """What each of the blocks ``paths`` is given in one forward on ``args`` and ``inputs``, which stops at the last.

    The model runs in evaluation mode and is left as it was. Caches of keys and values are replaced by
    ``None``. A model on the meta device works too: shapes are computed there, and the tensors are then filled
    with numbers drawn from ``seed`` (see :func:`materialise`).

    Raises:
        StructureError: The forward fails, or ends without calling one of the blocks.
    """
    captured: dict[str, Arguments] = {}

    def hook_for(path: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if path not in captured:
                captured[path] = without_caches(args), without_caches(kwargs)
            if len(captured) == len(paths):
                raise ForwardLeft

        return hook

    handles = [model.get_submodule(path).register_forward_pre_hook(hook_for(path), with_kwargs=True) for path in paths]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    in_order, placed = map_tensors((args, dict(inputs)), lambda tensor: tensor.to(device))
    missing = "ended without calling it"
    try:
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            model(*in_order, **placed)
    except ForwardLeft:
        pass
    except Exception as error:  # any code of the model may fail, in any way
        missing = f"failed first: {type(error).__name__}: {error}"
    finally:
        for handle in handles:
            handle.remove()
    for path in paths:
        if path not in captured:
            raise StructureError(
                f"The inputs of block {path} cannot be captured: the forward of {type(model).__name__} on "
                f"{', '.join(inputs)} {missing}. Pass the inputs that this model wants."
            )
    generator = torch.Generator().manual_seed(seed)
    return {path: map_tensors(captured[path], lambda x: materialise(x, generator)) for path in paths}


def trace_block(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, also: Collection[str] = ()
) -> list[Call]:
    """Run ``block`` once; what each layer received, in order of execution.

    Layers are the modules without children and those that hold parameters themselves (fused experts,
    routers). Two contiguous views of the same memory with the same last dimension, as [batch, tokens,
    features] and [batch · tokens, features], count as the same tensor; a tensor changed in place in between
    does not.

    Args:
        block: The block; not changed.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        also: Paths of further modules to watch.
    """
    calls: list[Call] = []

    def hook_for(path: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensor = next(tensors_in((args, kwargs)), None)
            if tensor is not None:
                calls.append(Call(module=path, tensor=tensor, key=tensor_identity(tensor)))

        return hook

    handles = [
        module.register_forward_pre_hook(hook_for(path), with_kwargs=True)
        for path, module in block.named_modules()
        if path in also or not list(module.children()) or list(module.parameters(recurse=False))
    ]
    try:
        with torch.inference_mode(False), torch.no_grad():
            block(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def materialise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A meta tensor filled with plausible numbers on the CPU; any other tensor unchanged.

    Floats are N(0, 1). Integers count up along the last dimension, as positions do. Booleans are true on and
    below the diagonal, as a causal mask is.
    """
    if not tensor.is_meta:
        return tensor
    shape = tensor.shape
    if tensor.is_floating_point():
        return torch.randn(shape, dtype=torch.float32, generator=generator).to(tensor.dtype)
    if tensor.is_complex():
        return torch.randn(shape, generator=generator, dtype=tensor.dtype)
    if tensor.dtype == torch.bool:
        every = torch.ones(shape, dtype=torch.bool)
        return every.tril() if tensor.ndim >= 2 else every
    if not shape:
        return torch.zeros((), dtype=tensor.dtype)
    return torch.arange(shape[-1]).to(tensor.dtype).expand(shape).contiguous()


def on_device(arguments: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Keyword arguments with all their tensors on a device; those that lie there stay the same objects."""
    moved: dict[str, Any] = map_tensors(dict(arguments), lambda tensor: tensor.to(device))
    return moved


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with every tensor in its tuples, lists, dicts and dataclasses replaced by ``change`` of it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    if not _has_fields(value):
        return value
    changed = {name: map_tensors(item, change) for name, item in _fields(value) if any(True for _ in tensors_in(item))}
    found = copy(value) if changed else value
    for name, item in changed.items():
        object.__setattr__(found, name, item)  # it may be frozen
    return found


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif _has_fields(value):
        for _, item in _fields(value):
            yield from tensors_in(item)


def _has_fields(value: Any) -> bool:
    """Whether a value is a dataclass's, and neither a module nor a cache, whose tensors are their own."""
    return is_dataclass(value) and not isinstance(value, type | nn.Module) and not is_cache(value)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    return ((one.name, getattr(value, one.name)) for one in fields(value) if hasattr(value, one.name))


def samples_in(value: Any) -> int:
    """How many samples the first tensor in a nested value holds that has an axis for them, or 0."""
    return next((tensor.shape[0] for tensor in tensors_in(value) if tensor.ndim), 0)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context; afterwards each module is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def keeping_buffers(model: nn.Module) -> Iterator[None]:
    """Afterwards the buffers of modules that are still there hold what they held, whatever forwards did with them.

    Those of packed weights, which no forward changes, are not copied for it.
    """
    held = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        if "weight_packed" not in module._buffers
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_meta
    ]
    try:
        yield
    finally:
        for module, name, buffer, copy in held:
            if module._buffers.get(name) is None:
                continue  # an edit took it away
            module._buffers[name] = buffer
            with torch.no_grad():
                buffer.copy_(copy)


def is_cache(value: Any) -> bool:
    """Whether an argument is a cache of keys and values; told by the name of its class, whatever library it is of."""
    return type(value).__name__.endswith("Cache")


def two_caches(value: Any) -> type | None:
    """The class of a cache that holds one for each of a decoder's two attentions; ``None`` of anything else."""
    return type(value) if is_cache(value) and hasattr(value, "self_attention_cache") else None


def is_filled(value: Any) -> bool:
    """Whether an argument is a cache of keys and values that holds some."""
    return is_cache(value) and hasattr(value, "get_seq_length") and bool(value.get_seq_length())


def without_caches(value: Any) -> Any:
    """A copy that later in-place changes cannot reach, without caches."""
    if is_cache(value):
        return None
    if isinstance(value, dict):
        return {key: without_caches(item) for key, item in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(without_caches(item) for item in value)
    return map_tensors(value, lambda tensor: tensor.detach().clone())


def tensor_identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two tensors exactly when they are the same numbers in the same memory; hold them while comparing."""
    # What was made in inference mode counts no changes, and cannot be changed outside it.
    where = (tensor.data_ptr(), None if tensor.is_inference() else tensor._version, tensor.dtype)
    if tensor.is_contiguous() and tensor.ndim > 0:
        return (*where, tensor.numel() // max(tensor.shape[-1], 1), tensor.shape[-1])
    return (*where, tuple(tensor.shape), tensor.stride())
