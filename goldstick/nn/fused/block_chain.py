"""Decoder blocks that follow each other run in one call, before the later ones are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from goldstick.nn.fused.cache_room import Room
    from goldstick.nn.fused.decode_block import FusedDecodeBlock


@dataclass
class BlockState:
    """A block, prepared, and where the token goes in the layer of a cache that it is going to extend."""

    owner: FusedDecodeBlock
    block: Any
    room: Room


@dataclass
class _Held:
    """What blocks gave that were not called yet: the next one's state and input, and what it has to be called with."""

    states: list[BlockState]
    outputs: Sequence[Tensor]
    place: int
    version: int
    angles: object
    mask: object
    cache: Any


class BlockChain:
    """Blocks in their order, each of which is given the output of the one before.

    The first that is called runs those behind it, too. Each of these is called in its turn by the model, and takes what
    is there if it is given what it was computed from: the very tensor, unchanged, the same angles, mask and cache. If
    not, it runs anew, and what was computed before is forgotten, of which the cache shows nothing; the two blocks are
    then no longer run together. What changes inside of a block while a token is on its way is seen with the next token.

    Args:
        blocks: The blocks.
    """

    def __init__(self, blocks: Sequence[FusedDecodeBlock]) -> None:
        self.blocks = tuple(blocks)
        self._place = {id(block): place for place, block in enumerate(self.blocks)}
        self._parted: set[int] = set()  # places of blocks that are not given what the block before gave
        self._held: _Held | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"blocks": self.blocks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.blocks = state["blocks"]
        self._place = {id(block): place for place, block in enumerate(self.blocks)}
        self._parted, self._held = set(), None

    def following(self, first: FusedDecodeBlock, own: BlockState, cache: Any, x: Tensor) -> list[BlockState]:
        """The blocks behind one that can run with it."""
        self._held, found = None, list[BlockState]()
        if x.is_inference():  # its changes cannot be seen
            return found
        start = self._place[id(first)] + 1
        for place in range(start, len(self.blocks)):
            block = self.blocks[place]
            layer: Any = cache.layers[block.attention.layer] if block.attention.layer < len(cache.layers) else None
            if place in self._parted or type(layer) is not type(own.room.layer) or not layer.is_initialized:
                break
            state = block.state_for(layer, x.dtype)
            if state is None or state.room.shape != own.room.shape or not block.follows(first):
                break
            found.append(state)
        return found

    def hold(self, states: list[BlockState], outputs: Sequence[Tensor], angles: Any, mask: Any, cache: Any) -> None:
        """Keep what the blocks behind the first gave until they are called."""
        if len(states) > 1:
            self._held = _Held(states, outputs, 1, outputs[0]._version, angles, mask, cache)

    def taken(self, block: FusedDecodeBlock, x: Tensor, angles: Any, mask: Any, cache: Any) -> Tensor | None:
        """What is there for a block that is called, or ``None`` where it has to run."""
        held = self._held
        if held is None:
            return None
        state = held.states[held.place]
        if (
            state.owner is not block
            or held.outputs[held.place - 1] is not x
            or x._version != held.version
            or angles is not held.angles
            or mask is not held.mask
            or cache is not held.cache
            or cache.layers[block.attention.layer] is not state.room.layer
            or not state.room.fits()
        ):
            self._held = None
            self._parted.add(self._place[id(state.owner)])
            return None
        found = held.outputs[held.place]
        state.room.extend()
        held.place += 1
        if held.place == len(held.states):
            self._held = None
        return found
