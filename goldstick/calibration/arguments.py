"""What the blocks of a network are called with, found without running them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import StructureError
from goldstick.structure.trace import is_cache, map_tensors, without_caches

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
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    by_keyword: bool
    cache: str | int | None = None

    def arguments(self, hidden: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments, with a given hidden state."""
        if self.by_keyword:
            return self.args, {**self.kwargs, _HIDDEN: hidden}
        return (hidden, *self.args), dict(self.kwargs)

    def run(self, block: nn.Module, hidden: Tensor) -> Tensor:
        """The block's next hidden state."""
        args, kwargs = self.arguments(hidden)
        return hidden_of(block(*args, **kwargs))


def hidden_of(output: Any) -> Tensor:
    """The hidden state in a block's output: the output itself, or the first of a tuple."""
    first = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(first, Tensor):
        raise StructureError(f"A block gave {type(first).__name__} where its next hidden state was expected.")
    return first


def block_calls(
    model: nn.Module, blocks: Sequence[str], inputs: Mapping[str, Any], known: list[Tensor] | None = None
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

    Raises:
        StructureError: The model does not call its blocks in this way.
    """
    calls: dict[str, BlockCall] = {}
    starts: list[Tensor] = []
    rest: list[Any] = []
    seen = [] if known is None else known

    def kept(value: Any) -> Any:
        return map_tensors(without_caches(value), lambda tensor: _once(tensor, seen))

    def stub(path: str, block: nn.Module) -> Any:
        real = type(block).forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            by_keyword = _HIDDEN in kwargs
            hidden = kwargs[_HIDDEN] if by_keyword else args[0]
            others = {name: value for name, value in kwargs.items() if name != _HIDDEN}
            rest_of_args = args if by_keyword else args[1:]
            calls[path] = BlockCall(
                args=kept(rest_of_args),
                kwargs=kept(others),
                by_keyword=by_keyword,
                cache=_cache_place(rest_of_args, others),
            )
            if not starts:
                starts.append(hidden.detach().clone())
                output = real(block, *args, **kwargs)
                if hidden_of(output).shape != hidden.shape:
                    raise StructureError(f"{path} gives its successor another shape than it got.")
                rest.append(output[1:] if isinstance(output, tuple) else None)
                return output
            return hidden if rest[0] is None else (hidden, *rest[0])

        return forward

    modules = {path: model.get_submodule(path) for path in blocks}
    try:
        for path, module in modules.items():
            module.forward = stub(path, module)
        model(**inputs)
    except StructureError:
        raise
    except Exception as error:  # any code of the model may fail on hidden states that no block has worked on
        raise StructureError(f"The model does not run with its blocks passed over: {error}") from error
    finally:
        for module in modules.values():
            del module.forward
    missing = [path for path in blocks if path not in calls]
    if missing:
        raise StructureError(f"The model's forward does not call its block {missing[0]}.")
    return starts[0], calls


def _cache_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | int | None:
    places: list[tuple[str | int, Any]] = [*enumerate(args), *kwargs.items()]
    return next((place for place, value in places if is_cache(value)), None)


def _once(tensor: Tensor, seen: list[Tensor]) -> Tensor:
    """The tensor among ``seen`` that equals this one; or this one, added to them."""
    for other in seen:
        alike = (other.dtype, other.device, other.shape) == (tensor.dtype, tensor.device, tensor.shape)
        if alike and torch.equal(other, tensor):
            return other
    seen.append(tensor)
    return tensor
