"""apply_rotation on every kind of matrix, against the product written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from goldstick.core.edits import FuseNorm, Rotate, RotateWeight
from goldstick.core.hadamard import Rotation
from goldstick.errors import StructureError
from goldstick.structure.rotation.rotate_weight import apply_rotation

CHANNELS = 8
Q = Rotation(size=CHANNELS, seed=3)
KEEPS_ONES = Rotation(size=CHANNELS, seed=3, keeps_ones=True)


class Experts(nn.Module):
    """Three experts that all answer, their weights fused, stored as [experts, in, out] if ``transposed``."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.is_transposed = transposed
        self.up_proj = nn.Parameter(torch.randn(3, CHANNELS, CHANNELS))
        self.up_proj_bias = nn.Parameter(torch.randn(3, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.up_proj.mT if self.is_transposed else self.up_proj
        return torch.einsum("...i,eoi->...eo", x, weight) + self.up_proj_bias


class Router(nn.Module):
    """A bare parameter [experts, in]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class OffsetNorm(nn.Module):
    """x / rms(x) · (1 + w)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x * x.pow(2).mean(-1, keepdim=True).rsqrt() * (1 + self.weight)


def model_of(**modules: nn.Module) -> nn.ModuleDict:
    model = nn.ModuleDict(modules).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


LAYERS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "linear": ("weight", lambda: nn.Linear(CHANNELS, CHANNELS)),
    "transposed linear": ("weight", lambda: Conv1D(CHANNELS, CHANNELS)),
    "experts": ("up_proj", lambda: Experts(transposed=False)),
    "transposed experts": ("up_proj", lambda: Experts(transposed=True)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_turning_inputs_undoes_a_turn_of_what_is_read(layer: str) -> None:
    parameter, build = LAYERS[layer]
    model, x = model_of(layer=build()), torch.randn(6, CHANNELS, dtype=torch.float64)
    before = model["layer"](x)
    apply_rotation(model, Rotate(turns=(RotateWeight(parameter=f"layer.{parameter}", side="input", rotation=Q),)))
    torch.testing.assert_close(model["layer"](x @ Q.matrix()), before)


@pytest.mark.parametrize("layer", LAYERS)
def test_turning_outputs_turns_what_comes_out_bias_included(layer: str) -> None:
    parameter, build = LAYERS[layer]
    model, x = model_of(layer=build()), torch.randn(6, CHANNELS, dtype=torch.float64)
    before = model["layer"](x)
    apply_rotation(model, Rotate(turns=(RotateWeight(parameter=f"layer.{parameter}", side="output", rotation=Q),)))
    torch.testing.assert_close(model["layer"](x), before @ Q.matrix())


def test_embeddings_give_out_their_rows_and_routers_read_by_columns() -> None:
    model, x = model_of(table=nn.Embedding(4, CHANNELS), router=Router()), torch.arange(4)
    before, scores = model["table"](x), model["router"](model["table"](x))
    turns = (
        RotateWeight(parameter="table.weight", side="output", rotation=Q),
        RotateWeight(parameter="router.weight", side="input", rotation=Q),
    )
    apply_rotation(model, Rotate(turns=turns))
    torch.testing.assert_close(model["table"](x), before @ Q.matrix())
    torch.testing.assert_close(model["router"](model["table"](x)), scores)


@pytest.mark.parametrize("norm", ["rms", "offset", "layer"])
def test_a_norm_hands_its_gain_to_its_readers_and_a_shift_turns(norm: str) -> None:
    build = {"rms": nn.RMSNorm, "layer": nn.LayerNorm, "offset": lambda _: OffsetNorm()}[norm]
    rotation = KEEPS_ONES if norm == "layer" else Q
    model, x = model_of(norm=build(CHANNELS), layer=nn.Linear(CHANNELS, 5)), torch.randn(6, CHANNELS).double()
    before = model["layer"](model["norm"](x))
    edit = Rotate(
        turns=(RotateWeight(parameter="layer.weight", side="input", rotation=rotation, norm="norm"),),
        norms=(FuseNorm(norm="norm", rotation=rotation, unit_offset=norm == "offset"),),
    )
    apply_rotation(model, edit)
    torch.testing.assert_close(model["layer"](model["norm"](rotation.turn(x))), before)
    expected = 0.0 if norm == "offset" else 1.0
    assert torch.equal(model["norm"].weight, torch.full((CHANNELS,), expected, dtype=torch.float64))


def test_heads_are_turned_in_the_named_rows_only() -> None:
    model = model_of(layer=nn.Linear(3, 20))
    weight, bias = model["layer"].weight.detach().clone(), model["layer"].bias.detach().clone()
    rotation = Rotation(size=4, seed=0)
    turn = RotateWeight(parameter="layer.weight", side="output", rotation=rotation, first_channel=8, channels=8)
    apply_rotation(model, Rotate(turns=(turn,)))
    both = torch.block_diag(rotation.matrix(), rotation.matrix())
    torch.testing.assert_close(model["layer"].weight[8:16], both.T @ weight[8:16])
    torch.testing.assert_close(model["layer"].bias[8:16], bias[8:16] @ both)
    assert torch.equal(model["layer"].weight[:8], weight[:8]) and torch.equal(model["layer"].weight[16:], weight[16:])


def test_a_matrix_turned_on_both_sides_is_rounded_once() -> None:
    model = model_of(layer=nn.Linear(CHANNELS, CHANNELS, bias=False)).to(torch.bfloat16)
    weight, matrix = model["layer"].weight.detach().double(), Q.matrix()
    turns = tuple(RotateWeight(parameter="layer.weight", side=side, rotation=Q) for side in ("input", "output"))
    apply_rotation(model, Rotate(turns=turns))
    assert torch.equal(model["layer"].weight, (matrix.T @ weight @ matrix).to(torch.bfloat16))


def test_a_tied_parameter_gets_its_own_memory() -> None:
    model = model_of(table=nn.Embedding(4, CHANNELS), head=nn.Linear(CHANNELS, 4, bias=False))
    model["head"].weight = model["table"].weight
    before = model["table"].weight.detach().clone()
    turn = RotateWeight(parameter="head.weight", side="input", rotation=Q)
    apply_rotation(model, Rotate(turns=(turn,), unties=("head.weight",)))
    assert torch.equal(model["table"].weight, before)
    torch.testing.assert_close(model["head"].weight, before @ Q.matrix())


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (RotateWeight(parameter="layer.weight", side="input", rotation=Rotation(size=3, seed=0)), "layer.weight"),
        (RotateWeight(parameter="layer.nothing", side="input", rotation=Q), "layer.nothing"),
        (RotateWeight(parameter="elsewhere.weight", side="input", rotation=Q), "elsewhere.weight"),
        (RotateWeight(parameter="norm.weight", side="input", rotation=Q), "norm.weight"),
    ],
)
def test_what_cannot_be_turned_is_refused_by_name_and_changes_nothing(turn: RotateWeight, told: str) -> None:
    model = model_of(layer=nn.Linear(CHANNELS, 5), norm=nn.LayerNorm(CHANNELS))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = RotateWeight(parameter="layer.weight", side="input", rotation=Q)
    with pytest.raises(StructureError, match=told):
        apply_rotation(model, Rotate(turns=(first, turn)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_gain_of_zero_under_a_shift_cannot_move() -> None:
    model = model_of(norm=nn.LayerNorm(CHANNELS))
    model["norm"].weight.data[2] = 0
    with pytest.raises(StructureError, match="gain of norm is zero"):
        apply_rotation(model, Rotate(turns=(), norms=(FuseNorm(norm="norm", rotation=KEEPS_ONES),)))
    model["norm"].bias.data[2] = 0
    apply_rotation(model, Rotate(turns=(), norms=(FuseNorm(norm="norm", rotation=KEEPS_ONES),)))
    assert bool(model["norm"].bias.isfinite().all())
