"""The prepared call gives the operator's bits, sees what changes, and leaves to the operator what is not its own."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from goldstick.errors import KernelError
from goldstick.kernels import Activation, cpu
from goldstick.kernels import ops as _ops  # noqa: F401  (registers the operator)
from goldstick.kernels.prepared import Operands, PreparedLinear
from tests.support.packed_layers import Layer, random_layer

pytestmark = pytest.mark.skipif(cpu._C is None, reason="the extension is not built")


def operands(layer: Layer, bias: bool = True) -> Operands:
    zero = None if layer.zero is None else layer.zero.float()
    inputs = layer.input_scale, layer.input_zero, layer.global_scale
    return layer.packed, layer.scale, zero, layer.bias if bias else None, *inputs


def prepared(layer: Layer) -> PreparedLinear:
    return PreparedLinear(layer.spec.bits, layer.spec.group_size, layer.spec.in_features, layer.spec.activation or "")


def by_operator(layer: Layer, x: Tensor, given: Operands) -> Tensor:
    packed, scale, zero, bias, input_scale, input_zero, _ = given
    found: Tensor = torch.ops.goldstick.quantized_linear(
        x, packed, scale, zero, bias, *prepared(layer).settings, input_scale, input_zero
    )
    return found


@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token", "int8-tensor"])
@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 64), (0, 64)])
def test_results_are_the_operators(
    activation: Activation, asymmetric: bool, dtype: torch.dtype, bias: bool, shape: tuple[int, ...]
) -> None:
    layer = random_layer(19, 64, group_size=32, asymmetric=asymmetric, dtype=dtype, activation=activation)
    given, x = operands(layer, bias), torch.randn(shape).to(dtype)
    found = prepared(layer)(x, given)
    assert found is not None
    assert torch.equal(found, by_operator(layer, x, given))


def test_inputs_need_not_lie_side_by_side() -> None:
    layer, x = random_layer(8, 64), torch.randn(64, 3)
    found = prepared(layer)(x.T, operands(layer))
    assert found is not None
    assert torch.equal(found, by_operator(layer, x.T.contiguous(), operands(layer)))


def test_numbers_that_change_in_place_and_tensors_that_are_replaced_are_seen() -> None:
    layer, other = random_layer(8, 64, activation="int8-tensor"), random_layer(8, 64, activation="int8-tensor", seed=1)
    run, x, given = prepared(layer), torch.randn(2, 64), operands(layer)
    run(x, given)
    assert given[4] is not None
    given[1].mul_(2)
    given[4].mul_(3)
    assert torch.equal(run(x, given), by_operator(layer, x, given))  # type: ignore[arg-type]
    assert torch.equal(run(x, operands(other)), by_operator(other, x, operands(other)))  # type: ignore[arg-type]


def test_a_weight_is_not_kept_alive_and_one_in_its_place_is_prepared_anew() -> None:
    layer, x = random_layer(19, 64, group_size=32), torch.randn(3, 64)
    call, given = prepared(layer), operands(layer)
    assert call(x, given) is not None
    storage = given[0].untyped_storage()
    owners = torch._C._storage_Use_Count(storage._cdata)
    packed = given[0].clone()
    given = (packed, *given[1:])
    del layer
    assert torch._C._storage_Use_Count(storage._cdata) < owners - 1, "the prepared call owns it still"
    found = call(x, given)
    assert found is not None
    assert torch.equal(found, by_operator(random_layer(19, 64, group_size=32), x, given))


def test_some_rows_of_a_weight_are_not_taken_for_all_of_it() -> None:
    layer, x = random_layer(19, 64, group_size=32), torch.randn(3, 64)
    call, given = prepared(layer), operands(layer)
    expected = call(x, given)
    assert expected is not None
    packed, scale, _, bias, *_ = given
    assert bias is not None
    first = call(x, (packed[:7], scale[:7], None, bias[:7], None, None, None))
    assert first is not None
    assert torch.equal(first, expected[:, :7])


def test_tensors_that_come_to_want_gradients_are_left_to_the_operator() -> None:
    layer, x = random_layer(8, 64), torch.randn(2, 64)
    run, given = prepared(layer), operands(layer)
    assert run(x, given) is not None
    assert given[3] is not None
    given[3].requires_grad_()
    assert run(x, given) is None
    given[3].requires_grad_(False)
    assert run(x, given) is not None


def test_another_backend_instruction_set_or_device_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = random_layer(8, 64), torch.randn(2, 64)
    run, given = prepared(layer), operands(layer)
    expected = run(x, given)
    assert expected is not None
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
    assert torch.equal(run(x, given), expected)  # type: ignore[arg-type]
    monkeypatch.setenv("GOLDSTICK_ISA", "mmx")
    with pytest.raises(ValueError, match="GOLDSTICK_ISA"):
        run(x, given)
    monkeypatch.delenv("GOLDSTICK_ISA")
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert run(x, given) is None
    monkeypatch.delenv("GOLDSTICK_BACKEND")
    assert run(x.to("meta"), given) is None


def test_what_does_not_fit_is_left_to_the_operator_and_its_errors() -> None:
    layer = random_layer(8, 64)
    run, given = prepared(layer), operands(layer)
    for x in (torch.randn(2, 63), torch.randn(2, 64).bfloat16(), torch.tensor(1.0), torch.randn(2, 64).double()):
        assert run(x, given) is None
        with pytest.raises(KernelError):
            by_operator(layer, x, given)
    assert run(torch.randn(2, 64, requires_grad=True), given) is None
    assert prepared(layer)(torch.randn(2, 64), (given[0], given[1].T.contiguous().T, *given[2:])) is not None
    assert prepared(random_layer(8, 64, group_size=32))(torch.randn(2, 64), (given[0][:, ::2], *given[1:])) is None


def test_traced_calls_are_the_operators() -> None:
    layer, x = random_layer(8, 64), torch.randn(2, 64)
    run, given = prepared(layer), operands(layer)
    taken: list[bool] = []

    def traced(x: Tensor) -> Tensor:
        found = run(x, given)
        taken.append(found is not None)
        return by_operator(layer, x, given) if found is None else found

    graph = make_fx(traced)(x)
    assert any("quantized_linear" in str(node.target) for node in graph.graph.nodes)
    torch.vmap(lambda x: taken.append(run(x, given) is not None) or x)(x)  # type: ignore[func-returns-value]
    assert not any(taken)


def test_copies_prepare_themselves() -> None:
    layer, x = random_layer(8, 64), torch.randn(2, 64)
    run, given = prepared(layer), operands(layer)
    expected = run(x, given)
    for other in (copy.deepcopy(run), copy.copy(run), pickle.loads(pickle.dumps(run))):
        assert torch.equal(other(x, given), expected)  # type: ignore[arg-type]
