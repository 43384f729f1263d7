"""What every storage format keeps to: what was packed comes back, and looks as announced."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.algorithms.ranges import quantize_with_search
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


#: Schemes of which every format holds some.
USUAL = [
    Scheme.parse(label)
    for label in (
        "w2a16-g32", "w3a16-g32", "w4a16-g32", "w4a16-g64", "w4a16-g128", "w4a16-channel", "w4a16-g32-asym", "w8a16",
        "w8a16-g32", "w8a8-dynamic", "w8a8-static", "w8a8-static-shifted", "w4a8-dynamic-g32", "w4a4-dynamic-g32",
        "fp8", "fp8-block", "fp8-dynamic", "nvfp4a16", "nvfp4", "mxfp4a16", "nf4a16",
    )
]  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
every_format = pytest.mark.parametrize("name", FORMATS)


def random_tensor(grid: Grid, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> QuantizedTensor:
    generator = torch.Generator().manual_seed(seed)
    if not grid.integers:
        weight = torch.randn(shape, generator=generator).to(dtype)
        return quantize_with_search(weight, grid, "mse")
    scales = (*shape[:-1], grid.groups(shape[-1]))
    zero: Tensor | None = None
    if not grid.symmetric:
        zero = torch.randint(0, grid.code_max + 1, scales, generator=generator).float()
    return QuantizedTensor(
        codes=torch.randint(0, grid.code_max + 1, shape, generator=generator, dtype=torch.uint8),
        scale=(torch.rand(scales, generator=generator) * 0.99 + 0.01).to(dtype),  # in float16 as well
        zero=zero,
        grid=grid,
    )


def layer_of(tensor: QuantizedTensor, scheme: Scheme) -> StoredLayer:
    stacked = tensor.codes.ndim > 2
    return StoredLayer(
        name="layers.0.experts.up" if stacked else "layers.0.up.weight",
        site="layers.0.experts.up" if stacked else "layers.0.up",
        kind="experts" if stacked else "linear",
        shape=tensor.codes.shape,
        scheme=scheme,
        fractional_zeros=False,
        scale_dtype=tensor.scale.dtype,
    )


def by_column(values: Tensor, grid: Grid, columns: int) -> Tensor:
    return values.double().repeat_interleave(grid.group_width(columns), dim=-1)[..., :columns]


def assert_same(found: QuantizedTensor, tensor: QuantizedTensor) -> None:
    """Codes, and scale and zero of every code: blocks repeat those of larger groups."""
    columns = tensor.in_features
    assert torch.equal(found.codes, tensor.codes)
    assert torch.equal(by_column(found.scale, found.grid, columns), by_column(tensor.scale, tensor.grid, columns))
    assert (found.zero is None) == (tensor.zero is None)
    if found.zero is not None and tensor.zero is not None:
        assert torch.equal(by_column(found.zero, found.grid, columns), by_column(tensor.zero, tensor.grid, columns))
    assert (found.grid.bits, found.grid.symmetric) == (tensor.grid.bits, tensor.grid.symmetric)


def held_by(name: str) -> list[tuple[QuantizedTensor, Scheme]]:
    """Layers of the usual schemes that a format holds."""
    shapes = ((64, 256), (3, 64, 256)) if FORMATS[name].holds_stacks else ((64, 256),)
    tensors = [
        (random_tensor(one.weight, shape, 1, dtype), one) for one in USUAL for dtype in DTYPES for shape in shapes
    ]
    return [(tensor, scheme) for tensor, scheme in tensors if FORMATS[name].refuses(layer_of(tensor, scheme)) is None]


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
    found = storage.unpack_input(parts, scheme, "up")
    assert [None if value is None else value.item() for value in found] == [
        None if value is None else value.item() for value in (scale, zero)
    ]


@every_format
def test_it_is_registered_under_its_own_name(name: str) -> None:
    assert FORMATS[name].name == name


@every_format
def test_every_usual_scheme_that_it_holds_comes_back_as_announced(name: str) -> None:
    held = held_by(name)
    assert held, "a format that holds none of the usual schemes needs one of its own in USUAL"
    for tensor, scheme in held:
        check(FORMATS[name], tensor, scheme)


@every_format
@given(
    grid=GRIDS,
    rows=st.integers(1, 37) | st.sampled_from([32, 64]),
    columns=st.integers(1, 75) | st.sampled_from([64, 96]),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(DTYPES),
)
def test_so_does_any_layer_that_it_does_not_refuse(
    name: str, grid: Grid, rows: int, columns: int, seed: int, dtype: torch.dtype
) -> None:
    tensor = random_tensor(grid, (rows, columns), seed, dtype)
    if FORMATS[name].refuses(layer_of(tensor, Scheme(weight=grid))) is None:
        check(FORMATS[name], tensor, Scheme(weight=grid))


@every_format
@given(
    label=st.sampled_from(
        ["w8a8-dynamic", "w8a8-static", "w8a8-static-shifted", "w4a8-dynamic-g8", "w4a4-dynamic-g8", "w4a8-static-g8"]
    ),
    rows=st.integers(1, 37),
    columns=st.integers(1, 75),
    seed=st.integers(0, 2**31),
)
def test_so_does_one_with_8_bit_activations(name: str, label: str, rows: int, columns: int, seed: int) -> None:
    scheme = Scheme.parse(label)
    tensor = random_tensor(scheme.weight, (rows, columns), seed, torch.bfloat16)
    if FORMATS[name].refuses(layer_of(tensor, scheme)) is None:
        check(FORMATS[name], tensor, scheme)


class Stored:
    """A tensor of a checkpoint, as its header announces it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.dtype = tensor, tensor.shape, tensor.dtype

    def read(self) -> Tensor:
        return self.tensor


@every_format
def test_its_config_says_what_its_tensors_are_and_no_other_format_claims_it(name: str) -> None:
    storage = FORMATS[name]
    for tensor, scheme in held_by(name):
        layer = layer_of(tensor, scheme)
        config = json.loads(json.dumps(storage.config([layer], [], {})))
        assert [other for other in FORMATS if FORMATS[other].claims(config)] == [name]
        scale = torch.tensor(0.375) if scheme.static_input else None
        shifted = scheme.static_input and scheme.activation is not None and not scheme.activation.symmetric
        parts = storage.pack(tensor, scheme, scale, torch.tensor(-77, dtype=torch.int8) if shifted else None)
        tensors: Any = {part_name(layer.name, suffix): Stored(part) for suffix, part in parts.items()}
        (codes,) = [part for part in tensors if storage.weight_name(part, tensors[part].dtype) == layer.name]
        found = storage.schemes(config, tensors)(codes, layer.site)
        assert found is not None and found.activation == scheme.activation
        assert_same(storage.unpack(parts, found, tensor.in_features), tensor)
        assert storage.matrix_shape(codes, tensors, tensor.in_features) == tensor.codes.shape
        dtype = storage.scale_dtype(layer.name, scheme.weight, tensors)
        again = storage.stored_specs(dataclasses.replace(layer, scale_dtype=dtype), tensors)
        assert again == {suffix: (part.shape, part.dtype) for suffix, part in parts.items()}
        assert storage.listed(config).schemes in ({}, {layer.site: found})


@every_format
def test_where_its_scales_and_codes_lie_their_shapes_fit_the_scheme(name: str) -> None:
    storage = FORMATS[name]
    for tensor, scheme in held_by(name):
        specs = storage.specs(layer_of(tensor, scheme), tensor.scale.dtype)
        if storage.codes_suffix in specs and storage.scale_suffix in specs:
            parts: Any = [specs[suffix] for suffix in (storage.codes_suffix, storage.scale_suffix)]
            headers: Any = [Stored(torch.empty(shape, dtype=dtype, device="meta")) for shape, dtype in parts]
            found = storage.fitting(*headers, tensor.in_features)
            assert found == (scheme.weight.bits, tensor.scale.shape[-1])


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


@pytest.mark.parametrize("name", ["native", "compressed-tensors"])
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


@every_format
def test_packing_changes_nothing_of_what_it_is_given(name: str) -> None:
    for tensor, scheme in held_by(name):
        if not scheme.static_input:
            again = copy.deepcopy(tensor)
            FORMATS[name].pack(tensor, scheme)
            assert_same(tensor, again)
