"""The torch operators: opaque to the compiler, correct under it, and checked by torch's own opcheck."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from goldstick.errors import KernelError
from goldstick.kernels import ops, select
from goldstick.kernels.reference import ReferenceBackend
from tests.support.packed_layers import Layer, random_layer

reference = ReferenceBackend()


def call(layer: Layer, x: Tensor) -> Tensor:
    spec = layer.spec
    return ops.quantized_linear(
        x,
        layer.packed,
        layer.scale,
        layer.zero,
        layer.bias,
        bits=spec.bits,
        group_size=spec.group_size,
        in_features=spec.in_features,
        activation=spec.activation,
        input_scale=layer.input_scale,
        input_zero=layer.input_zero,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token", "int8-tensor"])
def test_operators_give_what_the_chosen_backend_gives(dtype: torch.dtype, activation: str | None) -> None:
    layer = random_layer(12, 32, group_size=8, asymmetric=True, dtype=dtype, activation=activation)  # type: ignore[arg-type]
    x = torch.randn(2, 3, 32).to(dtype)
    operands = (layer.packed, layer.scale, layer.zero)
    inputs = (layer.input_scale, layer.input_zero)
    chosen = select(layer.spec, x.device)
    assert torch.equal(call(layer, x), chosen.linear(x, *operands, layer.bias, layer.spec, *inputs))
    weight = ops.dequantize(*operands, bits=4, group_size=8, in_features=32)
    assert torch.equal(weight, reference.dequantize(*operands, layer.spec))


@pytest.mark.parametrize("lead", [(5,), (2, 3), (0,), ()], ids=str)
def test_torchs_own_checks_pass(lead: tuple[int, ...]) -> None:
    layer = random_layer(12, 32, bits=3, group_size=8)
    x = torch.randn(*lead, 32)
    linear = torch.ops.goldstick.quantized_linear.default
    opcheck(linear, (x, layer.packed, layer.scale, None, layer.bias, 3, 8, 32, "int8-token"))
    inputs = (torch.tensor([0.03]), torch.tensor([5], dtype=torch.int8))
    opcheck(linear, (x, layer.packed, layer.scale, None, layer.bias, 3, 8, 32, "int8-tensor", *inputs))
    opcheck(torch.ops.goldstick.dequantize.default, (layer.packed, layer.scale, None, 3, 8, 32))


def test_the_override_is_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = random_layer(8, 16)
    x = torch.randn(2, 16)
    expected = reference.linear(x, layer.packed, layer.scale, None, layer.bias, layer.spec)
    torch.testing.assert_close(call(layer, x), expected, rtol=1e-3, atol=1e-3)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "abacus")
    with pytest.raises(KernelError, match="abacus"):
        call(layer, x)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert torch.equal(call(layer, x), expected)


def test_wrong_operands_are_found_while_tracing() -> None:
    layer = random_layer(8, 16)
    with FakeTensorMode() as mode, pytest.raises(KernelError, match="does not end in the 16"):
        torch.ops.goldstick.quantized_linear(
            mode.from_tensor(torch.randn(2, 15)),
            mode.from_tensor(layer.packed),
            mode.from_tensor(layer.scale),
            None,
            None,
            4,
            16,
            16,
            "",
        )


def test_a_compiled_graph_has_no_breaks_and_the_same_numbers() -> None:
    layer = random_layer(24, 32, group_size=8, asymmetric=True)

    def block(x: Tensor) -> Tensor:
        return torch.relu(call(layer, x)) + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (1, 3, 7):
        x = torch.randn(rows, 32)
        assert torch.equal(compiled(x), block(x))
