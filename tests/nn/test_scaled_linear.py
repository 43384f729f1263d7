"""A layer whose scales learn: at its start what the layer is, its gradients, what is stored in the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import goldstick
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme
from goldstick.nn import QuantizedLinear
from goldstick.nn.scaled_linear import can_learn_scales, learn_scales, settle

pytestmark = pytest.mark.usefixtures("reference_backend")

SCHEMES = (
    "w4a16-g16", "w2a16-g16-asym", "w8a16", "w8a8-dynamic", "w8a8-static", "fp8-dynamic", "nvfp4a16", "nf4a16",
)  # fmt: skip


def made(name: str, dtype: torch.dtype = torch.float32, **inputs: Any) -> QuantizedLinear:
    scheme = Scheme.parse(name)
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    if scheme.static_input:
        inputs["input_scale"] = torch.tensor(0.05)
    bias = torch.linspace(-1, 1, 24).to(dtype)
    return QuantizedLinear(quantize_with_search(weight, scheme.weight, "minmax"), scheme, bias, **inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SCHEMES)
def test_it_begins_as_the_layer_is(name: str, dtype: torch.dtype) -> None:
    layer = made(name, dtype)
    x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight, output = layer.dequantized(), layer(x)
    learned = learn_scales(layer, 1e-3)
    assert torch.equal(learned().to(dtype), weight) and torch.equal(layer.dequantized(), weight)
    wide = layer(x.float())  # as in a training, in float32
    torch.testing.assert_close(wide.to(dtype), output, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


def test_what_is_done_to_its_input_is_done_here_too() -> None:
    layer = made("w8a8-dynamic", input_multiplier=torch.logspace(-1, 1, 64))
    x = torch.randn(7, 64)
    output = layer(x)
    learn_scales(layer, 1e-3)
    torch.testing.assert_close(layer(x), output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["w4a16-g16", "w2a16-g16-asym", "w8a8-dynamic", "nvfp4a16"])
def test_the_gradient_of_a_scale_is_that_of_the_product(name: str) -> None:
    layer = made(name)
    learned = learn_scales(layer, 1e-3)
    x = torch.randn(5, 64, requires_grad=True)
    out = layer(x)
    towards = torch.randn_like(out)
    (out * towards).sum().backward()
    weight = learned().detach()
    given = x.detach()  # gradients pass the rounding of an input, whose rounded numbers are those multiplied
    if name == "w8a8-dynamic":
        steps = given.abs().amax(-1, keepdim=True) / 127.5
        given = (given / steps).clamp(-128, 127).round() * steps
    expected = (weight * (towards.T @ given)).reshape(24, -1, min(learned.width, 64)).sum(-1)
    found = learned.scale.log_scale.grad
    assert found is not None and x.grad is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad, towards @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "stored"), [("w4a16-g16", None), ("w4a16-g16", torch.float16), ("nvfp4a16", None)])
def test_what_it_learns_can_be_stored(name: str, stored: torch.dtype | None) -> None:
    layer = made(name, torch.bfloat16)
    kind, before = type(layer), layer.quantized_tensor()
    learned = learn_scales(layer, 1e-3, stored)
    with torch.no_grad():
        learned.scale.log_scale.add_(0.1 * torch.randn_like(learned.scale.log_scale))
    wanted = learned().detach()
    settle(layer, learned.settled())
    assert type(layer) is kind and not list(layer.children())
    after = layer.quantized_tensor()
    assert torch.equal(after.codes, before.codes) and not torch.equal(after.scale, before.scale)
    assert after.scale.dtype == torch.bfloat16
    kept = after.scale.to(torch.float8_e4m3fn if name == "nvfp4a16" else stored or torch.bfloat16)
    assert torch.equal(kept.to(torch.bfloat16), after.scale)
    assert torch.equal(layer.dequantized().float(), wanted)
    settle(layer, learned.at_first())
    assert torch.equal(layer.quantized_tensor().scale, before.scale)


@pytest.mark.parametrize("inputs", [{}, {"input_multiplier": torch.logspace(-1, 1, 64)}])
def test_whoever_reads_its_weight_reads_what_learns(inputs: dict[str, Tensor]) -> None:
    layer = made("w4a16-g16", **inputs)
    x, numbers = torch.randn(5, 64), layer.weight.clone()
    direct = F.linear(x, layer.weight, layer.bias)
    learned = learn_scales(layer, 1e-3)
    torch.testing.assert_close(F.linear(x, layer.weight, layer.bias), direct, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer.weight.clone(), numbers)
    for read in (F.linear(x, layer.weight), torch.einsum("oi,bi->bo", layer.weight, x)):
        (found,) = torch.autograd.grad(read.square().sum(), learned.scale.log_scale)
        assert bool((found != 0).all())


def test_it_stays_a_layer_of_its_class_for_all_that_a_forward_asks() -> None:
    model: Any = goldstick.apply(nn.Sequential(nn.Linear(64, 8)), "rtn-w8a16").model
    layer = model[0]
    learn_scales(layer, 1e-3)
    assert isinstance(layer, nn.Linear) and (layer.in_features, layer.out_features) == (64, 8)
    assert layer.weight.shape == (8, 64) and layer.bias is not None
    x = torch.randn(2, 64)
    assert torch.equal(layer(input=x), layer(x))


class Doubled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        """Twice."""
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("layer", "scheme", "stands"),
    [
        (nn.Linear(64, 8), "w4a16-g32", True), (nn.Linear(64, 8), "mxfp4a16", False),  # powers of two
        (nn.Linear(128, 128), "fp8-block", False), (Doubled(64, 8), "w4a16-g32", False),
        (nn.Conv1d(64, 8, 1), "w8a16", False),
    ],
)  # fmt: skip
def test_layers_learn_that_compute_as_quantized_linear_ones_do_and_can(
    layer: nn.Module, scheme: str, stands: bool
) -> None:
    model = goldstick.apply(nn.Sequential(layer), {"stages": [{"rtn": {"scheme": scheme}}]}).model
    assert can_learn_scales(model[0]) is stands  # type: ignore[index]
