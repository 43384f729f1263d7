"""GPTQ: the layout field by field, both versions, what it refuses to write and to read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats import FORMATS
from goldstick.formats.gptq import Gptq, gptq_schemes, gptq_storage
from goldstick.formats.group_index import is_act_order
from tests.support.column_formats import along_rows, down_columns, grid_of, layer_of, random_layer, same

V1, V2 = FORMATS["gptq"], FORMATS["gptq-v2"]
GOLDEN = QuantizedTensor(
    codes=torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7]] * 7 + [[15, 14, 13, 12, 11, 10, 9, 8]], dtype=torch.uint8),
    scale=torch.full((8, 2), 0.5).half(),
    zero=None,
    grid=Grid(bits=4, granularity="group", group_size=4),
)


@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    symmetric=st.booleans(),
    words=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    size=st.none() | st.integers(2, 40),
    seed=st.integers(0, 2**31),
)
def test_layers_lie_field_by_field_where_the_layout_says_and_come_back(
    bits: int, symmetric: bool, words: tuple[int, int], size: int | None, seed: int
) -> None:
    whole = {2: 16, 3: 32, 4: 8, 8: 4}[bits]
    tensor = random_layer(grid_of(bits, symmetric, size), whole * words[0], whole * words[1], seed)
    scheme = Scheme(weight=tensor.grid)
    for storage, shift in ((V1, 1), (V2, 0)) if symmetric else ((V2, 0),):
        assert storage.refuses(layer_of(tensor)) is None
        parts = storage.pack(tensor, scheme)
        zeros = torch.full(tensor.scale.shape, tensor.grid.midpoint) if tensor.zero is None else tensor.zero.int()
        width = size or tensor.in_features
        assert torch.equal(parts[".qweight"], down_columns(tensor.codes.T.tolist(), bits))
        assert torch.equal(parts[".qzeros"], along_rows((zeros.T - shift).tolist(), bits))
        assert parts[".scales"].tolist() == tensor.scale.T.tolist()
        assert parts[".g_idx"].tolist() == [index // width for index in range(tensor.in_features)]
        announced = storage.specs(layer_of(tensor), torch.float32)
        assert {suffix: (part.shape, part.dtype) for suffix, part in parts.items()} == announced
        assert all(part.is_contiguous() for part in parts.values()), "safetensors stores nothing else"
        assert same(storage.unpack(parts, scheme, tensor.in_features), tensor)


def test_golden_words() -> None:
    parts = V1.pack(GOLDEN, Scheme(weight=GOLDEN.grid))
    assert parts[".qweight"].tolist() == [[0x76543210] * 7 + [0x89ABCDEF - (1 << 32)]]
    assert parts[".qzeros"].tolist() == [[0x77777777]] * 2
    assert V2.pack(GOLDEN, Scheme(weight=GOLDEN.grid))[".qzeros"].tolist() == [[0x88888888 - (1 << 32)]] * 2
    assert parts[".g_idx"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_full_field_of_an_asymmetric_file_of_version_1_is_the_zero_0() -> None:
    grid = Grid(bits=4, symmetric=False, granularity="group", group_size=4)
    parts = V1.pack(GOLDEN, Scheme(weight=GOLDEN.grid)) | {".qzeros": torch.tensor([[0x7FFFFFF0], [0x0]]).int()}
    zero = V1.unpack(parts, Scheme(weight=grid), 8).zero
    assert zero is not None
    assert zero.T.tolist() == [[1, 0, 0, 0, 0, 0, 0, 8], [1] * 8]


def test_groups_that_g_idx_numbers_in_another_order_come_back_in_the_order_of_their_inputs() -> None:
    tensor = random_layer(grid_of(4, False, 4), 8, 16, 0)
    scheme = Scheme(weight=tensor.grid)
    parts = V2.pack(tensor, scheme)
    order = torch.tensor([2, 0, 3, 1])  # stored group of each run of inputs
    back = order.argsort()
    zeros = tensor.zero
    assert zeros is not None
    shuffled = QuantizedTensor(codes=tensor.codes, scale=tensor.scale[:, back], zero=zeros[:, back], grid=tensor.grid)
    parts = V2.pack(shuffled, scheme) | {".g_idx": order.int().repeat_interleave(4)}
    assert same(V2.unpack(parts, scheme, 16), tensor)


@pytest.mark.parametrize("storage", [V1, V2])
@given(bits=st.sampled_from([2, 4, 8]), size=st.integers(2, 40), seed=st.integers(0, 2**31))
def test_scattered_groups_come_back_in_the_order_of_their_groups_and_are_written_as_they_were(
    storage: Gptq, bits: int, size: int, seed: int
) -> None:
    tensor = random_layer(grid_of(bits, True, size), 16, 48, seed)
    scheme = Scheme(weight=tensor.grid)
    shuffled = torch.randperm(48, generator=torch.Generator().manual_seed(seed))
    g_idx = (torch.arange(48, dtype=torch.int32) // size)[shuffled]
    parts = storage.pack(tensor, scheme) | {".g_idx": g_idx}
    found = storage.unpack(parts, scheme, 48)
    weight = torch.empty(16, 48).half()
    for column, group in enumerate(g_idx.tolist()):  # what the layout says a column is worth
        weight[:, column] = (tensor.codes[:, column].half() - tensor.grid.midpoint) * tensor.scale[:, group]
    assert found.dequantize().equal(weight)
    again = storage.pack(found, scheme)
    assert {suffix: part.tolist() for suffix, part in again.items()} == {
        suffix: part.tolist() for suffix, part in parts.items()
    }
    assert is_act_order(g_idx, tensor.grid) == (found.input_order is not None)
    assert storage.config([layer_of(tensor, act_order=True)], [], {})["desc_act"]


@pytest.mark.parametrize("g_idx", [[0] * 5 + [1] * 3, [-1] * 4 + [0] * 4, [0] * 4 + [2] * 4, [1, 2] * 4])
def test_a_g_idx_that_makes_other_groups_than_the_scheme_has_is_refused(g_idx: list[int]) -> None:
    scheme = Scheme(weight=GOLDEN.grid)
    parts = V1.pack(GOLDEN, scheme) | {".g_idx": torch.tensor(g_idx, dtype=torch.int32)}
    with pytest.raises(FormatError, match=r"does not make groups of 4 inputs"):
        V1.unpack(parts, scheme, 8)


def test_zeros_that_contradict_a_symmetric_config_are_refused() -> None:
    scheme = Scheme(weight=GOLDEN.grid)
    with pytest.raises(FormatError, match="contradicts itself"):
        V2.unpack(V1.pack(GOLDEN, scheme), scheme, 8)


LAYER = layer_of(GOLDEN)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "embedding"}, "linear layers only, not a embedding"),
        ({"kind": "convolution"}, "linear layers only"),
        ({"kind": "experts"}, "no experts"),
        ({"name": "up"}, "after a linear layer's weight"),
        ({"multiplied": True}, "factor for each input"),
        ({"fractional_zeros": True, "scheme": Scheme.parse("w4a16-g4-asym")}, "fractions"),
        ({"scale_dtype": torch.float32}, "its scales are float32.*convert the float model"),
        ({"scheme": Scheme.parse("w8a8-dynamic")}, "nothing of rounded activations"),
        ({"scheme": Scheme.parse("w5a16-g4")}, "know 2, 3, 4, 8 bits, not 5"),
        ({"scheme": Scheme.parse("w4a16-g4-asym")}, "a zero of 0 overflows.*gptq-v2 or awq"),
        ({"scheme": Scheme.parse("w3a16-g4")}, "a multiple of 32 inputs, not 8"),
        ({"shape": torch.Size([12, 8])}, "a multiple of 8 outputs, not 12"),
    ],
)
def test_what_version_1_cannot_hold_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    refusal = V1.refuses(layer_of(GOLDEN, **changes))
    assert refusal is not None
    with pytest.raises(FormatError, match=reason):
        raise FormatError(refusal)


def test_a_symmetric_layer_has_no_zeros_that_could_be_fractions() -> None:
    assert V2.refuses(LAYER) is None and V2.refuses(layer_of(GOLDEN, fractional_zeros=True)) is None


def test_layers_that_one_config_cannot_describe_are_refused_together() -> None:
    other = layer_of(GOLDEN, site="layers.0.down", scheme=Scheme.parse("w4a16-g8"))
    asymmetric = layer_of(GOLDEN, site="layers.0.down", scheme=Scheme.parse("w4a16-g4-asym"))
    assert V1.refuses_together([LAYER], {}) is None
    assert "one scheme for all layers" in (V1.refuses_together([LAYER, other], {}) or "")
    assert "symmetric or none" in (V2.refuses_together([LAYER, asymmetric], {}) or "")
    assert "joins layers.0.up from several" in (V1.refuses_together([LAYER, LAYER], {}) or "")
    assert "weight of another layer" in (V1.refuses_together([LAYER], {"head": "embedding"}) or "")
    assert "nothing is quantized" in (V1.refuses_together([], {}) or "")
    with pytest.raises(FormatError, match="one scheme"):
        V1.config([LAYER, other], [], {})


@pytest.mark.parametrize("scale", [torch.tensor(0.1), torch.tensor(1e-8).bfloat16(), torch.tensor(1e5).bfloat16()])
def test_a_scale_that_is_no_float16_number_is_never_rounded(scale: torch.Tensor) -> None:
    tensor = QuantizedTensor(codes=GOLDEN.codes, scale=scale.expand(8, 2), zero=None, grid=GOLDEN.grid)
    with pytest.raises(FormatError, match="16 of 16 scales of a layer are no float16 numbers"):
        V1.pack(tensor, Scheme(weight=GOLDEN.grid))


def test_version_1_packs_no_zeros_of_its_own_and_neither_packs_fractions() -> None:
    grid = Grid(bits=4, symmetric=False)
    ones = torch.ones(8, 1)
    tensor = QuantizedTensor(codes=GOLDEN.codes, scale=ones, zero=ones * 0.5, grid=grid)
    with pytest.raises(FormatError, match="whole zeros only"):
        V2.pack(tensor, Scheme(weight=grid))
    with pytest.raises(FormatError, match="symmetric weights only; use gptq-v2"):
        V1.pack(QuantizedTensor(codes=GOLDEN.codes, scale=ones, zero=ones, grid=grid), Scheme(weight=grid))


def test_the_config_is_what_its_readers_expect() -> None:
    config = json.loads(json.dumps(V1.config([LAYER], ["lm_head"], {})))
    assert config == {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 4,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
    }
    assert gptq_storage(config) == "gptq"
    assert gptq_schemes(config)("layers.0.up") == LAYER.scheme
    channel = layer_of(GOLDEN, name="lm_head.weight", site="lm_head", scheme=Scheme.parse("w4a16-channel-asym"))
    config = V2.config([channel], [], {})
    assert (config["group_size"], config["sym"], config["lm_head"]) == (-1, False, True)
    assert config["checkpoint_format"] == "gptq_v2"
    assert gptq_schemes(config)("lm_head") == channel.scheme


def test_layers_that_stay_float_are_excepted_by_pattern_and_a_reader_takes_them_so() -> None:
    left = [f"layers.{index}.mlp.gate" for index in range(3)] + ["lm_head", "layers.1.up"]
    config = V1.config([LAYER], left, {})
    assert config["dynamic"] == {r"-:^layers\.\d+\.mlp\.gate$": {}, r"-:^layers\.1\.up$": {}}
    for name in ("layers.2.mlp.gate", "layers.1.up"):
        with pytest.raises(FormatError, match=f"excepts {name} from quantization"):
            gptq_schemes(config)(name)
    assert gptq_schemes(config)("layers.0.up") == LAYER.scheme


def test_a_layer_with_a_scheme_of_its_own_is_read_with_it() -> None:
    config = {
        "bits": 4,
        "group_size": 128,
        "dynamic": {"+:.*down": {"bits": 8, "group_size": 32}, "up": {"sym": False}},
    }
    assert gptq_schemes(config)("layers.0.down").label == "w8a16-g32"
    assert gptq_schemes(config)("up").label == "w4a16-g128-asym"
    assert gptq_schemes(config)("layers.0.q").label == "w4a16-g128"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"bits": 5}, "declares 5 bits"),
        ({"bits": True}, "declares True bits"),
        ({"bits": "4"}, "declares '4' bits"),
        ({"bits": None}, "declares None bits"),
        ({"group_size": 0}, "group_size 0"),
        ({"group_size": 2.0}, "group_size 2.0"),
        ({"group_size": [128]}, r"group_size \[128\]"),
        ({"sym": "yes"}, "'sym' is true or false"),
        ({"dynamic": ["a"]}, "'dynamic' is a table"),
        ({"dynamic": {"+:(": {}}}, "is refused: missing"),
        ({"dynamic": {"up": None}}, "excepts up"),
    ],
)
def test_a_hostile_config_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        gptq_schemes({"bits": 4, "group_size": 128, "sym": True} | changes)("up")


@pytest.mark.parametrize(
    "config",
    [
        {"checkpoint_format": "marlin"},
        {"checkpoint_format": {}},
        {"format": "bitblas"},
        {"is_marlin_format": True},
        {"pack_dtype": "int64"},
    ],
)
def test_another_layout_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="goldstick reads"):
        gptq_storage(config)
