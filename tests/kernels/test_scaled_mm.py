"""FP8 layers by torch's scaled product: when it takes them, and what it computes, on torch's CPU operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.core.float_inputs import fake_quantize_float, float_codes
from goldstick.core.scheme import FLOAT_INPUTS, NUMBER_FORMATS
from goldstick.errors import KernelError
from goldstick.kernels import WeightSpec, scaled_mm, select
from tests.support.packed_layers import Layer, random_layer

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
#: Where torch has its product: on a GPU if there is one.
HERE = CUDA if torch.cuda.is_available() else CPU
TOKEN, TENSOR = (str(NUMBER_FORMATS[name][1].input_name) for name in ("fp8-dynamic", "fp8-static"))  # type: ignore[union-attr]
backend = scaled_mm.ScaledMmBackend()


@pytest.fixture(autouse=True)
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDSTICK_BACKEND", "scaled-mm")


def fp8_layer(activation: str = TOKEN, **changes: Any) -> Layer:
    settings = {"dtype": torch.bfloat16, "element": "e4m3", **changes}
    layer = random_layer(48, 64, activation=activation, **settings)
    clean = layer.packed.view(torch.uint8)
    clean[(clean & 0x7F) == 0x7F] = 0x30  # codes that are no number
    return layer


def run(layer: Layer, x: Tensor, input_scale: Tensor | None = None) -> Tensor:
    """What the backend gives, back on the CPU."""
    x, packed, scale, bias = (tensor.to(HERE) for tensor in (x, layer.packed, layer.scale, layer.bias))
    input_scale = None if input_scale is None else input_scale.to(HERE)
    return backend.linear(x, packed, scale, None, bias, layer.spec, input_scale).cpu()


def exact(layer: Layer, x: Tensor, input_scale: Tensor | None) -> Tensor:
    """In float64, from the numbers that codes stand for."""
    codes, steps = float_codes(x, FLOAT_INPUTS[str(layer.spec.activation)], input_scale)
    return (codes.view(torch.float8_e4m3fn).double() * steps.double()) @ values_of(layer).T + layer.bias.double()


def values_of(layer: Layer) -> Tensor:
    """Its weight in float64."""
    return layer.packed.view(torch.uint8).view(torch.float8_e4m3fn).double() * layer.scale.double()


@pytest.mark.parametrize("activation", [TOKEN, TENSOR])
def test_codes_stand_for_the_numbers_that_the_reference_multiplies(activation: str) -> None:
    grid, x = FLOAT_INPUTS[activation], torch.randn(7, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    scale = torch.tensor([0.0078125], dtype=torch.bfloat16) if activation == TENSOR else None
    codes, steps = float_codes(x, grid, scale)
    assert torch.equal(codes.view(torch.float8_e4m3fn).bfloat16() * steps, fake_quantize_float(x, grid, scale))


@pytest.mark.parametrize("activation", [TOKEN, TENSOR])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 5, 64), (0, 64)])
def test_it_is_the_exact_product_rounded_to_bfloat16(activation: str, shape: tuple[int, ...]) -> None:
    layer = fp8_layer(activation)
    scale = torch.tensor([0.0078125], dtype=torch.bfloat16) if activation == TENSOR else None
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = run(layer, x, scale)
    wanted = exact(layer, x.reshape(-1, 64), scale).reshape(*shape[:-1], 48)
    assert y.shape == wanted.shape and y.dtype == torch.bfloat16
    codes, steps = float_codes(x.reshape(-1, 64), FLOAT_INPUTS[activation], scale)
    terms = (codes.view(torch.float8_e4m3fn).double() * steps.double()).abs() @ values_of(layer).abs().T
    # GPUs add products of FP8 up in 14 bits or so.
    assert ((y.double() - wanted).abs() <= 2.0**-8 * wanted.abs() + 2.0**-12 * terms.reshape(wanted.shape)).all()


def test_a_token_with_what_is_no_number_gives_none_and_spoils_no_other() -> None:
    layer, x = fp8_layer(), torch.randn(3, 64).bfloat16()
    whole = run(layer, x)
    x[1, 7] = torch.inf
    y = run(layer, x)
    assert y[1].isnan().all() and torch.equal(y[[0, 2]], whole[[0, 2]])


def test_a_network_runs_on_it_and_gives_what_the_reference_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    import goldstick

    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).bfloat16()
    compressed = goldstick.apply(network, "rtn-fp8-dynamic").model.to(HERE)
    x = torch.randn(4, 64).bfloat16().to(HERE)
    found = compressed(x)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert torch.allclose(found, compressed(x), atol=0.02, rtol=0.02) and not torch.equal(found, network.to(HERE)(x))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation": "int8-token", "element": "int", "bits": 8}, "FP8 (E4M3) weights and FP8 inputs"),
        ({"activation": None}, "FP8 (E4M3) weights and FP8 inputs"),
        ({"group_size": 32}, "one scale for each row"),
        ({"dtype": torch.float16}, "computes in bfloat16, not in torch.float16"),
        ({"out_features": 40}, "multiples of 16 there, 40 x 64 are not"),
    ],
)
def test_a_layer_it_cannot_take_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    spec = WeightSpec(**{**vars(fp8_layer().spec), **changes})
    assert reason in str(backend.supports(spec, CUDA))
    with pytest.raises(KernelError, match="scaled-mm"):
        select(spec, CPU)


def test_devices_before_fp8_are_refused_and_newer_ones_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fp8_layer().spec
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, taken in (((8, 6), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)):
        scaled_mm._why_not_on_cuda.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert (backend.supports(spec, CUDA) is None) is taken
    scaled_mm._why_not_on_cuda.cache_clear()


def test_without_its_name_other_backends_take_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOLDSTICK_BACKEND")
    assert select(fp8_layer().spec, CPU).name != "scaled-mm"
