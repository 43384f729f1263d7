"""A quantized convolution rounds its input as its scheme says, pads as the layer does, and is stored and loaded."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import goldstick
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.layout import Layout
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError
from goldstick.nn import QuantizedConvolution
from goldstick.nn.derived import in_place_of

LAYERS = [
    (partial(nn.Conv2d, 6, 8, 3, padding=1), (2, 6, 9, 11)),
    (partial(nn.Conv2d, 6, 6, 3, groups=6, stride=2, padding=(0, 1)), (2, 6, 9, 11)),
    (partial(nn.Conv2d, 6, 8, 4, padding="same"), (2, 6, 9, 11)),
    (partial(nn.Conv2d, 6, 8, 3, padding="same", padding_mode="reflect"), (6, 9, 11)),
    (partial(nn.Conv1d, 6, 8, 3, padding=2, padding_mode="circular", bias=False), (2, 6, 9)),
    (partial(nn.Conv1d, 6, 12, 3, groups=3, dilation=2), (6, 9)),
]
WEIGHT_ONLY = (
    "w2a16-g32", "w3a16-channel", "w4a16-g32-asym", "w8a16", "nf4a16", "fp8a16", "mxfp4a16", "mxfp8a16", "nvfp4a16",
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "iq4_nl", "q4_0", "q8_0",
)  # fmt: skip
every_layer = pytest.mark.parametrize(("build", "shape"), LAYERS, ids=str)


def quantized(layer: Any, scheme: str, **inputs: Tensor) -> QuantizedConvolution:
    parsed = Scheme.parse(scheme)
    tensor = quantize_with_search(Layout.CONVOLUTION.to_matrix(layer.weight.detach()), parsed.weight, "minmax")
    new = in_place_of(QuantizedConvolution, layer, tensor, parsed, Layout.CONVOLUTION, **inputs)
    with torch.no_grad():
        layer.weight.copy_(Layout.CONVOLUTION.from_matrix(tensor.dequantize(), layer.weight.shape))
    assert isinstance(new, QuantizedConvolution)
    return new


@every_layer
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_a_static_input_is_rounded_to_its_range_and_padded_with_nothing(build: Any, shape: tuple[int, ...]) -> None:
    layer, x = build(), torch.randn(shape)
    scale, zero = torch.tensor(0.013), torch.tensor(-20, dtype=torch.int8)
    new = quantized(layer, "w8a8-static-shifted", input_scale=scale, input_zero=zero)
    rounded = ((x / scale + zero).clamp(-128, 127).round() - zero) * scale
    with torch.no_grad():
        torch.testing.assert_close(new(x), layer(rounded), rtol=1e-4, atol=1e-4)


@every_layer
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_a_dynamic_input_has_a_scale_for_each_sample(build: Any, shape: tuple[int, ...]) -> None:
    layer, x = build(), torch.randn(shape)
    new = quantized(layer, "w8a8-dynamic")
    alone = x.ndim == len(layer.kernel_size) + 1
    samples = x.unsqueeze(0) if alone else x
    scale = samples.abs().flatten(1).amax(1).view(-1, *[1] * (samples.ndim - 1)) / 127.5
    rounded = (samples / scale).clamp(-128, 127).round() * scale
    with torch.no_grad():
        torch.testing.assert_close(new(x), layer(rounded[0] if alone else rounded), rtol=1e-4, atol=1e-4)


def test_a_change_of_its_numbers_is_seen() -> None:
    new, x = quantized(nn.Conv2d(4, 8, 3), "w8a8-dynamic"), torch.randn(1, 4, 6, 6)
    other = quantized(nn.Conv2d(4, 8, 3), "w8a8-dynamic")
    with torch.no_grad():
        new(x)
        new.load_state_dict(other.state_dict())
        assert torch.equal(new(x), other(x))
        new.weight_scale.mul_(2)
        shift = other.bias[:, None, None]
        torch.testing.assert_close(new(x) - shift, 2 * (other(x) - shift))
        twin = copy.deepcopy(new).to(torch.bfloat16)
        torch.testing.assert_close(twin(x.bfloat16()).float(), new(x), rtol=0.05, atol=0.05)


def test_it_trains_what_comes_before() -> None:
    new, x = quantized(nn.Conv2d(4, 8, 3), "w8a8-dynamic"), torch.randn(1, 4, 6, 6, requires_grad=True)
    new(x).sum().backward()
    wanted = torch.nn.grad.conv2d_input(x.shape, new.stored_numbers(), torch.ones(1, 8, 4, 4))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(x.grad, wanted)


def test_a_static_range_is_given_where_it_is_wanted_and_only_there() -> None:
    with pytest.raises(QuantizationError, match="takes a scale and no zero"):
        quantized(nn.Conv2d(4, 8, 3), "w8a8-static")
    with pytest.raises(QuantizationError, match="takes neither"):
        quantized(nn.Conv2d(4, 8, 3), "w8a16", input_scale=torch.tensor(0.1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.deep, self.line = nn.Conv2d(8, 8, 3, groups=8), nn.Conv1d(8, 6, 3)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.deep(self.norm(self.first(x)).relu()).flatten(2)
        found: Tensor = self.head(F.relu(self.line(x)).mean(2))
        return found


@pytest.mark.parametrize(
    "recipe", ["rtn-w8a8-dynamic", "gptq-w8a8-static", "fold-rtn-w8a8-static-shifted", "fold-rtn-w4a16"]
)
def test_a_network_of_them_is_stored_and_loaded_equal(recipe: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    model.norm.running_mean.normal_()  # type: ignore[operator, union-attr]
    x = torch.randn(8, 3, 9, 9)
    data = {"data": [x]} if "static" in recipe or "fold" in recipe else {}
    result = goldstick.apply(model, recipe, **data)
    result.save(tmp_path / "saved")
    again = goldstick.load(tmp_path / "saved", model=Net())
    with torch.no_grad():
        assert torch.equal(again(x), result.model(x))
        assert float((again(x) - model(x)).norm() / model(x).norm()) < (0.5 if "w4" in recipe else 0.05)
    assert isinstance(again.norm, nn.Identity if "fold" in recipe else nn.BatchNorm2d)
    assert "w8a8-static" not in recipe or again.deep.input_scale is not None


@pytest.mark.parametrize("build", [partial(nn.Conv2d, 32, 8, 4), partial(nn.Conv1d, 64, 8, 4)], ids=["2d", "1d"])
@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_weights_of_every_grid_give_what_their_numbers_give(scheme: str, build: Any) -> None:
    """Scales of scales among them, which the operator does not take."""
    torch.manual_seed(0)
    layer = build()
    x = torch.randn(2, layer.in_channels, *[7] * len(layer.kernel_size))
    expected = layer(x)
    result = goldstick.apply(nn.Sequential(layer), {"stages": [{"rtn": {"scheme": scheme}}]})
    assert isinstance(result.model[0], QuantizedConvolution)
    found = result.model(x)
    with torch.no_grad():
        layer.weight.copy_(result.model[0].stored_numbers())
        torch.testing.assert_close(found, layer(x), rtol=1e-4, atol=2e-4)
        assert float((found - expected).norm() / expected.norm()) < 0.5


class Padding(nn.Conv2d):
    """As in ports of EfficientNet: it pads by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, [0, 1, 0, 1]), self.weight, self.bias, self.stride)


@pytest.mark.parametrize("recipe", ["rtn-w8a8-dynamic", "gptq-w8a8-static"])
def test_one_that_pads_by_itself_becomes_weight_only_beside_others_and_the_report_says_why(recipe: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Padding(4, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    x = torch.randn(2, 4, 12, 12)
    result = goldstick.apply(model, recipe, data=[x] if "static" in recipe else None)
    first, second = (layer for layer in result.report.layers if layer.scheme is not None)
    assert first.scheme == "w8a16-channel"
    assert first.reason == "weight only: a convolution with a forward of its own takes no 8-bit activations"
    assert second.scheme == f"{recipe.split('-', 1)[1]}-channel" and not second.reason
    with torch.no_grad():
        model[0].weight.copy_(result.model[0].weight.numbers())  # type: ignore[operator, union-attr]
        assert torch.equal(result.model[0](x), model[0](x)), "padded as before, and its input is not rounded"
