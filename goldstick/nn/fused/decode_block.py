"""A decoder block of one new token for each sequence in one call: what Python does between its layers takes longer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.kernels import cpu
from goldstick.kernels.input_bits import grouped_rounding
from goldstick.kernels.prepared import versions
from goldstick.nn.fused.block_chain import BlockChain, BlockState
from goldstick.nn.fused.cache_room import Place, room_in
from goldstick.nn.fused.feed_forward import GatedForward, NormForward
from goldstick.nn.fused.module_guard import ModuleGuard
from goldstick.nn.fused.separate_caches import NotTogetherError, SeparateCaches
from goldstick.nn.fused.token_attention import TokenAttention
from goldstick.nn.linear import QuantizedLinear

_WEIGHTS = ("weight_packed", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point", "bias", "weight")
_COPIED = ("weight_packed", "weight_scale", "weight_zero_point")


class FusedDecodeBlock:
    """A faster forward of h = x + attention(norm(x)), y = h + feed_forward(norm(h)), for one token a sequence.

    It gives the bits of its parts' own faster forwards, and leaves all else to the module's own: other inputs and
    caches, parts that were hooked, replaced or given other forwards, layers that do not run in C++. Weights are read
    where they lie; after tensors were replaced or moved it is prepared anew, and it keeps none alive.

    Args:
        module: The block.
        attention: The faster forward of its attention.
        feed: That of its feed-forward.
        norms: Those of the norms before the attention and before the feed-forward.
    """

    def __init__(
        self, module: nn.Module, attention: TokenAttention, feed: GatedForward, norms: tuple[NormForward, NormForward]
    ) -> None:
        self.module, self.attention, self.feed, self.norms = module, attention, feed, norms
        self.inside = ModuleGuard(module)
        self.chain: BlockChain | None = None
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("module", "attention", "feed", "norms", "inside", "chain")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()  # a copy prepares itself

    def _forget(self, _: object = None) -> None:
        self._block: Any = None
        self._rounding = ""  # of inputs, as it was prepared
        self._shape = (0, 0, 0)  # width, heads of the cache and their channels
        # Each tensor that the block reads: who holds it, by which name, which it is, and its address where it is read.
        self._tensors: list[tuple[dict[str, Any], str, Callable[[], Tensor | None], int | None]] = []
        # Those of which the block reads a copy, and how often they were changed.
        self._copied: list[tuple[Callable[[], Tensor | None], int | None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's own."""
        found = self.of_one_token(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs) if found is None else found

    def of_one_token(self, x: Tensor | None = None, *more: Any, **given: Any) -> Tensor | None:
        """The block's output for one token a sequence, or ``None`` where this is another case."""
        x = given.get("hidden_states", x)
        angles, cache = given.get("position_embeddings"), given.get("past_key_values")
        if x is None or more or cache is None or angles is None or given.get("output_attentions"):
            return None
        mask = given.get("attention_mask")
        if type(cache) is SeparateCaches:
            return self._of_each(x, angles, mask, cache)
        if self.chain is not None:
            found = self.chain.taken(self, x, angles, mask, cache)
            if found is not None:
                return found
        layer = self.attention.layer_for(x, angles, mask, cache)
        own = None if layer is None else self.state_for(layer, x.dtype)
        if own is None:
            return None
        cos, sin = angles
        batch, kv_heads, _, channels = own.room.shape
        if (len(x), x.shape[2], kv_heads, channels) != (batch, *self._shape):
            return None
        if cos.shape not in ((1, 1, channels), (batch, 1, channels)):
            return None
        if sin.shape != cos.shape or sin.dtype is not x.dtype:
            return None
        states = [own] if self.chain is None else [own, *self.chain.following(self, own, cache, x)]
        places = [[state.room.place()] for state in states]
        outputs = _run([state.block for state in states], places, x.contiguous(), cos.contiguous(), sin.contiguous())
        if outputs is None:
            return None
        own.room.extend()
        if self.chain is not None:
            self.chain.hold(states, outputs, angles, mask, cache)
        return outputs[0]

    def _of_each(self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None, caches: SeparateCaches) -> Tensor:
        """The block's output for a token of each of several caches, which do not show it until they are extended.

        Raises:
            NotTogetherError: This is another case.
        """
        cos, sin = angles
        states = [self._state_of_one(x, angles, mask, cache) for cache in caches.caches]
        alike = len(x) == len(states) and cos.shape == sin.shape == (len(x), 1, self._shape[2])
        if not alike or sin.dtype is not x.dtype or x.shape[2] != self._shape[0]:
            raise NotTogetherError
        if any((state.room.shape[1], state.room.shape[3]) != self._shape[1:] for state in states):
            raise NotTogetherError
        places = [[state.room.place() for state in states]]
        outputs = _run([states[0].block], places, x.contiguous(), cos.contiguous(), sin.contiguous())
        if outputs is None:
            raise NotTogetherError
        caches.written += states
        return outputs[0]

    def _state_of_one(self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> BlockState:
        layer: Any = None if mask is not None else self.attention.layer_for(x, angles, None, cache)
        state = None if layer is None else self.state_for(layer, x.dtype)
        if state is None or state.room.shape[0] != 1:
            raise NotTogetherError
        return state

    def state_for(self, layer: Any, dtype: torch.dtype) -> BlockState | None:
        """What a run of this block on a layer of a cache needs, or ``None`` where it cannot run as one."""
        block = self._prepared(dtype) if self.unchanged_modules() else None
        room = None if block is None else room_in(layer, dtype)
        return None if room is None else BlockState(self, block, room)

    def unchanged_modules(self) -> bool:
        """Whether nothing inside was replaced, hooked or given another forward since."""
        return self.inside.holds()

    def follows(self, other: FusedDecodeBlock) -> bool:
        """Whether it attends as another block, and is what its module runs."""
        mine, others = self.attention, other.attention
        return (
            self.module.__dict__.get("forward") is self
            and not mine.module.training
            and mine.way == others.way
            and mine.config is others.config
            and mine.query.shared is not None
            and self._shape == other._shape
        )

    def _prepared(self, dtype: torch.dtype) -> Any:
        """The block in C++, or ``None`` where its layers do not run there, or gradients are wanted."""
        learning, rounding = torch.is_grad_enabled(), grouped_rounding()
        if (
            self._block is None
            or rounding != self._rounding
            or not cpu._C.tensors_unchanged(self._tensors, self._copied, learning)
        ):
            self._prepare()
            self._rounding = rounding
            if self._block is None or not cpu._C.tensors_unchanged(self._tensors, self._copied, learning):
                return None
        return self._block if self.norms[0].module._parameters["weight"].dtype is dtype else None  # type: ignore[union-attr]

    def _watch(self, copied: list[Tensor | None]) -> None:
        """Note where each tensor lies that the block reads, and which it is; of what it has a copy, which it is."""
        owners = [store for child in self.module.modules() for store in (child._buffers, child._parameters)]
        self._tensors = [
            (
                store,
                name,
                self._reference(one),
                0 if one is None else one.data_ptr(),
            )
            for store in owners
            for name in _WEIGHTS
            if name in store
            for one in (store[name],)
        ]
        there = [tensor for tensor in copied if tensor is not None]
        self._copied = list(zip(map(self._reference, there), versions(there), strict=True))

    def _reference(self, tensor: Tensor | None) -> Callable[[], Tensor | None]:
        """What gives a tensor as long as others hold it; the block in C++ goes with it."""
        return _nothing if tensor is None else weakref.ref(tensor, self._forget)

    def _prepare(self) -> None:
        self._block = None
        wide, gated = self.attention.query.shared, self.feed.gate.shared
        output, down = self.attention.output, self.feed.down
        if wide is None or gated is None or not isinstance(output, QuantizedLinear):
            return
        if not isinstance(down, QuantizedLinear) or output.shared is not None or down.shared is not None:
            return
        projections, pair = wide.wholes(), gated.wholes()
        if len(pair) != 1:
            return
        linears = *projections, output, *pair, down
        layers = [layer.ready() for layer in linears]
        weights = [norm.module._parameters["weight"] for norm in self.norms]
        dtype = output.weight_scale.dtype
        if any(layer is None for layer in layers):
            return
        if not all(weight is not None and weight.dtype is dtype and weight.is_contiguous() for weight in weights):
            return
        first, second = self.norms
        channels = self.attention.channels
        kv_heads = (sum(whole.out_features for whole in projections) // channels - self.attention.heads) // 2
        self._shape = output.out_features, kv_heads, channels
        self._block = cpu._C.PreparedBlock(
            layers[: len(projections)],
            *layers[len(projections) :],
            *[weight.data_ptr() for weight in weights if weight is not None],
            first.epsilon,
            second.epsilon,
            self.attention.heads,
            kv_heads,
            channels,
            self.attention.scaling,
        )
        copied = [linear for linear, layer in zip(linears, layers, strict=True) if layer.interleaved]
        self._watch([getattr(linear, name) for linear in copied for name in _COPIED])


def _run(blocks: list[Any], places: list[list[Place]], x: Tensor, cos: Tensor, sin: Tensor) -> Sequence[Tensor] | None:
    """The output of each block, all of which run in one call; ``None`` where another backend is named."""
    y = x.new_empty((len(blocks), *x.shape))
    done = cpu._C.run_blocks(
        blocks,
        x.data_ptr(),
        y.data_ptr(),
        len(x),
        cos.data_ptr(),
        sin.data_ptr(),
        cos.shape[-1] if cos.shape[0] > 1 else 0,
        places,
        torch.get_num_threads(),
    )
    return y.unbind() if done else None


def _nothing() -> None:
    return None
