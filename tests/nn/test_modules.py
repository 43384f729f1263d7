"""Modules on packed weights: each equals the float operation on the dequantized weight."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import goldstick
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.grid import Grid
from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import KernelError, QuantizationError
from goldstick.nn import (
    PackedWeight,
    QuantizedEmbedding,
    QuantizedExperts,
    QuantizedLinear,
    TiedQuantizedLinear,
)
from goldstick.nn.derived import in_place_of

pytestmark = pytest.mark.usefixtures("reference_backend")

SCHEMES = ["w4a16-g16", "w3a16-g16-asym", "w8a16", "w2a16-channel-asym", "w5a16-g16"]
every_scheme = pytest.mark.parametrize("name", SCHEMES)


def quantized(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> tuple[QuantizedTensor, Scheme]:
    scheme = Scheme.parse(name)
    search = "minmax" if scheme.weight.symmetric else "hqq"
    return quantize_with_search(torch.randn(shape).to(dtype), scheme.weight, search), scheme


@every_scheme
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_equals_the_float_one_on_the_dequantized_weight(
    name: str, dtype: torch.dtype, bias: bool
) -> None:
    tensor, scheme = quantized(name, 24, 48, dtype=dtype)
    shift = torch.randn(24).to(dtype) if bias else None
    layer = QuantizedLinear(tensor, scheme, shift)
    x = torch.randn(2, 5, 48).to(dtype)
    assert torch.equal(layer(x), F.linear(x, tensor.dequantize(), shift))


def test_8_bit_activations_round_every_token_by_itself() -> None:
    tensor, scheme = quantized("w8a8-dynamic", 24, 48)
    layer = QuantizedLinear(tensor, scheme)
    x = torch.randn(2, 5, 48) * torch.tensor([1.0, 100.0]).view(2, 1, 1)
    steps = x.abs().amax(-1, keepdim=True) / 127.5
    rounded = (x / steps).clamp(-128, 127).round() * steps
    torch.testing.assert_close(layer(x), F.linear(rounded, tensor.dequantize()), rtol=1e-5, atol=1e-3)
    assert not torch.allclose(layer(x), F.linear(x, tensor.dequantize()), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["w4a16-g16", "w8a8-dynamic", "w8a8-static"])
def test_an_input_is_multiplied_before_anything_else(name: str, dtype: torch.dtype) -> None:
    tensor, scheme = quantized(name, 24, 48, dtype=dtype)
    factors = 10 ** torch.linspace(-1, 1, 48)
    scale = torch.tensor(0.05) if scheme.static_input else None
    plain = QuantizedLinear(tensor, scheme, input_scale=scale)
    layer = QuantizedLinear(tensor, scheme, input_scale=scale, input_multiplier=factors)
    assert layer.input_multiplier is not None and layer.input_multiplier.dtype is dtype
    x = torch.randn(2, 5, 48).to(dtype)
    assert torch.equal(layer(x), plain(x * factors.to(dtype)))
    assert not torch.equal(layer(x), plain(x))
    with pytest.raises(QuantizationError, match=r"48 inputs has as many multipliers, not \[47\]"):
        QuantizedLinear(tensor, scheme, input_scale=scale, input_multiplier=factors[1:])


def test_a_multiplied_layer_compiles_into_one_graph() -> None:
    tensor, scheme = quantized("w8a8-dynamic", 24, 48)
    layer = QuantizedLinear(tensor, scheme, input_multiplier=torch.full((48,), 0.5))
    x = torch.randn(3, 48)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["w8a8-static", "w4a8-static-g16", "w8a8-static-shifted"])
def test_a_static_input_is_rounded_with_the_scale_it_was_given(name: str, dtype: torch.dtype) -> None:
    tensor, scheme = quantized(name, 24, 48, dtype=dtype)
    zero = torch.tensor(-20, dtype=torch.int8) if "shifted" in name else None
    layer = QuantizedLinear(tensor, scheme, input_scale=torch.tensor(0.01), input_zero=zero)
    x = torch.randn(2, 5, 48).to(dtype)
    step, shift = torch.tensor([0.01]).to(dtype), 0 if zero is None else -20
    rounded = ((x / step + shift).clamp(-128, 127).round() - shift) * step
    assert torch.equal(layer(x), F.linear(rounded, tensor.dequantize()))
    assert torch.equal(layer(x * 10).isfinite(), torch.ones(2, 5, 24, dtype=torch.bool))
    twin = copy.deepcopy(layer)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), layer(x))


@pytest.mark.parametrize(
    ("name", "scale", "zero", "complaint"),
    [
        ("w8a8-static", None, None, "takes a scale and no zero, and what was given is neither"),
        ("w8a8-static", torch.tensor(1.0), torch.tensor(0, dtype=torch.int8), "no zero, and .* scale and zero"),
        ("w8a8-static-shifted", torch.tensor(1.0), None, "takes a scale and a zero, and what was given is scale"),
        ("w8a8-dynamic", torch.tensor(1.0), None, "takes neither, and what was given is scale"),
        ("w8a16", torch.tensor(1.0), None, "takes neither"),
        ("w8a8-static", torch.ones(2), None, r"one float, not torch.float32 \(2,\)"),
        ("w8a8-static", torch.tensor(1), None, "one float, not torch.int64"),
        ("w8a8-static-shifted", torch.tensor(1.0), torch.tensor(0.5), "one int8, not torch.float32"),
    ],
)
def test_a_layer_has_an_input_scale_exactly_when_its_input_is_static(
    name: str, scale: Tensor | None, zero: Tensor | None, complaint: str
) -> None:
    with pytest.raises(QuantizationError, match=complaint):
        QuantizedLinear(*quantized(name, 24, 48), input_scale=scale, input_zero=zero)


def test_a_cast_keeps_the_zero_of_an_input_and_never_makes_its_scale_zero() -> None:
    tensor, scheme = quantized("w8a8-static-shifted", 24, 48)
    layer = QuantizedLinear(
        tensor, scheme, input_scale=torch.tensor(0.01), input_zero=torch.tensor(7, dtype=torch.int8)
    )
    layer.to(torch.bfloat16)
    assert layer.input_scale is not None and layer.input_scale.dtype == torch.bfloat16
    assert layer.input_zero_point is not None and layer.input_zero_point.dtype == torch.int8
    half, scheme = quantized("w8a8-static", 24, 48, dtype=torch.float16)
    tiny = QuantizedLinear(half, scheme, input_scale=torch.tensor(1e-12)).input_scale
    assert tiny is not None and tiny.item() > 0


@every_scheme
def test_an_embedding_equals_the_float_one_on_the_dequantized_weight(name: str) -> None:
    tensor, scheme = quantized(name, 30, 32)
    layer = QuantizedEmbedding(tensor, scheme)
    ids = torch.tensor([[0, 29, 3], [3, 3, 7]])
    assert torch.equal(layer(ids), F.embedding(ids, tensor.dequantize()))
    assert layer(torch.empty(0, dtype=torch.long)).shape == (0, 32)
    assert layer(torch.tensor(4)).shape == (32,)


@every_scheme
def test_a_tied_head_multiplies_by_the_embeddings_weight(name: str) -> None:
    tensor, scheme = quantized(name, 30, 32)
    embedding = QuantizedEmbedding(tensor, scheme)
    head = TiedQuantizedLinear(embedding, torch.randn(30))
    x = torch.randn(3, 32)
    assert torch.equal(head(x), F.linear(x, tensor.dequantize(), head.bias))
    assert list(head.state_dict()) == ["bias"], "the weight is the embedding's alone"


@pytest.mark.parametrize("name", ["w4a16-g9", "w3a16-channel-asym", "w8a16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "bias": False},
        {"padding": "same", "dilation": 2},
        {"padding": (1, 2), "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "replicate"},
        {"padding": "same", "padding_mode": "circular"},
        {"groups": 2},
        {"groups": 4, "padding": 1},
    ],
    ids=str,
)
def test_a_convolution_equals_the_float_one_on_the_dequantized_kernel(name: str, options: dict[str, Any]) -> None:
    conv = nn.Conv2d(4, 8, 3, **options)
    scheme = Scheme.parse(name)
    tensor = quantize_with_search(conv.weight.detach().flatten(1), scheme.weight, "minmax")
    layer = in_place_of(PackedWeight, conv, tensor, scheme, Layout.CONVOLUTION)
    x = torch.randn(2, 4, 9, 10)
    with torch.no_grad():
        conv.weight.copy_(tensor.dequantize().reshape(conv.weight.shape))
        assert torch.equal(layer(x), conv(x))


def experts_of(tensor: QuantizedTensor, scheme: Scheme, transposed: bool) -> QuantizedExperts:
    found = QuantizedExperts(tensor, scheme)
    if transposed:
        found.stored_as = Layout.TRANSPOSED_EXPERTS
    return found


@every_scheme
@pytest.mark.parametrize("transposed", [True, False])
def test_each_expert_is_the_matrix_that_the_parameter_would_give(name: str, transposed: bool) -> None:
    tensor, scheme = quantized(name, 3, 8, 32)
    experts = experts_of(tensor, scheme, transposed)
    whole = tensor.dequantize()
    for index in range(3):
        expected = whole[index].T if transposed else whole[index]
        assert torch.equal(experts[index], expected)
        assert torch.equal(experts[torch.tensor(index)], expected)
        assert torch.equal(experts[torch.tensor([index])], expected.unsqueeze(0))


def linear(name: str) -> PackedWeight:
    return QuantizedLinear(*quantized(name, 24, 48), torch.randn(24))


def embedding(name: str) -> PackedWeight:
    return QuantizedEmbedding(*quantized(name, 24, 48))


def experts(name: str) -> PackedWeight:
    return QuantizedExperts(*quantized(name, 2, 24, 48))


def convolution(name: str) -> PackedWeight:
    tensor, scheme = quantized(name, 24, 48)
    return in_place_of(PackedWeight, nn.Conv2d(12, 24, 2), tensor, scheme, Layout.CONVOLUTION)


every_kind = pytest.mark.parametrize("build", [linear, embedding, experts, convolution])


@every_scheme
@every_kind
def test_a_module_gives_back_the_tensor_it_was_made_from(build: Callable[[str], PackedWeight], name: str) -> None:
    torch.manual_seed(3)
    shape = (2, 24, 48) if build is experts else (24, 48)
    tensor, _ = quantized(name, *shape)
    torch.manual_seed(3)
    found = build(name).quantized_tensor()
    assert torch.equal(found.codes, tensor.codes)
    assert torch.equal(found.scale, tensor.scale)
    assert (found.zero is None) == (tensor.zero is None)
    assert tensor.zero is None or torch.equal(found.zero, tensor.zero)
    assert found.grid == tensor.grid


@every_scheme
@every_kind
def test_a_state_dict_carries_everything_from_one_module_to_another(
    build: Callable[[str], PackedWeight], name: str
) -> None:
    first, second = build(name), build(name)
    assert not torch.equal(first.dequantized(), second.dequantized())
    result = second.load_state_dict(first.state_dict())
    assert not result.missing_keys and not result.unexpected_keys
    assert torch.equal(first.dequantized(), second.dequantized())


@every_scheme
@every_kind
def test_a_deep_copy_is_equal_and_shares_no_memory(build: Callable[[str], PackedWeight], name: str) -> None:
    module = build(name)
    twin = copy.deepcopy(module)
    assert torch.equal(module.dequantized(), twin.dequantized())
    mine, theirs = dict(module.named_buffers()), dict(twin.named_buffers())
    assert all(mine[key].data_ptr() != theirs[key].data_ptr() for key in mine)


def test_a_deep_copy_of_a_tied_model_is_tied_to_its_own_embedding() -> None:
    body = QuantizedEmbedding(*quantized("w4a16-g16", 30, 32))
    model = nn.ModuleDict({"head": TiedQuantizedLinear(body), "embedding": body})
    twin = copy.deepcopy(model)
    x = torch.randn(2, 32)
    before = twin["head"](x)
    assert torch.equal(before, model["head"](x))
    twin["embedding"].weight_scale.mul_(2)
    torch.testing.assert_close(twin["head"](x), before * 2)
    assert torch.equal(model["head"](x), before)


@every_scheme
@every_kind
def test_a_cast_changes_scales_only(build: Callable[[str], PackedWeight], name: str) -> None:
    module = build(name)
    before = module.quantized_tensor()
    module.to(torch.bfloat16)
    after = module.quantized_tensor()
    assert module.weight_packed.dtype == torch.int32
    assert torch.equal(after.codes, before.codes)
    assert torch.equal(after.scale, before.scale.bfloat16())
    if before.zero is not None:
        assert after.zero is not None and after.zero.dtype == torch.float32
        assert torch.equal(after.zero, before.zero), "fractional zeros survive a cast down and up"
    assert module.dequantized().dtype == torch.bfloat16
    assert torch.equal(module.dequantized(), after.dequantize())
    module.float()
    assert module.weight_scale.dtype == torch.float32


def test_a_cast_layer_runs_in_its_new_dtype() -> None:
    layer = QuantizedLinear(*quantized("w4a16-g16-asym", 24, 48), torch.randn(24)).to(torch.bfloat16)
    x = torch.randn(3, 48).bfloat16()
    y: Tensor = layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, F.linear(x, layer.dequantized(), layer.bias))


def test_a_module_can_be_moved_through_the_meta_device() -> None:
    layer = QuantizedLinear(*quantized("w4a16-g16-asym", 24, 48))
    state = copy.deepcopy(layer.state_dict())
    before = layer.dequantized()
    layer.to("meta").to_empty(device="cpu").load_state_dict(state)
    assert torch.equal(layer.dequantized(), before)


def test_model_code_may_ask_for_a_weight_and_gets_numbers() -> None:
    tensor, scheme = quantized("w4a16-g16", 24, 48)
    layer = QuantizedLinear(tensor, scheme)
    assert torch.equal(layer.weight, tensor.dequantize())
    assert (layer.in_features, layer.out_features) == (48, 24)
    assert "w4a16-g16" in repr(layer)


def test_nothing_of_a_quantized_layer_is_trained() -> None:
    layer = QuantizedLinear(*quantized("w4a16-g16", 24, 48), nn.Parameter(torch.randn(24)))
    assert [name for name, value in layer.named_parameters() if value.requires_grad] == []


def test_a_packed_weight_takes_the_bits_it_promises() -> None:
    layer = QuantizedLinear(*quantized("w3a16-g16", 32, 64))
    assert layer.weight_packed.nbytes * 8 == 3 * 32 * 64
    assert Grid(bits=3, granularity="group", group_size=16) == layer.grid


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_linear_layer_with_columns_in_an_order_of_their_own_equals_the_one_with_them_in_place(
    dtype: torch.dtype,
) -> None:
    tensor, scheme = quantized("w4a16-g16-asym", 24, 48, dtype=dtype)
    order = torch.randperm(48)
    layer = QuantizedLinear(dataclasses.replace(tensor, input_order=order), scheme)
    weight = torch.empty(24, 48, dtype=dtype)
    for column, place in enumerate(order.tolist()):
        weight[:, place] = tensor.dequantize()[:, column]
    assert torch.equal(layer.weight, weight)
    assert layer.quantized_tensor().dequantize().equal(weight)
    x = torch.randn(2, 5, 48).to(dtype)
    assert torch.equal(layer(x), F.linear(x[..., order], tensor.dequantize()))
    assert torch.allclose(layer(x).float(), F.linear(x.float(), weight.float()), atol=0.05, rtol=0.01)
    assert layer.to(torch.float64).input_order.dtype == torch.int32


def test_an_order_that_names_an_input_twice_or_has_no_layer_to_undo_it_is_refused() -> None:
    tensor, scheme = quantized("w4a16-g16", 24, 48)
    with pytest.raises(QuantizationError, match="order of 48 inputs names each of them once"):
        dataclasses.replace(tensor, input_order=torch.zeros(48, dtype=torch.int64))
    with pytest.raises(QuantizationError, match="order of 48 inputs"):
        dataclasses.replace(tensor, input_order=torch.arange(47))
    with pytest.raises(QuantizationError, match="QuantizedEmbedding runs on columns in the order of its inputs"):
        QuantizedEmbedding(dataclasses.replace(tensor, input_order=torch.arange(48)), scheme)


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64)])
def test_gradients_of_a_linear_layer_reach_its_input_and_its_bias(shape: tuple[int, ...]) -> None:
    scheme = Scheme.parse("w4a16-g32-asym")
    tensor = quantize_with_search(torch.randn(24, 64), scheme.weight, "minmax")
    layer = QuantizedLinear(tensor, scheme, torch.zeros(24))
    layer.bias.requires_grad_()
    x = torch.randn(shape, requires_grad=True)
    y = layer(x)
    grad = torch.randn_like(y)
    y.backward(grad)
    assert x.grad is not None and layer.bias.grad is not None
    torch.testing.assert_close(x.grad, grad @ layer.dequantized(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, grad.reshape(-1, 24).sum(dim=0))
    layer.weight_scale.requires_grad_()
    with pytest.raises(KernelError, match="no gradient for scales"):
        layer(x)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Embedding(30, 64), torch.tensor([[0, 3]])),
        (nn.LSTM(64, 64), torch.ones(3, 64)),
        (nn.ConvTranspose1d(4, 8, 3), torch.ones(1, 4, 9)),
        (nn.Conv1d(4, 8, 3), torch.ones(1, 4, 9)),
    ],
)
def test_scales_that_are_to_learn_are_refused_in_layers_of_all_kinds(layer: nn.Module, x: Tensor) -> None:
    """As peft's ``modules_to_save`` has them, which copies a layer and lets its parameters require a gradient."""
    targets = {"targets": {"include": ["@embedding"]}} if isinstance(layer, nn.Embedding) else {}
    model = goldstick.apply(nn.Sequential(layer), {"stages": [{"rtn": {"scheme": "w8a16", **targets}}]}).model
    model.requires_grad_(True)
    with pytest.raises(KernelError, match="no gradient for scales and zeros"):
        model(x)
    with torch.no_grad():
        model(x)
    model.requires_grad_(False)
    model(x)


def test_under_autocast_a_layer_computes_in_its_own_dtype() -> None:
    scheme = Scheme.parse("w4a16-g32")
    layer = QuantizedLinear(quantize_with_search(torch.randn(24, 64), scheme.weight, "minmax"), scheme)
    x = torch.randn(3, 64).bfloat16()
    with pytest.raises(KernelError, match="cast one of them"):
        layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), layer(x.float()).bfloat16())


def test_an_embedding_has_no_row_for_a_negative_id() -> None:
    scheme = Scheme.parse("w4a16-g32")
    embedding = QuantizedEmbedding(quantize_with_search(torch.randn(24, 64), scheme.weight, "minmax"), scheme)
    with pytest.raises(IndexError):
        embedding(torch.tensor([-1]))
