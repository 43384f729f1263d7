"""Layers for the tests of GPTQ and AWQ, and their layouts once more, field by field, in plain Python."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.grid import POWERS_OF_TWO, Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.formats.base import StoredLayer


def grid_of(bits: int, symmetric: bool, size: int | None) -> Grid:
    return Grid(bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size)


def random_layer(grid: Grid, rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float16) -> QuantizedTensor:
    generator = torch.Generator().manual_seed(seed)
    scales = (rows, grid.groups(columns))
    zero = None if grid.symmetric else torch.randint(0, grid.code_max + 1, scales, generator=generator).float()
    codes = torch.randint(0, grid.code_max + 1, (rows, columns), generator=generator, dtype=torch.uint8)
    scale = (torch.rand(scales, generator=generator) + 0.01).half().to(dtype)
    return QuantizedTensor(
        codes=codes,
        scale=scale.float().log2().round().exp2() if grid.scale == POWERS_OF_TWO else scale,
        zero=zero,
        grid=grid,
    )


def random_superblocks(grid: Grid, rows: int, columns: int, seed: int) -> QuantizedTensor:
    """Codes, scales and minimums anywhere in their range, with float16 scales of scales."""
    assert grid.scale is not None
    generator = torch.Generator().manual_seed(seed)
    shape, low = (rows, grid.groups(columns)), -grid.scale.midpoint if grid.symmetric else 0
    planes = (rows, 1 + grid.minimums, columns // (grid.superblock or columns))
    high = low + grid.scale.code_max + 1
    return QuantizedTensor(
        codes=torch.randint(0, grid.code_max + 1, (rows, columns), generator=generator, dtype=torch.uint8),
        scale=torch.randint(low, high, shape, generator=generator).float(),
        zero=torch.randint(low, high, shape, generator=generator).float() if grid.minimums else None,
        grid=grid,
        global_scale=torch.randn(planes, generator=generator).half().float(),
    )


def layer_of(tensor: QuantizedTensor, **changes: object) -> StoredLayer:
    fields: dict[str, object] = {
        "name": "layers.0.up.weight",
        "site": "layers.0.up",
        "kind": "linear",
        "shape": tensor.codes.shape,
        "scheme": Scheme(weight=tensor.grid),
        "fractional_zeros": False,
        "scale_dtype": tensor.scale.dtype,
    }
    return StoredLayer(**{**fields, **changes})  # type: ignore[arg-type]


def same(found: QuantizedTensor, tensor: QuantizedTensor) -> bool:
    zeros = (found.zero, tensor.zero)
    equal_zeros = zeros[0] is zeros[1] or (zeros[0] is not None and zeros[1] is not None and zeros[0].equal(zeros[1]))
    above = (found.global_scale, tensor.global_scale)
    equal_above = above[0] is above[1] or (above[0] is not None and above[1] is not None and above[0].equal(above[1]))
    return found.codes.equal(tensor.codes) and found.scale.equal(tensor.scale) and equal_zeros and equal_above


def stream(values: list[int], bits: int) -> list[int]:
    """Values as one long number, lowest first, cut into signed 32-bit words."""
    number = sum(value << (bits * position) for position, value in enumerate(values))
    words = [(number >> (32 * word)) & 0xFFFFFFFF for word in range(len(values) * bits // 32)]
    return [word - (1 << 32) if word >> 31 else word for word in words]


def down_columns(table: list[list[int]], bits: int) -> Tensor:
    """[n][columns] packed down every column: int32 [n · bits / 32, columns]."""
    columns = [stream([row[index] for row in table], bits) for index in range(len(table[0]))]
    return torch.tensor(columns, dtype=torch.int32).T


def along_rows(table: list[list[int]], bits: int) -> Tensor:
    """[rows][n] packed along every row: int32 [rows, n · bits / 32]."""
    return torch.tensor([stream(row, bits) for row in table], dtype=torch.int32)
