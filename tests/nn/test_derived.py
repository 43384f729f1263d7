"""A quantized layer is the layer that it replaces in all but its numbers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.layout import Layout
from goldstick.core.scheme import Scheme
from goldstick.errors import StructureError
from goldstick.nn import PackedWeight, QuantizedEmbedding, QuantizedLinear
from goldstick.nn.derived import in_place_of
from goldstick.structure.network import layout_of

pytestmark = pytest.mark.usefixtures("reference_backend")


class SamePadding(nn.Conv2d):
    """As in ports of EfficientNet: it pads by itself, more behind than before."""

    def forward(self, x: Tensor) -> Tensor:
        more = [
            max((-(-side // step) - 1) * step + k - side, 0)
            for side, step, k in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
        ]
        x = F.pad(x, [more[1] // 2, more[1] - more[1] // 2, more[0] // 2, more[0] - more[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Standardized(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Longhand(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found = x.matmul(self.weight.t())
        return found if self.bias is None else found + self.bias


class Scaled(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.full((sizes[1],), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)) * self.gain


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(x, self.weight.abs())


class ScaledEmbedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 8.0


def images() -> Tensor:
    return torch.randn(2, 4, 13, 14)


def rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


LAYERS: list[tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = [
    (partial(nn.Linear, 32, 24), rows(3, 32)),
    (partial(nn.Linear, 32, 24, bias=False), rows(2, 5, 32)),
    (partial(Longhand, 32, 24), rows(2, 5, 32)),
    (partial(Scaled, 32, 24), rows(2, 5, 32)),
    (partial(Twice, 32, 24), rows(5, 32)),
    (partial(Conv1D, 24, 32), rows(2, 5, 32)),
    (partial(nn.Conv1d, 4, 8, 4, stride=2, padding=1), rows(2, 4, 15)),
    (partial(nn.Conv2d, 4, 8, 3, padding="same", padding_mode="reflect"), images),
    (partial(nn.Conv2d, 4, 8, 3, groups=4), images),
    (partial(nn.Conv3d, 4, 8, 2), rows(2, 4, 5, 6, 7)),
    (partial(SamePadding, 4, 8, 3, stride=2), images),
    (partial(SamePadding, 4, 4, 5, stride=2, groups=4), images),
    (partial(Standardized, 4, 8, 3, padding=1), images),
    (partial(nn.ConvTranspose1d, 4, 8, 4, stride=2), rows(2, 4, 15)),
    (partial(nn.ConvTranspose2d, 4, 8, 3, stride=2, output_padding=1), images),
    (partial(nn.ConvTranspose2d, 4, 8, 3, groups=2), images),
    (partial(nn.Embedding, 30, 32, padding_idx=2), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
    (partial(nn.Embedding, 30, 32, max_norm=1.0), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
    (partial(ScaledEmbedding, 30, 32), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
    (partial(nn.EmbeddingBag, 30, 32, mode="sum"), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
]


def quantized(layer: nn.Module, scheme: str = "w8a16") -> PackedWeight:
    """The layer quantized; its own weight becomes the dequantized one."""
    weight: Any = layer.weight
    layout = layout_of(layer, "weight", weight)
    assert layout is not None
    parsed = Scheme.parse(scheme)
    tensor = quantize_with_search(layout.to_matrix(weight.detach()), parsed.weight, "minmax")
    kinds = {Layout.LINEAR: QuantizedLinear, Layout.TRANSPOSED: QuantizedLinear, Layout.EMBEDDING: QuantizedEmbedding}
    new = in_place_of(kinds.get(layout, PackedWeight), layer, tensor, parsed, layout)
    with torch.no_grad():
        weight.copy_(layout.from_matrix(tensor.dequantize(), weight.shape))
    return new


every_layer = pytest.mark.parametrize(
    ("build", "inputs"), LAYERS, ids=[f"{build.func.__name__}{build.args}{build.keywords}" for build, _ in LAYERS]
)


@every_layer
def test_it_gives_what_the_layer_gives_with_the_dequantized_weight(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    layer, x = build(), inputs()
    new = quantized(layer)
    with torch.no_grad():
        torch.testing.assert_close(new(x), layer(x), rtol=1e-5, atol=1e-5)


@every_layer
def test_it_is_a_layer_of_the_class_that_it_replaces(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    layer = build().to(torch.bfloat16)
    new = quantized(layer)
    assert isinstance(new, type(layer)) and type(new).__name__ == f"Quantized{type(layer).__name__}"
    for name in ("in_features", "out_features", "nf", "kernel_size", "stride", "padding", "groups", "num_embeddings"):
        assert getattr(new, name, None) == getattr(layer, name, getattr(new, name, None))
    weight: Any = layer.weight
    for one in (weight, new.weight):
        assert (one.shape, one.dtype, one.device, one.ndim, len(one)) == (
            weight.shape,
            torch.bfloat16,
            torch.device("cpu"),
            weight.ndim,
            len(weight),
        )
    assert next(new.parameters()).dtype is torch.bfloat16
    assert torch.equal(new.weight.float(), weight.float())
    assert new.to(torch.float32).weight.dtype is torch.float32


@every_layer
@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_of_it_is_equal(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor], again: Callable[[nn.Module], nn.Module]
) -> None:
    new, x = quantized(build()), inputs()
    twin = again(new)
    assert type(twin) is type(new)
    with torch.no_grad():
        assert torch.equal(twin(x), new(x))
    assert all(mine.data_ptr() != theirs.data_ptr() for mine, theirs in zip(new.buffers(), twin.buffers(), strict=True))


def test_the_layer_that_is_replaced_is_left_as_it_is_and_its_other_parameters_are_kept() -> None:
    layer = Scaled(32, 24)
    new = quantized(layer)
    assert set(dict(layer.named_parameters())) == {"weight", "bias", "gain"}
    assert set(dict(new.named_parameters())) == {"weight_scale", "bias", "gain"}
    assert new.gain is layer.gain


def test_hooks_stay_and_whoever_set_one_can_take_it_off() -> None:
    layer, seen = nn.Linear(32, 24), []
    handle = layer.register_forward_hook(lambda *_: seen.append(1))
    new = quantized(layer)
    new(torch.randn(1, 32))
    handle.remove()
    new(torch.randn(1, 32))
    assert seen == [1]


def test_a_forward_that_one_layer_was_given_is_kept_or_refused() -> None:
    bound = nn.Linear(32, 24)
    bound.forward = Longhand.forward.__get__(bound)  # type: ignore[method-assign]
    new, x = quantized(bound), torch.randn(3, 32)
    torch.testing.assert_close(new(x), bound(x))
    foreign = nn.Linear(32, 24)
    plain = foreign.forward
    foreign.forward = lambda x: plain(x)  # type: ignore[method-assign]
    with pytest.raises(StructureError, match=r"stands in the place of the forward of this Linear.*Take it off first"):
        quantized(foreign)


def test_a_quantized_layer_is_not_quantized_again() -> None:
    tensor, scheme = quantized(nn.Linear(32, 24)).quantized_tensor(), Scheme.parse("w8a16")
    new = quantized(nn.Linear(32, 24))
    new._parameters["weight"] = nn.Parameter(torch.empty(24, 32))
    with pytest.raises(StructureError, match="quantized already"):
        in_place_of(QuantizedLinear, new, tensor, scheme)
