"""Apply a rotation to the float weights of a block, or of what lies outside the blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from goldstick.core.edits import FuseNorm, Rotate, RotateInput, RotateWeight
from goldstick.core.hadamard import Rotation
from goldstick.core.input_rotation import input_rotation, rotate_input
from goldstick.core.layout import Layout
from goldstick.errors import StructureError
from goldstick.structure.network import layout_of
from goldstick.structure.probe.fold import Lookup

#: Rows of a matrix that are turned at a time.
_ROWS = 4096


@torch.no_grad()
def apply_rotation(modules: nn.Module | Lookup, edit: Rotate) -> None:
    """Turn every matrix of ``edit`` and move its norms' gains, in place; its inputs are turned by hooks from now on.

    All is computed in float64 on copies and rounded once into the parameters' own dtypes, so that a matrix turned on
    both sides is not rounded in between. Nothing is changed when anything does not fit.

    Args:
        modules: The model, or a function from paths to modules that knows at least those which the edit names.
        edit: What to do.

    Raises:
        StructureError: A parameter is missing, was quantized, or does not fit the rotation; a gain is zero where the
            norm's shift is not; an input is turned in blocks of another size already.
    """
    lookup: Lookup = modules.get_submodule if isinstance(modules, nn.Module) else modules
    copies = _Copies(lookup)
    gains = {norm.norm: _gain(copies, norm) for norm in edit.norms}
    for turn in edit.turns:
        _turn(copies, turn, gains)
    for one in edit.inputs:
        _turn(copies, _turned_back(copies, one), gains)
    for norm in edit.norms:
        _make_unit(copies, norm, gains[norm.norm])
    for name in edit.unties:
        path, _, last = name.rpartition(".")
        module = lookup(path)
        tied: nn.Parameter = getattr(module, last)
        setattr(module, last, nn.Parameter(tied.detach().clone(), requires_grad=tied.requires_grad))
    copies.store()
    for one in edit.inputs:
        rotate_input(copies.module(one.parameter), one.size)


def _turned_back(copies: _Copies, one: RotateInput) -> RotateWeight:
    """What turning an input at run time asks of the weight: H / √n is its own inverse."""
    if input_rotation(copies.module(one.parameter)) not in (0, one.size):
        raise StructureError(f"The input of {one.parameter} is turned already, in blocks of another size.")
    rotation = Rotation(size=one.size, seed=0, signed=False)
    return RotateWeight(parameter=one.parameter, side="input", rotation=rotation)


class _Copies:
    """Float64 copies of parameters, by name, that are worked on and then stored together."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.values: dict[str, Tensor] = {}

    def module(self, name: str) -> nn.Module:
        try:
            return self.lookup(name.rpartition(".")[0])
        except AttributeError as error:
            raise StructureError(f"The rotation names {name}, which the model does not have.") from error

    def get(self, name: str) -> Tensor:
        if name not in self.values:
            parameter = getattr(self.module(name), name.rpartition(".")[2], None)
            if not isinstance(parameter, nn.Parameter) or not parameter.is_floating_point():
                raise StructureError(
                    f"{name} cannot be rotated: it is no float parameter. Rotate before anything is quantized."
                )
            self.values[name] = parameter.detach().to(torch.float64, copy=True)
        return self.values[name]

    def find(self, name: str) -> Tensor | None:
        """The copy, or ``None`` where the module has no such parameter."""
        return self.get(name) if getattr(self.module(name), name.rpartition(".")[2], None) is not None else None

    def store(self) -> None:
        for name, value in self.values.items():
            getattr(self.module(name), name.rpartition(".")[2]).data.copy_(value)


def _gain(copies: _Copies, norm: FuseNorm) -> Tensor:
    return copies.get(f"{norm.norm}.weight") + (1.0 if norm.unit_offset else 0.0)


def _make_unit(copies: _Copies, norm: FuseNorm, gain: Tensor) -> None:
    shift = copies.find(f"{norm.norm}.bias")
    if shift is not None:
        if bool(((gain == 0) & (shift != 0)).any()):
            raise StructureError(
                f"The gain of {norm.norm} is zero in a channel that it shifts, so the gain cannot move into the layers "
                "that read it; leave this model unrotated (residual: false)."
            )
        shift.copy_(norm.rotation.turn(torch.where(shift == 0, shift, shift / gain)))
    copies.get(f"{norm.norm}.weight").fill_(0.0 if norm.unit_offset else 1.0)


def _turn(copies: _Copies, turn: RotateWeight, gains: dict[str, Tensor]) -> None:
    name = turn.parameter
    layout = matrix_layout(copies.module(name), name.rpartition(".")[2], copies.get(name))
    if layout is None:
        raise StructureError(f"{name} of shape {list(copies.get(name).shape)} holds no matrix that can be turned.")
    matrix = layout.to_matrix(copies.get(name))  # [..., out, in], a view
    chosen = slice(turn.first_channel, None if turn.channels is None else turn.first_channel + turn.channels)
    if turn.side == "input" or layout is Layout.EMBEDDING:
        columns = matrix[..., chosen]
        gain = gains[turn.norm] if turn.norm is not None else torch.ones(columns.shape[-1], dtype=torch.float64)
        _store(turn, columns, lambda values: turn.rotation.turn(values * gain.to(values.device)))
        return
    _store(turn, matrix[..., chosen, :].transpose(-1, -2), turn.rotation.turn)
    bias = copies.find(bias_name(name))
    if bias is not None:
        _store(turn, bias[..., chosen], turn.rotation.turn)


def _store(turn: RotateWeight, view: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change every row [..., channels] of a view in place, some at a time: an embedding may have 10⁹ numbers."""
    try:
        for rows in torch.split(view, _ROWS, dim=-2) if view.ndim > 1 else (view,):
            rows.copy_(change(rows))
    except (ValueError, RuntimeError) as error:
        raise StructureError(f"The {turn.side} of {turn.parameter} cannot be turned: {error}") from error


def matrix_layout(module: nn.Module, parameter_name: str, parameter: Tensor) -> Layout | None:
    """How a parameter stores its matrix, bare ones [out, in] such as routers included; ``None`` where it does not."""
    layout = layout_of(module, parameter_name, parameter)
    if layout is None and parameter.ndim == 2:
        return Layout.LINEAR
    return None if layout in (Layout.CONVOLUTION, Layout.TRANSPOSED_CONVOLUTION) else layout


def bias_name(parameter: str) -> str:
    """Name of the bias that belongs to a matrix of that name."""
    path, _, last = parameter.rpartition(".")
    return f"{path}.bias" if last == "weight" else f"{parameter}_bias"
