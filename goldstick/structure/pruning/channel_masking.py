"""A copy of a network, or of one block, in which channels are masked, disturbed and cut, and what then happens."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from goldstick.core.edits import Prune
from goldstick.core.layout import Layout
from goldstick.errors import StructureError
from goldstick.structure.network import layout_of
from goldstick.structure.pruning.cut import apply_cut
from goldstick.structure.rotation.trial import distance
from goldstick.structure.trace import map_tensors, tensors_in

#: A channel has changed when it moved by more than this part of the largest number beside it.
CHANGE_EPS = 1e-9


class MaskedModel:
    """A float64 copy with random weights, and what reaches each of its layers.

    Which layers belong together does not depend on the weights; random ones leave no channel dead. Use it inside
    ``double_precision``.

    Attributes:
        module: The copy, in evaluation mode.
        before: Path → what each layer with parameters receives, [positions, channels], of those that are called once.
        calls: Path → how often a layer with parameters is called.
        output: What comes out.

    Raises:
        StructureError: Two runs differ.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0) -> None:
        def double(tensor: Tensor) -> Tensor:
            return tensor.detach().double() if tensor.is_floating_point() else tensor

        self.module = copy.deepcopy(module).double().eval().requires_grad_(False)
        self.args, self.kwargs = map_tensors((args, kwargs), double)
        self.generator = torch.Generator().manual_seed(seed)
        self._randomise()
        self.calls: dict[str, int] = {}
        self.before = self.watch()
        self.output = self.run()
        if distance(self.output, self.run()) > CHANGE_EPS:
            raise StructureError("Two runs on the same input differ, so that masking a channel shows nothing.")

    def _randomise(self) -> None:
        for module in self.module.modules():
            for name, value in module.named_parameters(recurse=False):
                if value.ndim > 1:
                    transposed = layout_of(module, name, value) is Layout.TRANSPOSED
                    fan_in = value.shape[0] if transposed else value[0].numel()
                    value.copy_(self._noise(value) / max(fan_in, 1) ** 0.5)
                elif name.endswith("bias"):
                    value.copy_(1 + 0.2 * self._noise(value))  # few channels then end at a ReLU
                else:
                    value.copy_(0.5 + 0.5 * self._uniform(value))
            if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None:
                module.running_mean.copy_(0.2 * self._noise(module.running_mean))
                module.running_var.copy_(0.5 + self._uniform(module.running_var))

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float64).to(like.device)

    def _uniform(self, like: Tensor) -> Tensor:
        return torch.rand(like.shape, generator=self.generator, dtype=torch.float64).to(like.device)

    def run(self, module: nn.Module | None = None) -> Tensor:
        """All float numbers that come out of the copy, or of a changed copy of it, in a row."""
        args, kwargs = map_tensors((self.args, self.kwargs), torch.clone)
        found = tensors_in((self.module if module is None else module)(*args, **kwargs))
        return torch.cat([tensor.double().flatten() for tensor in found if tensor.is_floating_point()])

    def watch(self, disturbed: str | None = None, rows: Tensor | None = None) -> dict[str, Tensor]:
        """What each layer with parameters receives, while noise is added to some ``rows`` of the output of one."""
        seen: dict[str, Tensor] = {}
        calls: dict[str, int] = {}

        def hook_for(path: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                tensor = next(tensors_in((args, kwargs)), None)
                if tensor is not None and tensor.is_floating_point() and tensor.ndim > 1:
                    seen[path] = by_channel(module, tensor)
                    calls[path] = calls.get(path, 0) + 1

            return hook

        def disturb(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            assert rows is not None
            wide = by_channel(module, output)
            noise = 2 * self._noise(wide) * wide.abs().max() * rows.to(wide)  # past any ReLU
            return output + _as_before(module, noise, output)

        handles = [
            module.register_forward_pre_hook(hook_for(path), with_kwargs=True)
            for path, module in self.module.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        ]
        if disturbed is not None:
            handles.append(self.module.get_submodule(disturbed).register_forward_hook(disturb))
        try:
            self.run()
        finally:
            for handle in handles:
                handle.remove()
        self.calls = calls
        return {path: tensor for path, tensor in seen.items() if calls[path] == 1}

    def changed(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Path → which channels of its input differ from the untouched ones."""
        return {
            path: (found[path] - before).abs().amax(0) > CHANGE_EPS * before.abs().max()
            for path, before in self.before.items()
            if path in found and found[path].shape == before.shape
        }

    @contextmanager
    def masked(self, rows_of: Mapping[str, Tensor]) -> Iterator[None]:
        """Some rows of layers, and gains and shifts of norms, are 0 inside: path → which."""
        saved: list[tuple[Tensor, Tensor]] = []
        for path, rows in rows_of.items():
            module = self.module.get_submodule(path)
            for name, value in module.named_parameters(recurse=False):
                saved.append((value.data, value.detach().clone()))
                transposed = layout_of(module, name, value) is Layout.TRANSPOSED
                value.data[(slice(None), rows) if transposed else rows] = 0
        try:
            yield
        finally:
            for now, old in saved:
                now.copy_(old)

    def error(self, prune: Prune) -> float:
        """How far the output after a cut lies from the output now; infinity where the cut copy does not run."""
        changed = copy.deepcopy(self.module)
        try:
            apply_cut(changed, prune)
            return distance(self.run(), self.run(changed))
        except Exception:  # a cut that misses a layer fails wherever that layer meets the others
            return float("inf")

    def trains(self, prune: Prune) -> bool:
        """Whether a cut copy gives outputs of the same shapes in training mode, where other branches may run.

        Also where the copy itself does not run in training mode on these arguments, so that nothing can be said.
        """
        if self.training_shapes is None:
            return True
        changed = copy.deepcopy(self.module)
        apply_cut(changed, prune)
        return self._shapes_in_training(changed) == self.training_shapes

    @cached_property
    def training_shapes(self) -> list[torch.Size] | None:
        """Shapes of what comes out in training mode; ``None`` where that fails."""
        return self._shapes_in_training(copy.deepcopy(self.module))

    def _shapes_in_training(self, module: nn.Module) -> list[torch.Size] | None:
        """Of a copy that may be spoiled: its batch norms take note of what they see."""
        args, kwargs = map_tensors((self.args, self.kwargs), torch.clone)
        devices = {parameter.device for parameter in module.parameters() if parameter.device.type == "cuda"}
        with torch.random.fork_rng(devices=sorted(device.index or 0 for device in devices)):
            try:
                return [tensor.shape for tensor in tensors_in(module.train()(*args, **kwargs))]
            except Exception:  # any code of a network may fail, for many reasons
                return None


def channel_axis(module: nn.Module, tensor: Tensor) -> int:
    """Along which axis of a layer's input or output its channels lie."""
    return 1 if isinstance(module, _BatchNorm | _ConvNd) and tensor.ndim > 1 else -1


def by_channel(module: nn.Module, tensor: Tensor) -> Tensor:
    """[positions, channels] of a layer's input or output."""
    moved = tensor.movedim(channel_axis(module, tensor), -1)
    return moved.reshape(-1, moved.shape[-1])


def _as_before(module: nn.Module, wide: Tensor, like: Tensor) -> Tensor:
    axis = channel_axis(module, like)
    return wide.reshape(like.movedim(axis, -1).shape).movedim(-1, axis)
