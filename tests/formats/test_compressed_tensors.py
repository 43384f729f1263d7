"""compressed-tensors: its own compressor and config reader are the oracles."""

from __future__ import annotations

import json

import pytest
import torch
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from compressed_tensors.utils.match import match_targets
from torch import Tensor, nn

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.grid import Grid
from goldstick.core.input_range import input_range
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import NUMBER_FORMATS, PRESETS, Scheme
from goldstick.errors import FormatError
from goldstick.formats import FORMATS
from goldstick.formats.base import StoredLayer
from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS as FORMAT
from goldstick.formats.config_groups import groups_by_module, scheme_of_group
from goldstick.formats.input_scale import part_name
from tests.support.stored_layers import layer

INPUTS = {name: scheme.activation for name in PRESETS if (scheme := Scheme.parse(name)) and scheme.activation}
INTEGER = [name for name, inputs in INPUTS.items() if inputs.bits == 8 and name not in NUMBER_FORMATS] + [
    "w8a8-static-shifted",
    "w4a8-static-channel",
]
NAMES = [name for name in PRESETS if name not in (*INTEGER, *NUMBER_FORMATS)] + [
    "w5a16-g32",
    "w6a16-channel-asym",
    "w1a16-g32",
]


def their_scheme(scheme: Scheme) -> QuantizationScheme:
    grid = scheme.weight
    weights = QuantizationArgs(
        num_bits=grid.bits, type="int", symmetric=grid.symmetric, strategy=grid.granularity, group_size=grid.group_size
    )
    inputs = None
    if scheme.activation is not None:
        inputs = QuantizationArgs(
            num_bits=scheme.activation.bits,
            type="int",
            symmetric=scheme.activation.symmetric,
            strategy=scheme.activation.granularity,
            dynamic=scheme.activation.granularity == "token",
        )
    return QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)


def their_state(weight: Tensor, tensor: QuantizedTensor) -> dict[str, Tensor]:
    state = {"weight": weight, "weight_scale": tensor.scale}
    if tensor.zero is not None:
        state["weight_zero_point"] = (tensor.zero - tensor.grid.midpoint).to(torch.int8)
    return state


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [16, 21])
def test_packed_layers_equal_those_of_their_own_compressor_byte_for_byte(name: str, rows: int) -> None:
    scheme = Scheme.parse(name)
    weight = torch.randn(rows, 256)
    tensor = quantize_with_search(weight, scheme.weight, "minmax")
    theirs = PackedQuantizationCompressor.compress(their_state(weight, tensor), their_scheme(scheme))
    ours = {f"weight{suffix}": part for suffix, part in FORMAT.pack(tensor, scheme).items()}
    assert ours.keys() == theirs.keys()
    for key, part in ours.items():
        assert part.dtype == theirs[key].dtype and torch.equal(part, theirs[key]), key
    unpacked = PackedQuantizationCompressor.decompress(ours, their_scheme(scheme))
    assert torch.equal(unpacked["weight"], tensor.dequantize())


@pytest.mark.parametrize("name", INTEGER)
def test_layers_with_8_bit_activations_equal_those_of_their_own_compressor_byte_for_byte(name: str) -> None:
    scheme = Scheme.parse(name)
    weight = torch.randn(21, 256)
    tensor = quantize_with_search(weight, scheme.weight, "minmax")
    state = their_state(weight, tensor)
    scale = zero = None
    if scheme.activation is not None and scheme.static_input:
        args = their_scheme(scheme).input_activations
        low, high = torch.tensor(-1.5), torch.tensor(4.0)
        state["input_scale"], state["input_zero_point"] = calculate_qparams(low, high, args)
        scale, zero = input_range(-1.5, 4.0, scheme.activation)
    theirs = IntQuantizationCompressor.compress(state, their_scheme(scheme))
    packed = FORMAT.pack(tensor, scheme, scale, zero)
    ours = {part_name("weight", suffix).removeprefix("."): part for suffix, part in packed.items()}
    assert ours.keys() == theirs.keys()
    for key, part in ours.items():
        assert part.dtype == theirs[key].dtype and torch.equal(part, theirs[key]), key


@pytest.mark.parametrize("zero", [0.5, -1.0, 16.0])
def test_a_zero_that_is_no_code_is_never_rounded(zero: float) -> None:
    grid = Grid(bits=4, symmetric=False)
    tensor = QuantizedTensor(
        codes=torch.zeros(2, 8, dtype=torch.uint8), scale=torch.ones(2, 1), zero=torch.full((2, 1), zero), grid=grid
    )
    with pytest.raises(FormatError, match=r"whole zeros only.*native"):
        FORMAT.pack(tensor, Scheme(weight=grid))


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (layer("a", kind="transposed"), "linear layers only, not a transposed"),
        (layer("a", kind="convolution"), "linear layers only, not a convolution"),
        (layer("a", kind="embedding"), "linear layers only, not a embedding"),
        (layer("a", kind="experts", name="a.gate_up_proj"), "one fused tensor"),
        (layer("a", kind="experts", shape=torch.Size([2, 8, 64])), "one fused tensor"),
        (layer("a", "w4a16-g32-asym", fractional_zeros=True), "zeros are integers"),
        (layer("a", multiplied=True), "'unfoldable: multiply' gives it a factor for each input"),
        (layer("a", "w4a16-g32-asym", kind="experts"), "symmetric weights and float activations only"),
        (layer("a", "w8a8-dynamic", kind="experts"), "symmetric weights and float activations only"),
        (layer("a", "w8a8-dynamic-asym"), "symmetric weights only, of 8 bits by channel, or of 4"),
        (layer("a", "w8a8-dynamic-g32"), "symmetric weights only, of 8 bits by channel, or of 4"),
        (layer("a", "w4a8-static-g32-asym"), "symmetric weights only, of 8 bits by channel, or of 4"),
        (layer("a", "w3a8-dynamic"), "symmetric weights only, of 8 bits by channel, or of 4"),
        (layer("a", "w8a8-static", kind="experts"), "symmetric weights and float activations only"),
    ],
)
def test_what_its_readers_would_get_wrong_is_refused_with_the_reason(refused: StoredLayer, reason: str) -> None:
    assert reason in (FORMAT.refuses(refused) or "")


def test_a_symmetric_layer_has_no_zeros_that_could_be_fractions() -> None:
    assert FORMAT.refuses(layer("a", "w4a16-g32", fractional_zeros=True)) is None


@pytest.mark.parametrize("name", [*NAMES, *INTEGER])
def test_linear_layers_of_every_preset_are_held(name: str) -> None:
    assert FORMAT.refuses(layer("a", name)) is None
    if name.endswith("asym") or Scheme.parse(name).activation:
        return
    assert FORMAT.refuses(layer("a.experts.0.w1", name, kind="experts")) is None


MIXED = [
    *(layer(f"model.layers.{index}.mlp.up_proj", "w4a16-g32") for index in range(3)),
    *(layer(f"model.layers.{index}.mlp.down_proj", "w8a16") for index in range(3)),
    layer("model.layers.0.self_attn.q_proj", "w8a8-dynamic"),
    layer("model.layers.0.self_attn.v_proj", "w4a8-dynamic-g32"),
    layer("model.layers.0.self_attn.o_proj", "w4a4-dynamic-g32"),
    layer("model.layers.1.self_attn.v_proj", "w8a8-static"),
    layer("model.layers.2.self_attn.v_proj", "w8a8-static-shifted"),
    layer("model.layers.1.self_attn.q_proj", "w3a16-channel"),
    layer("model.layers.2.self_attn.q_proj", "w3a16-channel"),
]
UNIFORM = [layer(f"model.layers.{index}.{part}", "w4a16-g32-asym") for index in range(3) for part in ("up", "down")]
LEFT = ["lm_head", "model.layers.0.self_attn.k_proj"]


@pytest.mark.parametrize("layers", [MIXED, UNIFORM], ids=["mixed", "uniform"])
def test_every_layer_is_read_back_from_the_config_with_its_scheme(layers: list[StoredLayer]) -> None:
    config = json.loads(json.dumps(FORMAT.config(layers, LEFT, {})))
    for one in layers:
        group = groups_by_module(config)(one.site)
        assert group is not None and scheme_of_group(group) == one.scheme, one.site


@pytest.mark.parametrize("layers", [MIXED, UNIFORM], ids=["mixed", "uniform"])
def test_their_own_reader_understands_the_config(layers: list[StoredLayer]) -> None:
    config = FORMAT.config(layers, LEFT, {})
    read = QuantizationConfig.model_validate(config)
    assert read.quant_method == "compressed-tensors"
    assert len(read.config_groups) == len({one.scheme for one in layers})
    for key, group in read.config_groups.items():
        scheme = scheme_of_group(config["config_groups"][key])
        assert group.weights.num_bits == scheme.weight.bits
        assert group.weights.symmetric == scheme.weight.symmetric
        assert group.weights.strategy == scheme.weight.granularity
        in_bytes = scheme.activation is not None and scheme.activation.bits == 8
        assert group.format == ("int-quantized" if in_bytes else "pack-quantized")
        assert (group.input_activations is not None) == (scheme.activation is not None)
        if scheme.activation is not None:
            assert group.input_activations.num_bits == scheme.activation.bits
            assert group.input_activations.symmetric == scheme.activation.symmetric
            assert group.input_activations.strategy == scheme.activation.granularity
            assert group.input_activations.dynamic is scheme.activation.dynamic


def test_one_scheme_targets_every_linear_and_ignores_the_rest() -> None:
    config = FORMAT.config(UNIFORM, LEFT, {})
    (group,) = config["config_groups"].values()
    assert group["targets"] == ["Linear"]
    assert config["ignore"] == LEFT
    assert config["format"] == "pack-quantized"
    assert config["dequantize"] is True, "plain loading of asymmetric weights fails in compressed-tensors 0.20"


def test_several_layouts_are_a_mixture_and_symmetric_ones_load_plainly() -> None:
    config = FORMAT.config(MIXED, LEFT, {})
    assert config["format"] == "mixed-precision"
    assert "dequantize" not in config
    assert all("format" in group for group in config["config_groups"].values())


def test_a_tie_cannot_be_stored() -> None:
    with pytest.raises(FormatError, match="use format native"):
        FORMAT.config(UNIFORM, [], {"lm_head": "embed"})


@pytest.mark.parametrize(
    ("group", "complaint"),
    [
        ({"weights": None}, "integer or float weights"),
        ({"weights": {"num_bits": 16, "type": "float", "strategy": "channel"}}, "does not run the float grid"),
        ({"weights": {"num_bits": 8, "type": "int", "strategy": "tensor"}}, "by group or channel"),
        (
            {
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                "output_activations": {"num_bits": 8, "type": "int", "strategy": "tensor"},
            },
            "rounds no outputs",
        ),
        *(
            (
                {
                    "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True} | change,
                },
                "dynamic and symmetric per token, or of 8 bits, static per tensor",
            )
            for change in (
                {"strategy": "tensor"},
                {"dynamic": False},
                {"symmetric": False},
                {"num_bits": 6},
                {"num_bits": 4, "strategy": "tensor", "dynamic": False},
                {"dynamic": "local", "strategy": "group"},
            )
        ),
    ],
)
def test_a_group_that_goldstick_does_not_run_is_refused(group: dict[str, object], complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        scheme_of_group(group)


def test_a_module_outside_every_group_has_none() -> None:
    assert groups_by_module(FORMAT.config(MIXED, LEFT, {}))("lm_head") is None


class Head(nn.Module):
    """A model whose layers have names with and without dots."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.lm_head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.embed, self.block = nn.Embedding(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.mark.parametrize(
    "targets",
    [
        [["lm_head"]],
        [["fc1"], ["Linear"]],
        [["lm_head", "block.0"], ["Linear"]],
        [["Embedding"], ["Linear"]],
        [["Embedding", "Head"]],
        [["linear"], ["re:block.*"]],
        [["Linear"], ["lm_head"]],
        [["re:block.*"], ["block.0", "re:block"]],
        [["re:fc.*"], ["re:.*1"]],
    ],
    ids=str,
)
def test_targets_mean_the_linear_layers_that_their_own_library_means(targets: list[list[str]]) -> None:
    groups = [{"targets": each, "number": number} for number, each in enumerate(targets)]
    group_of = groups_by_module({"config_groups": {f"group_{group['number']}": group for group in groups}})
    every = [target for each in targets for target in each]
    for name, module in Head().named_modules():
        if isinstance(module, nn.Linear):
            matched = match_targets(name, module, every)
            expected = next((group for group in groups if matched and matched[0] in group["targets"]), None)
            assert group_of(name) == expected, name


def test_zeros_and_scales_are_no_codes_of_a_layer() -> None:
    assert FORMAT.weight_name("fc1.weight", torch.int8) == "fc1.weight"
    for beside in ("fc1.weight_zero_point", "fc1.input_zero_point", "fc1.weight_scale"):
        assert FORMAT.weight_name(beside, torch.int8) is None


@pytest.mark.parametrize("declared", ["int-quantized", "naive-quantized"])
def test_integers_in_another_layout_than_the_one_that_is_read_are_refused_by_its_name(declared: str) -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights}
    for config in (
        {"format": declared, "config_groups": {"group_0": group}},
        {"format": "mixed-precision", "config_groups": {"group_0": group | {"format": declared}}},
    ):
        with pytest.raises(FormatError, match=f"w8a16-channel are stored as '{declared}'.*'pack-quantized' only"):
            FORMAT.schemes(config, {})("fc1.weight", "fc1")


def test_compressed_tensors_is_what_auto_tries_first() -> None:
    assert next(iter(FORMATS)) == "compressed-tensors"


def test_golden_words() -> None:
    grid = Grid(bits=4, symmetric=False, granularity="group", group_size=4)
    tensor = QuantizedTensor(
        codes=torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [15, 14, 13, 12, 11, 10, 9, 8]], dtype=torch.uint8),
        scale=torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        zero=torch.tensor([[1.0, 2.0], [3.0, 15.0]]),
        grid=grid,
    )
    parts = FORMAT.pack(tensor, Scheme(weight=grid))
    assert parts["_packed"].tolist() == [[0x76543210], [0x89ABCDEF - (1 << 32)]]
    assert parts["_zero_point"].tolist() == [[0x31, 0xF2]], "packed down the rows"
    assert parts["_shape"].tolist() == [2, 8]
    eight = Scheme.parse("w8a8-dynamic")
    row = QuantizedTensor(
        codes=torch.tensor([[0, 127, 128, 255]], dtype=torch.uint8),
        scale=torch.ones(1, 1),
        zero=None,
        grid=eight.weight,
    )
    assert FORMAT.pack(row, eight)[""].tolist() == [[-128, -1, 0, 127]]
