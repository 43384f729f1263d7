"""What the blocks of a network are called with, found without running them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.inference_mode import ordinary
from goldstick.core.torch_modes import TorchModes
from goldstick.errors import StructureError
from goldstick.structure.calls import ForwardLeft, standing_in
from goldstick.structure.trace import (
    is_cache,
    is_filled,
    map_tensors,
    tensor_identity,
    tensors_in,
    two_caches,
    without_caches,
)

#: Name of the hidden state where a block takes it by keyword.
_HIDDEN = "hidden_states"


@dataclass(frozen=True, kw_only=True)
class BlockCall:
    """A block's arguments for one batch, the hidden state left out.

    Attributes:
        args: Positional arguments after the hidden state.
        kwargs: Keyword arguments: masks, positions, …
        by_keyword: Whether the hidden state is passed as ``hidden_states=``.
        cache: Where the model passed a cache of keys and values, in whose place there is ``None`` now: a name in
            ``kwargs`` or a place in ``args``; ``None`` where it passed no cache.
        two_caches: The class of that cache, where it holds one for each of a decoder's two attentions.
        rest: What blocks give behind their hidden state; ``None`` where they give nothing else.
        overwrites: Whether blocks write into what they are given, so that each run needs a copy.
        modes: What torch has for the thread where the model calls the block, such as autocast around all blocks.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    by_keyword: bool
    cache: str | int | None = None
    two_caches: type | None = None
    rest: tuple[Any, ...] | None = None
    overwrites: bool = False
    modes: TorchModes = field(default_factory=TorchModes.here)

    def arguments(self, hidden: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments, with a given hidden state."""
        if self.by_keyword:
            return self.args, {**self.kwargs, _HIDDEN: hidden}
        return (hidden, *self.args), dict(self.kwargs)

    def argument(self, block: nn.Module, name: str) -> Any:
        """What a parameter of the block's forward is given besides the hidden state; ``None`` where it is not."""
        if name in self.kwargs:
            return self.kwargs[name]
        if not self.args:
            return None
        names = list(inspect.signature(block.forward).parameters)
        place = names.index(name) - (not self.by_keyword) if name in names else len(self.args)
        return self.args[place] if place < len(self.args) else None

    def run(self, block: nn.Module, hidden: Tensor) -> Tensor:
        """The block's next hidden state."""
        args, kwargs = self.arguments(hidden)
        if self.overwrites:
            args, kwargs = map_tensors((args, kwargs), torch.clone)
        with self.modes.for_a_call().entered():
            found = hidden_of(block(*args, **kwargs))
        return found if torch.is_grad_enabled() else found.detach()


def hidden_of(output: Any) -> Tensor:
    """The hidden state in a block's output: the output itself, or the first of a tuple."""
    first = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(first, Tensor):
        raise StructureError(f"A block gave {type(first).__name__} where its next hidden state was expected.")
    return first


def block_calls(
    model: nn.Module,
    blocks: Sequence[str],
    inputs: Mapping[str, Any],
    known: list[Tensor] | None = None,
    *,
    bare: bool = False,
) -> tuple[Tensor, dict[str, BlockCall]]:
    """The first block's hidden state and every block's other arguments, for one batch.

    The model runs with each block but the first replaced by one that notes its arguments and hands its hidden state
    on. So hardly anything is computed, each block gets the masks and positions that the model gives to just that block,
    and what the first block computes for all (T5's position bias) is passed along.

    Args:
        model: The model, in memory.
        blocks: Paths of blocks that feed one another.
        inputs: Keyword arguments of the model's forward.
        known: Arguments seen before. Equal ones are kept once, and new ones are added: a mask for each block of each
            batch would be gigabytes.
        bare: Whether blocks are known to give their hidden state alone; then not even the first one runs, nor
            anything behind the last.

    Raises:
        StructureError: The model does not call its blocks in this way, or one of them more than once; it does
            something with a hidden state between two blocks; they hand on a second one beside it, share layers, or read
            a cache that was filled before them.
    """
    _refuse_shared_layers(model, blocks)
    calls: dict[str, BlockCall] = {}
    starts: list[Tensor] = []
    handed: list[Tensor] = []  # what the block before gave
    rest: list[Any] = []
    overwrites = False
    seen = [] if known is None else known

    def kept(value: Any) -> Any:
        return map_tensors(without_caches(value), lambda tensor: _once(tensor, seen))

    def stub(path: str, block: nn.Module) -> Any:
        real = block.forward  # its class's, or one that somebody gave this block

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal overwrites
            if torch.is_inference_mode_enabled():  # what is made in it counts no writing, and allows none outside it
                with torch.inference_mode(False), torch.no_grad():
                    return forward(*map_tensors(args, ordinary), **map_tensors(kwargs, ordinary))
            by_keyword = _HIDDEN in kwargs
            hidden = kwargs[_HIDDEN] if by_keyword else args[0]
            if path in calls:
                raise StructureError(f"The model's forward calls {path} more than once.")
            if path != blocks[len(calls)]:
                raise StructureError(f"The model's forward calls {path} before {blocks[len(calls)]}.")
            if not calls and any(is_filled(value) for value in (*args, *kwargs.values())):
                raise StructureError(f"{path} reads keys and values that another part of the model has cached before.")
            if handed and tensor_identity(hidden) != tensor_identity(handed[-1]):
                raise StructureError(f"{path} is not given what the block before it gives, but something made of it.")
            others = {name: value for name, value in kwargs.items() if name != _HIDDEN}
            rest_of_args = args if by_keyword else args[1:]
            cache, kind = _cache_in(rest_of_args, others)
            calls[path] = BlockCall(
                args=kept(rest_of_args), kwargs=kept(others), by_keyword=by_keyword, cache=cache, two_caches=kind
            )
            if not starts:
                starts.append(hidden.detach().clone())
                if bare:
                    rest.append(None)
                    handed.append(hidden)
            if bare:
                if len(calls) == len(blocks):
                    raise ForwardLeft
                return hidden
            if not rest:
                before = _versions((args, kwargs))
                output = real(*args, **kwargs)
                overwrites = _versions((args, kwargs)) != before
                if hidden_of(output).shape != hidden.shape:
                    raise StructureError(f"{path} gives its successor another shape than it got.")
                rest.append(output[1:] if isinstance(output, tuple) else None)
                handed.append(hidden_of(output))
                return output
            if len(calls) == 2:
                _refuse_second_state(model.get_submodule(blocks[0]), rest[0], args, kwargs)
            return hidden if rest[0] is None else (hidden, *rest[0])

        return forward

    try:
        with standing_in(model, {path: stub(path, model.get_submodule(path)) for path in blocks}):
            model(**inputs)
    except ForwardLeft:
        pass
    except StructureError:
        raise
    except Exception as error:  # any code of the model may fail on hidden states that no block has worked on
        raise StructureError(f"The model does not run with its blocks passed over: {error}") from error
    missing = [path for path in blocks if path not in calls]
    if missing:
        raise StructureError(f"The model's forward does not call its block {missing[0]}.")
    return starts[0], {path: replace(call, rest=rest[0], overwrites=overwrites) for path, call in calls.items()}


def _refuse_shared_layers(model: nn.Module, blocks: Sequence[str]) -> None:
    """Refuse blocks that run the same layer: what the others give it would not count."""
    owner: dict[nn.Module, str] = {}
    for path in blocks:
        for layer in model.get_submodule(path).modules():
            holds_matrix = any(parameter.ndim >= 2 for parameter in layer.parameters(recurse=False))
            if holds_matrix and owner.setdefault(layer, path) != path:
                raise StructureError(f"{path} runs layers of {owner[layer]}.")


def _refuse_second_state(
    block: nn.Module, rest: tuple[Any, ...] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Refuse what a block gives behind its hidden state and its successor is given, if blocks change it on their way.

    T5's position bias is handed on as it is; a residual that every block adds to would be that of the first for all.

    Args:
        block: The first block.
        rest: What it gave behind its hidden state.
        args: Positional arguments of its successor, which it is tried with.
        kwargs: The same, by keyword.
    """
    given = [*tensors_in((args, kwargs))]
    places = [place for place, value in enumerate(rest or ()) if any(value is tensor for tensor in given)]
    if not places:
        return
    output = type(block).forward(block, *without_caches(args), **without_caches(kwargs))
    if not all(torch.equal(output[1 + place], (rest or ())[place]) for place in places):
        raise StructureError("The model's blocks hand on a second state beside the hidden one.")


def run_around(
    model: nn.Module, blocks: Sequence[str], final: Tensor, rest: tuple[Any, ...] | None, run: Callable[[], Any]
) -> Any:
    """Run a model whose blocks have done their work already: what comes after them is given ``final``.

    Args:
        model: The model.
        blocks: Paths of blocks that feed one another.
        final: What the last of them gives.
        rest: What they give behind it.
        run: Calls the model.
    """

    def last(*_: Any, **__: Any) -> Any:
        return final if rest is None else (final, *rest)

    with standing_in(model, dict.fromkeys(blocks, last)):
        return run()


def _cache_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str | int | None, type | None]:
    """Where there is a cache among arguments, and its class where it is two."""
    places: list[tuple[str | int, Any]] = [*enumerate(args), *kwargs.items()]
    return next(((place, two_caches(value)) for place, value in places if is_cache(value)), (None, None))


def _versions(value: Any) -> list[int]:
    """How often each of the tensors in some arguments was written to, as far as that is counted."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_in(value)]


def _once(tensor: Tensor, seen: list[Tensor]) -> Tensor:
    """The tensor among ``seen`` that equals this one; or this one, added to them."""
    for other in seen:
        alike = (other.dtype, other.device, other.shape) == (tensor.dtype, tensor.device, tensor.shape)
        if alike and torch.equal(other, tensor):
            return other
    seen.append(tensor)
    return tensor
