"""What a layer's weight is multiplied with, whoever wrote the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import goldstick
from goldstick.calibration.patches import reading, rows_read_by


class SamePadding(nn.Conv2d):
    """As in ports of EfficientNet: it pads by itself, and holds lists where torch holds tuples."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.stride = [2, 2]  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, [0, 1, 0, 1]), self.weight, self.bias, self.stride)


class Normed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.normalize(x, dim=-1))


IMAGES = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(0))
CONVOLUTIONS: list[tuple[nn.Module, Tensor]] = [
    (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2), torch.randn(2, 4, 15)),
    (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)), IMAGES),
    (nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), IMAGES),
    (nn.Conv3d(4, 6, 2, padding=1), torch.randn(2, 4, 5, 6, 3)),
    (SamePadding(4, 6, 3), IMAGES),
]


@pytest.mark.parametrize(("layer", "x"), CONVOLUTIONS, ids=lambda value: type(value).__name__)
def test_the_output_of_a_convolution_is_the_product_of_its_patches(layer: Any, x: Tensor) -> None:
    with torch.no_grad():
        rows = rows_read_by(layer, x)
        assert rows is not None
        found = rows @ layer.weight.flatten(1).T + layer.bias
        expected = layer(x).flatten(2).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_forward_of_its_own_is_followed_to_what_it_multiplies() -> None:
    layer, x = Normed(8, 4), torch.randn(3, 8)
    rows = rows_read_by(layer, x)
    assert rows is not None and torch.equal(rows, F.normalize(x, dim=-1))
    longhand = nn.Linear(8, 4)
    longhand.forward = lambda x: (2 * x) @ longhand.weight.T  # type: ignore[method-assign]
    rows = rows_read_by(longhand, x)
    assert rows is not None and torch.equal(rows, 2 * x)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.ConvTranspose2d(4, 6, 3),
        nn.Embedding(9, 8),
        nn.EmbeddingBag(9, 8),
        nn.LSTM(8, 8),
        nn.LSTMCell(8, 8),
        nn.MultiheadAttention(8, 2),
    ],
)
def test_where_there_is_no_one_product_nothing_is_given(layer: nn.Module) -> None:
    assert rows_read_by(layer, IMAGES) is None


def test_only_layers_that_read_alike_read_the_same_rows() -> None:
    assert reading(nn.Linear(8, 4)) == reading(nn.Linear(8, 6))
    assert reading(nn.Conv2d(4, 6, 3)) == reading(nn.Conv2d(4, 2, 3)) != reading(nn.Conv2d(4, 2, 3, stride=2))
    assert reading(SamePadding(4, 6, 3)) != reading(SamePadding(4, 6, 3)), "what they read is their own affair"


def test_gptq_solves_a_convolution_that_pads_by_itself_for_what_it_multiplies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(SamePadding(4, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 8)).eval()
    images = torch.rand(64, 4, 9, 8)
    scheme = {"scheme": "w3a16-channel", "targets": {"include": ["0"]}}
    solved = goldstick.apply(model, {"stages": [{"gptq": scheme}]}, data=[images])
    rounded = goldstick.apply(model, {"stages": [{"rtn": scheme}]})
    with torch.no_grad():
        errors = [float((one.model[0](images) - model[0](images)).norm()) for one in (solved, rounded)]
    assert errors[0] < 0.9 * errors[1]
