"""A float64 copy on which rotations are tried, and how far its output moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.edits import Rotate
from goldstick.core.input_rotation import release_input
from goldstick.errors import StructureError
from goldstick.structure.rotation.rotate_weight import apply_rotation, bias_name, matrix_layout
from goldstick.structure.trace import map_tensors, tensors_in

#: Two outputs are equal when they differ by no more than this, relative to the norm of the first.
EXACT = 1e-9
#: A change that moves the output by less than this part of it tells nothing.
CHANGE_EPS = 1e-7


class RotationTrial:
    """A block (or a whole model) in float64, its arguments, and what it puts out.

    Use inside ``double_precision``.

    Attributes:
        module: The copy; every trial leaves it as it was.
        path: Path of the module in its model; empty for the model itself.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    def __init__(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def double(tensor: Tensor) -> Tensor:
            return tensor.double() if tensor.is_floating_point() else tensor

        self.module, self.path = module, path
        self.args, self.kwargs = map_tensors((args, kwargs), double)

    @property
    def residual(self) -> Tensor:
        """The first float tensor that the block is given."""
        found = next((tensor for tensor in tensors_in((self.args, self.kwargs)) if tensor.is_floating_point()), None)
        if found is None:
            raise StructureError(f"{self.path} is given no float tensor, so nothing can be rotated there.")
        return found

    def with_residual(self, residual: Tensor) -> RotationTrial:
        """The same block on another residual."""
        old = self.residual
        args, kwargs = map_tensors((self.args, self.kwargs), lambda tensor: residual if tensor is old else tensor)
        return RotationTrial(self.module, self.path, args, kwargs)

    def run(self) -> Tensor:
        """The first float tensor that comes out.

        Raises:
            StructureError: The forward fails.
        """
        args, kwargs = map_tensors((self.args, self.kwargs), torch.clone)
        try:
            found = self.module(*args, **kwargs)
        except Exception as error:  # any code of the model may fail where blocks are missing, in any way
            raise StructureError(
                f"This model cannot be rotated: {f'block {self.path}' if self.path else 'it'} does not run on the copy "
                "that rotations are tried on, in float64 and with one block of each kind "
                f"({type(error).__name__}: {error}). Leave the stage rotate out."
            ) from error
        return next(tensor for tensor in tensors_in(found) if tensor.is_floating_point())

    def lookup(self, path: str) -> nn.Module:
        """A module of the copy, by its path in the model."""
        if self.path and path != self.path and not path.startswith(self.path + "."):
            raise AttributeError(path)
        return self.module.get_submodule(path.removeprefix(self.path).removeprefix("."))

    def absolute(self, name: str) -> str:
        """The name in the model of something in the copy."""
        return ".".join(part for part in (self.path, name) if part)

    @contextmanager
    def changing(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Whatever happens to ``parameters`` inside is undone afterwards."""
        saved = [parameter.clone() for parameter in parameters]
        try:
            yield
        finally:
            for parameter, value in zip(parameters, saved, strict=True):
                parameter.copy_(value)

    def rotated(self, edit: Rotate) -> Tensor:
        """What comes out after ``edit``."""
        inputs = {one.parameter for one in edit.inputs}
        touched = {turn.parameter for turn in edit.turns} | {f"{norm.norm}.weight" for norm in edit.norms} | inputs
        modules = {self.lookup(name.rpartition(".")[0]): None for name in touched}
        with self.changing([parameter for module in modules for parameter in module.parameters(recurse=False)]):
            apply_rotation(self.lookup, edit)
            try:
                return self.run()
            finally:
                for name in inputs:
                    release_input(self.lookup(name.rpartition(".")[0]))

    def matrices(self) -> Iterator[tuple[str, nn.Parameter, Tensor, nn.Parameter | None]]:
        """(name, parameter, its matrix [..., out, in], bias) of everything that can be turned."""
        for path, module in self.module.named_modules():
            own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
            for last, parameter in own.items():
                layout = matrix_layout(module, last, parameter)
                if layout is not None and not isinstance(module, nn.Embedding):
                    bias = own.get(bias_name(f".{last}").removeprefix("."))
                    name = self.absolute(f"{path}.{last}" if path else last)
                    yield name, parameter, layout.to_matrix(parameter), bias


def distance(reference: Tensor, other: Tensor) -> float:
    """‖y' − y‖ / ‖y‖ in float64; infinity where it is not a number."""
    if reference.shape != other.shape:
        return float("inf")
    moved = torch.where(reference == other, torch.zeros_like(reference), other - reference).norm()
    relative = float(moved / reference.norm().clamp_min(1e-300))
    return relative if relative == relative else float("inf")
