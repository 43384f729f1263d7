"""Blocks larger than a device: layers rest in the processor's memory, and are on the device while they are used."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from goldstick.structure.network import Network

_REST = torch.device("cpu")


class RestingLayers:
    """Layers whose weights rest in the processor's memory until they are called or read.

    Those that were used last stay on the device as long as there is room for them together; one layer is there however
    large it is. A weight lies in one place at a time, so that whatever changes it changes the weight.

    Args:
        paths: The layers, in all blocks. None holds another, and all that is done with their weights is done by their
            own forwards.
        device: Where they are used.
        room: Bytes of their weights that may be there together.
    """

    def __init__(self, paths: Collection[str], device: torch.device, room: int) -> None:
        self.paths = frozenset(paths)
        self._device, self._room = device, room
        self._watched: set[nn.Module] = set()  # of the block at hand, and of its copies
        self._here: dict[nn.Module, None] = {}  # the one that was used last comes last
        self._handles: list[RemovableHandle] = []

    def watch(self, block: str, module: nn.Module) -> None:
        """Have the layers of a block, or of a copy of it, on the device whenever they are called."""
        for path, layer in module.named_modules(prefix=block):
            if path in self.paths:
                move_to(layer, _REST, recurse=False)  # a copy has some where those of the block are
                self._here.pop(layer, None)
                self._watched.add(layer)
                self._handles.append(layer.register_forward_pre_hook(lambda layer, _: self.have(layer)))

    def leave(self) -> None:
        """Forget a block whose turn is over."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched.clear()
        self._here.clear()

    def nbytes(self) -> int:
        """Bytes of layers that are on the device now."""
        return sum(map(_bytes, self._here))

    def have(self, layer: nn.Module) -> None:
        """Have a layer on the device, in the place of those that were not used for longest; others are left alone."""
        if layer not in self._watched:
            return
        self._here.pop(layer, None)
        size = _bytes(layer)
        while self._here and size + self.nbytes() > self._room:
            longest = next(iter(self._here))
            move_to(longest, _REST, recurse=False)
            del self._here[longest]
        move_to(layer, self._device, recurse=False)
        self._here[layer] = None


def resting_paths(network: Network) -> frozenset[str]:
    """The layers of the blocks that can rest: those whose weights are read by their own forwards alone.

    A projection whose weight is read by its parent stays on the device, and so does what is tied.
    """
    tied = network.shared()
    sites = [site for site in network.sites if site.block is not None and site.product and site.name not in tied]
    paths = {site.module for site in sites}
    return frozenset(path for path in paths if not any(other.startswith(f"{path}.") for other in paths))


def move_to(module: nn.Module, device: torch.device, recurse: bool = True) -> None:
    """Move what a module holds; what was not read stays on the meta device."""
    module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device), recurse)  # type: ignore[no-untyped-call]


def _bytes(layer: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in [*layer.parameters(recurse=False), *layer.buffers(recurse=False)])
