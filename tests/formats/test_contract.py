"""What every storage format keeps to: what was packed comes back, and looks as announced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.formats import FORMATS
from goldstick.formats.base import StorageFormat, StoredLayer

GRIDS = st.builds(
    lambda bits, symmetric, size: Grid(
        bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size
    ),
    st.integers(1, 8),
    st.booleans(),
    st.none() | st.integers(2, 40),
)


def random_tensor(grid: Grid, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> QuantizedTensor:
    generator = torch.Generator().manual_seed(seed)
    scales = (*shape[:-1], grid.groups(shape[-1]))
    zero: Tensor | None = None
    if not grid.symmetric:
        zero = torch.randint(0, grid.code_max + 1, scales, generator=generator).float()
    return QuantizedTensor(
        codes=torch.randint(0, grid.code_max + 1, shape, generator=generator, dtype=torch.uint8),
        scale=torch.rand(scales, generator=generator).to(dtype),
        zero=zero,
        grid=grid,
    )


def layer_of(tensor: QuantizedTensor, scheme: Scheme) -> StoredLayer:
    return StoredLayer(
        name="layers.0.up.weight",
        site="layers.0.up",
        kind="linear",
        shape=tensor.codes.shape,
        scheme=scheme,
        fractional_zeros=False,
    )


def assert_same(found: QuantizedTensor, tensor: QuantizedTensor) -> None:
    assert torch.equal(found.codes, tensor.codes)
    assert torch.equal(found.scale, tensor.scale)
    assert (found.zero is None) == (tensor.zero is None)
    assert found.zero is None or tensor.zero is None or torch.equal(found.zero, tensor.zero)
    assert found.grid == tensor.grid


def check(storage: StorageFormat, tensor: QuantizedTensor, scheme: Scheme) -> None:
    """Round trip, and the announcement."""
    parts = storage.pack(tensor, scheme)
    announced = storage.specs(layer_of(tensor, scheme), tensor.scale.dtype)
    assert {suffix: (part.shape, part.dtype) for suffix, part in parts.items()} == announced
    assert all(part.is_contiguous() for part in parts.values()), "safetensors stores nothing else"
    assert_same(storage.unpack(parts, scheme, tensor.in_features), tensor)


@pytest.mark.parametrize("name", FORMATS)
def test_it_is_registered_under_its_own_name(name: str) -> None:
    assert FORMATS[name].name == name


@pytest.mark.parametrize("name", FORMATS)
@given(
    grid=GRIDS,
    rows=st.integers(1, 37),
    columns=st.integers(1, 75),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_what_was_packed_comes_back_as_announced(
    name: str, grid: Grid, rows: int, columns: int, seed: int, dtype: torch.dtype
) -> None:
    check(FORMATS[name], random_tensor(grid, (rows, columns), seed, dtype), Scheme(weight=grid))


@pytest.mark.parametrize("name", FORMATS)
@given(rows=st.integers(1, 37), columns=st.integers(1, 75), seed=st.integers(0, 2**31))
def test_so_does_a_layer_with_8_bit_activations(name: str, rows: int, columns: int, seed: int) -> None:
    scheme = Scheme.parse("w8a8-dynamic")
    check(FORMATS[name], random_tensor(scheme.weight, (rows, columns), seed, torch.bfloat16), scheme)


@given(
    grid=GRIDS, experts=st.integers(1, 4), rows=st.integers(1, 9), columns=st.integers(1, 40), shift=st.floats(0, 0.99)
)
def test_the_native_format_holds_experts_and_fractional_zeros(
    grid: Grid, experts: int, rows: int, columns: int, shift: float
) -> None:
    tensor = random_tensor(grid, (experts, rows, columns), 0, torch.float32)
    if tensor.zero is not None:
        tensor.zero.add_(shift)
    check(FORMATS["native"], tensor, Scheme(weight=grid))


@pytest.mark.parametrize("name", FORMATS)
def test_packing_changes_nothing_of_what_it_is_given(name: str) -> None:
    grid = Grid(bits=3, symmetric=False, granularity="group", group_size=8)
    tensor, again = (random_tensor(grid, (5, 24), 1, torch.float32) for _ in range(2))
    FORMATS[name].pack(tensor, Scheme(weight=grid))
    assert_same(tensor, again)
