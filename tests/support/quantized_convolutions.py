"""Convolutions with random codes: their shapes, slow exact integers, and the instructions that kernels compute with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from goldstick.core.bitpack import pack_rows
from goldstick.kernels import cpu
from goldstick.kernels import ops as _ops  # noqa: F401  (registers the operators)
from goldstick.kernels.convolution import Geometry
from goldstick.kernels.prepared_convolution import Operands, PreparedConvolution

needs_extension = pytest.mark.skipif(cpu.missing_extension() is not None, reason="no compiled kernels")

#: in, out, groups, kernel, stride, padding, dilation, sides
SHAPES: list[tuple[Any, ...]] = [
    (3, 16, 1, (3, 3), (2, 2), (1, 1), (1, 1), (13, 17)),
    (5, 17, 1, (1, 1), (1, 1), (0, 0), (1, 1), (7, 70)),
    (16, 33, 1, (3, 2), (1, 2), (2, 0), (2, 3), (12, 9)),
    (64, 8, 1, (3, 3), (1, 1), (1, 1), (1, 1), (5, 5)),
    (70, 40, 1, (3, 3), (1, 1), (1, 1), (1, 1), (14, 14)),
    (12, 6, 3, (3, 3), (1, 1), (1, 1), (1, 1), (6, 8)),
    (10, 40, 5, (2, 2), (2, 1), (0, 1), (1, 1), (9, 9)),
    (6, 6, 6, (3, 3), (1, 1), (1, 1), (1, 1), (7, 7)),
    (6, 6, 6, (3, 3), (2, 2), (1, 1), (1, 1), (112, 90)),
    (70, 70, 70, (3, 3), (1, 1), (1, 1), (1, 1), (9, 5)),
    (37, 37, 37, (3, 3), (2, 2), (1, 1), (1, 1), (10, 9)),
    (36, 36, 36, (2, 5), (1, 3), (1, 2), (3, 1), (8, 12)),
    (4, 12, 4, (5, 5), (1, 1), (2, 2), (1, 1), (66, 70)),
    (3, 3, 3, (3, 3), (3, 3), (0, 0), (2, 2), (20, 20)),
    (8, 24, 1, (5,), (2,), (2,), (1,), (31,)),
    (8, 8, 8, (4,), (1,), (3,), (1,), (40,)),
    (9, 2, 1, (1,), (1,), (0,), (1,), (1,)),
    (64, 3, 1, (1, 1), (1, 1), (0, 0), (1, 1), (60, 60)),
    (32, 96, 2, (3, 3), (1, 1), (1, 1), (1, 1), (9, 9)),
    (7, 20, 1, (3, 5), (2, 1), (1, 2), (1, 1), (11, 40)),
]
#: More outputs than caches keep, and lines of which begin where memory's do or not.
LARGE: list[tuple[Any, ...]] = [
    (6, 48, 1, (1, 1), (1, 1), (0, 0), (1, 1), (200, 292)),
    (6, 40, 1, (1, 1), (1, 1), (0, 0), (1, 1), (251, 263)),
    (64, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), (208, 205)),
    (40, 40, 40, (3, 3), (1, 1), (1, 1), (1, 1), (263, 251)),
]
ACTIVATIONS = ("", "int8-token", "int8-tensor", "shifted")


def take_isa(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with those instructions, where they are here."""
    if isa == "avx2" and cpu.chosen_isa() == "scalar":
        pytest.skip("no AVX2 here")
    if isa != "best":
        monkeypatch.setenv("GOLDSTICK_ISA", isa)


every_isa = pytest.mark.parametrize("isa", ["scalar", "avx2", "best"])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


class Case:
    """A convolution with random codes."""

    def __init__(self, shape: tuple[Any, ...], activation: str, *, bits: int = 8, batch: int = 2) -> None:
        torch.manual_seed(0)
        self.channels, self.out, self.groups, self.kernel, *sizes, sides = shape
        self.stride, self.padding, self.dilation = sizes
        self.activation = "int8-tensor" if activation == "shifted" else activation
        self.codes = torch.randint(1 << bits, (self.out, self.channels // self.groups, *self.kernel), dtype=torch.uint8)
        self.bits, self.columns = bits, self.codes[0].numel()
        self.packed = pack_rows(self.codes.flatten(1), bits)
        self.scale, self.bias = torch.rand(self.out, 1) + 0.1, torch.randn(self.out)
        self.x = torch.randn(batch, self.channels, *sides)
        static = self.activation == "int8-tensor"
        self.input_scale = torch.tensor([0.021]) if static else None
        self.input_zero = torch.tensor([-37], dtype=torch.int8) if activation == "shifted" else None

    def run(self, x: Tensor | None = None, group_size: int | None = None) -> Tensor:
        found: Tensor = torch.ops.goldstick.quantized_convolution(
            self.x if x is None else x, self.packed, self.scale, None, self.bias, self.bits, group_size or self.columns,
            self.activation, self.channels, self.groups, self.kernel, self.stride, self.padding, self.dilation,
            self.input_scale, self.input_zero,
        )  # fmt: skip
        return found

    def prepared(self) -> tuple[PreparedConvolution, Operands]:
        """The layer and its operands."""
        geometry = Geometry(
            in_channels=self.channels, groups=self.groups, kernel=self.kernel, stride=self.stride,
            padding=self.padding, dilation=self.dilation,
        )  # fmt: skip
        weight = self.packed, self.scale, None, self.bias, self.input_scale, self.input_zero
        return PreparedConvolution(self.bits, self.columns, self.activation, geometry), weight

    def bounded(self, *bounds: float) -> Tensor:
        layer, weight = self.prepared()
        found = layer.run(self.x, weight, (bounds[0], bounds[1]))
        assert found is not None
        return found

    def rounded(self) -> tuple[Tensor, Tensor]:
        """The codes of the input less its zero, and a scale for each sample."""
        broadcast = (-1, *[1] * (self.x.ndim - 1))
        if self.input_scale is not None:
            zero = 0 if self.input_zero is None else int(self.input_zero)
            codes = (self.x / self.input_scale + zero).clamp(-128, 127).round() - zero
            return codes, self.input_scale.expand(len(self.x)).view(broadcast)
        largest = self.x.abs().flatten(1).amax(1).view(broadcast)
        if self.activation:
            return (self.x / (largest / 127.5)).clamp(-128, 127).round(), largest / 127.5
        scale = largest / 32639
        return (self.x * (1 / scale)).round(), scale

    def exact(self) -> Tensor:
        """Sums of whole numbers in float64, rounded where the kernels round."""
        codes, scale = self.rounded()
        run: Any = {1: F.conv1d, 2: F.conv2d}[len(self.kernel)]
        weight = self.codes.double() - 2 ** (self.bits - 1)
        sums = run(codes.double(), weight, None, self.stride, self.padding, self.dilation, self.groups)
        by_channel = (1, -1, *[1] * len(self.kernel))
        found: Tensor = sums.float() * (self.scale.view(by_channel) * scale) + self.bias.view(by_channel)
        return found
