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
from goldstick.errors import CheckpointError, QuantizationError
from goldstick.formats import FORMATS
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name, unpack_input

GRIDS = st.builds(
    lambda bits, symmetric, size: Grid(
        bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size
    ),
    st.integers(1, 8),
    st.booleans(),
    st.none() | st.integers(2, 40),
)


#: The formats that hold every grid and 8-bit activations. test_gptq.py, test_awq.py and test_gguf_blocks.py ask the
#: same of the others.
ANY_GRID = ("compressed-tensors", "native")


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
    scale = torch.tensor(0.375) if scheme.static_input else None
    shifted = scheme.static_input and scheme.activation is not None and not scheme.activation.symmetric
    zero = torch.tensor(-77, dtype=torch.int8) if shifted else None
    parts = storage.pack(tensor, scheme, scale, zero)
    announced = storage.specs(layer_of(tensor, scheme), tensor.scale.dtype)
    assert {suffix: (part.shape, part.dtype) for suffix, part in parts.items()} == announced
    assert all(part.is_contiguous() for part in parts.values()), "safetensors stores nothing else"
    assert_same(storage.unpack(parts, scheme, tensor.in_features), tensor)
    found = unpack_input(parts, scheme, "up")
    assert [None if value is None else value.item() for value in found] == [
        None if value is None else value.item() for value in (scale, zero)
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_it_is_registered_under_its_own_name(name: str) -> None:
    assert FORMATS[name].name == name


@pytest.mark.parametrize("name", ANY_GRID)
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


@pytest.mark.parametrize("name", ANY_GRID)
@given(
    label=st.sampled_from(["w8a8-dynamic", "w8a8-static", "w8a8-static-shifted", "w4a8-dynamic-g8", "w4a8-static-g8"]),
    rows=st.integers(1, 37),
    columns=st.integers(1, 75),
    seed=st.integers(0, 2**31),
)
def test_so_does_a_layer_with_8_bit_activations(name: str, label: str, rows: int, columns: int, seed: int) -> None:
    scheme = Scheme.parse(label)
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


@pytest.mark.parametrize("name", ANY_GRID)
def test_a_static_input_without_its_scale_is_neither_packed_nor_unpacked(name: str) -> None:
    scheme = Scheme.parse("w8a8-static-shifted")
    tensor = random_tensor(scheme.weight, (4, 8), 0, torch.float32)
    scale, zero = torch.tensor(0.5), torch.tensor(3, dtype=torch.int8)
    with pytest.raises(QuantizationError, match="takes a scale and a zero, and what was given is scale"):
        FORMATS[name].pack(tensor, scheme, scale)
    with pytest.raises(QuantizationError, match="takes neither, and what was given is scale and zero"):
        FORMATS[name].pack(tensor, Scheme.parse("w8a8-dynamic"), scale, zero)
    parts = FORMATS[name].pack(tensor, scheme, scale, zero)
    del parts[".input_zero_point"]
    with pytest.raises(CheckpointError, match=r"'layers\.0\.up\.input_zero_point' is missing"):
        unpack_input(parts, scheme, "layers.0.up")


def test_parts_of_an_input_stand_beside_the_weight() -> None:
    assert part_name("a.up.weight", "_scale") == "a.up.weight_scale"
    assert part_name("a.up.weight", "") == "a.up.weight"
    assert part_name("a.up.weight", ".input_scale") == "a.up.input_scale"


@pytest.mark.parametrize("name", FORMATS)
def test_packing_changes_nothing_of_what_it_is_given(name: str) -> None:
    grid = Grid(bits=4, symmetric=name in ("gptq", "gguf"), granularity="group", group_size=32)
    tensor, again = (random_tensor(grid, (8, 96), 1, torch.float16) for _ in range(2))
    FORMATS[name].pack(tensor, Scheme(weight=grid))
    assert_same(tensor, again)
