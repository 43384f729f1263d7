"""AWQ: the GEMM layout field by field, what it refuses to write and to read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats import FORMATS
from goldstick.formats.awq import awq_scheme
from tests.support.column_formats import along_rows, grid_of, layer_of, random_layer, same

AWQ = FORMATS["awq"]
GOLDEN = QuantizedTensor(
    codes=torch.tensor([[0, 15], [1, 14], [2, 13], [3, 12], [4, 11], [5, 10], [6, 9], [7, 8]], dtype=torch.uint8),
    scale=torch.full((8, 1), 0.25).half(),
    zero=torch.arange(8.0).reshape(8, 1),
    grid=grid_of(4, False, 2),
)


def interleaved(row: list[int]) -> list[int]:
    """Every eight outputs in the order of the fields of their word."""
    fields: list[int] = []
    for start in range(0, len(row), 8):
        fields += [*row[start : start + 8 : 2], *row[start + 1 : start + 8 : 2]]
    return fields


@given(
    symmetric=st.booleans(),
    rows=st.integers(1, 4),
    groups=st.integers(1, 5),
    width=st.integers(2, 19),
    channel=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_layers_lie_field_by_field_where_the_layout_says_and_come_back(
    symmetric: bool, rows: int, groups: int, width: int, channel: bool, seed: int
) -> None:
    tensor = random_layer(grid_of(4, symmetric, None if channel else width), 8 * rows, groups * width, seed)
    assert AWQ.refuses(layer_of(tensor)) is None
    parts = AWQ.pack(tensor, Scheme(weight=tensor.grid))
    zeros = torch.full(tensor.scale.shape, 8) if tensor.zero is None else tensor.zero.int()
    assert torch.equal(parts[".qweight"], along_rows([interleaved(row) for row in tensor.codes.T.tolist()], 4))
    assert torch.equal(parts[".qzeros"], along_rows([interleaved(row) for row in zeros.T.tolist()], 4))
    assert parts[".scales"].tolist() == tensor.scale.T.tolist()
    announced = AWQ.specs(layer_of(tensor), torch.float32)
    assert {suffix: (part.shape, part.dtype) for suffix, part in parts.items()} == announced
    assert all(part.is_contiguous() for part in parts.values()), "safetensors stores nothing else"
    assert same(AWQ.unpack(parts, Scheme(weight=tensor.grid), tensor.in_features), tensor)


def test_golden_words() -> None:
    parts = AWQ.pack(GOLDEN, Scheme(weight=GOLDEN.grid))
    assert parts[".qweight"].tolist() == [[0x75316420], [0x8ACE9BDF - (1 << 32)]]
    assert parts[".qzeros"].tolist() == [[0x75316420]]


def test_a_layer_whose_zeros_are_all_8_is_symmetric() -> None:
    tensor = random_layer(grid_of(4, True, 2), 16, 8, 0)
    parts = AWQ.pack(tensor, Scheme(weight=tensor.grid))
    config = AWQ.config([layer_of(tensor)], [], {})
    assert config["zero_point"] is True, "zeros are stored all the same"
    assert awq_scheme(config, parts[".qzeros"]) == Scheme(weight=tensor.grid)
    assert awq_scheme(config, AWQ.pack(GOLDEN, Scheme(weight=GOLDEN.grid))[".qzeros"]).label == "w4a16-g2-asym"
    with pytest.raises(FormatError, match="contradicts itself"):
        AWQ.unpack(AWQ.pack(GOLDEN, Scheme(weight=GOLDEN.grid)), Scheme(weight=grid_of(4, True, 2)), 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "transposed"}, "linear layers only, not a transposed"),
        ({"kind": "experts"}, "no experts"),
        ({"name": "lm_head.weight"}, "keep the head in float"),
        ({"scheme": Scheme.parse("w8a16-g2")}, "codes of 4 bits, not 8"),
        ({"scheme": Scheme.parse("w4a8-dynamic-g2")}, "nothing of rounded activations"),
        ({"scheme": Scheme.parse("w4a16-g4")}, "do not divide into 4"),
        ({"shape": torch.Size([12, 8])}, "a multiple of 8 outputs, not 12"),
        ({"fractional_zeros": True}, "fractions"),
        ({"scale_dtype": torch.float32}, "its scales are float32"),
    ],
)
def test_what_it_cannot_hold_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    assert reason in (AWQ.refuses(layer_of(GOLDEN, **changes)) or "")


def test_symmetric_and_asymmetric_layers_of_one_group_size_go_together() -> None:
    layers = [layer_of(GOLDEN), layer_of(GOLDEN, site="layers.0.down", scheme=Scheme.parse("w4a16-g2"))]
    assert AWQ.refuses_together(layers, {}) is None
    layers[1] = layer_of(GOLDEN, site="layers.0.down", scheme=Scheme.parse("w4a16-channel"))
    assert "one scheme for all layers" in (AWQ.refuses_together(layers, {}) or "")


def test_the_config_is_what_its_readers_expect() -> None:
    config = json.loads(json.dumps(AWQ.config([layer_of(GOLDEN)], ["lm_head"], {})))
    assert config == {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 2,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }
    assert AWQ.config([layer_of(GOLDEN)], [], {})["modules_to_not_convert"] is None


def test_a_float_layer_whose_name_is_part_of_a_quantized_ones_is_refused() -> None:
    layer = layer_of(GOLDEN, name="layers.0.mlp.gate_proj.weight")
    with pytest.raises(FormatError, match=r"layers\.0\.mlp\.gate stays float, and readers would take"):
        AWQ.config([layer], ["layers.0.mlp.gate"], {})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"version": "gemv"}, "the version 'gemv'"),
        ({"version": None}, "the version None"),
        ({"format": "marlin"}, "the format 'marlin'"),
        ({"bits": 8}, "declares 8 bits"),
        ({"bits": {}}, "bits"),
        ({"group_size": "128"}, "group_size '128'"),
        ({"group_size": 1}, "group_size 1"),
    ],
)
def test_a_hostile_config_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        awq_scheme({"bits": 4, "group_size": 128, "version": "GEMM"} | changes, torch.zeros(1, 1, dtype=torch.int32))
