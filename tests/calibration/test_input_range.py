"""Static input ranges: what a sweep leaves in the layers is the range of exactly what they were given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms import GPTQ, RTN
from goldstick.calibration.input_range import with_input_range
from goldstick.core.edits import Quantize
from goldstick.core.inputs import InputObserver
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError, UsageError
from goldstick.nn import QuantizedLinear
from goldstick.recipes.needs_data import needs_data
from tests.support.tiny_models import FAMILIES, VOCABULARY

pytestmark = pytest.mark.usefixtures("reference_backend")

Batches = list[dict[str, Tensor]]


def batches(count: int = 3) -> Batches:
    ids = torch.randint(3, VOCABULARY, (count, 2, 16), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": batch} for batch in ids]


def static(**options: Any) -> dict[str, Any]:
    return {"stages": [{"rtn": {"scheme": "w8a8-static", **options}}]}


def layers(model: Any) -> dict[str, QuantizedLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


def edit(name: str) -> Quantize:
    scheme = Scheme.parse(name)
    codes = torch.zeros(4, 8, dtype=torch.uint8)
    tensor = QuantizedTensor(codes=codes, scale=torch.ones(4, 1), zero=None, grid=scheme.weight)
    return Quantize(site="up", scheme=scheme, tensor=tensor, algorithm="test")


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_every_scale_is_the_largest_input_that_the_finished_layer_is_given(algorithm: str) -> None:
    model = FAMILIES["llama_gqa"]()
    recipe = {"stages": [{algorithm: {"scheme": "w8a8-static"}}]}
    found: Any = goldstick.apply(model, recipe, data=batches()).model
    seen: dict[str, float] = {}

    def look(name: str) -> Any:
        def hook(module: QuantizedLinear, inputs: tuple[Tensor]) -> None:
            seen[name] = max(seen.get(name, 0.0), float(inputs[0].abs().max()))

        return hook

    for name, layer in layers(found).items():
        layer.scheme = Scheme.parse("w8a16")  # the sweep showed later layers float activations
        layer.register_forward_pre_hook(look(name))
        layer.forward = lambda x, layer=layer: torch.nn.functional.linear(x, layer.dequantized(), layer.bias)
    with torch.no_grad():
        for batch in batches():
            found(**batch)
    assert len(seen) == 14
    for name, layer in layers(found).items():
        assert layer.input_scale is not None
        assert layer.input_scale.item() == pytest.approx(seen[name] / 127.5, rel=1e-5), name


def test_layers_that_read_one_tensor_share_one_scale() -> None:
    found = layers(goldstick.apply(FAMILIES["llama_gqa"](), static(), data=batches()).model)
    scales = {name: layer.input_scale for name, layer in found.items()}
    attention = [scales[f"model.layers.0.self_attn.{part}_proj"] for part in "qkv"]
    assert len({float(scale) for scale in attention if scale is not None}) == 1
    assert len({float(scale) for scale in scales.values() if scale is not None}) > 4


def test_only_layers_with_a_static_input_are_shown_data() -> None:
    mixed = RTN(scheme="w4a16-g32", overrides={"*down_proj": "w8a8-static-shifted"})
    assert needs_data([mixed])
    assert mixed.needs_inputs(Scheme.parse("w8a8-static"))
    assert not mixed.needs_inputs(Scheme.parse("w8a8-dynamic"))
    assert GPTQ().needs_inputs(Scheme.parse("w4a16-g32"))
    options = {"scheme": "w4a16-g32", "overrides": {"*down_proj": "w8a8-static-shifted"}}
    found = layers(goldstick.apply(FAMILIES["llama_gqa"](), static(**options), data=batches()).model)
    for name, layer in found.items():
        assert (layer.input_scale is not None) is name.endswith("down_proj")
        assert (layer.input_zero_point is not None) is name.endswith("down_proj")


def test_rounding_needs_data_for_a_static_input_and_for_nothing_else() -> None:
    with pytest.raises(RecipeError, match=r"rtn looks at data, and there are none"):
        goldstick.apply(FAMILIES["llama_gqa"](), static())
    with pytest.raises(UsageError, match="leave out data="):
        goldstick.apply(FAMILIES["llama_gqa"](), static(scheme="w8a8-dynamic"), data=batches())


def test_codes_are_those_of_rounding_without_a_static_input() -> None:
    here = layers(goldstick.apply(FAMILIES["llama_gqa"](), static(), data=batches()).model)
    there = layers(goldstick.apply(FAMILIES["llama_gqa"](), static(scheme="w8a16")).model)
    assert all(torch.equal(here[name].weight_packed, there[name].weight_packed) for name in there)


def test_other_edits_are_left_as_they_are() -> None:
    given = edit("w8a8-dynamic")
    assert with_input_range(given, None) is given


def test_an_input_that_nothing_reached_has_no_range_and_the_error_names_the_layer() -> None:
    for observer in (InputObserver(8), None):
        with pytest.raises(QuantizationError, match=r"up becomes w8a8-static-channel.*no calibration input reached it"):
            with_input_range(edit("w8a8-static"), observer)


def test_inputs_without_a_finite_range_name_the_layer() -> None:
    observer = InputObserver(8)
    observer.observe(torch.full((3, 8), torch.nan))
    observer.observe(torch.ones(1, 8))
    with pytest.raises(QuantizationError, match=r"The inputs of up cannot be quantized: 3 of 4"):
        with_input_range(edit("w8a8-static"), observer)
    nothing = InputObserver(8)
    nothing.observe(torch.full((3, 8), torch.nan))
    with pytest.raises(QuantizationError, match=r"The inputs of up cannot be quantized: 3 of 3 inputs hold NaN"):
        with_input_range(edit("w8a8-static"), nothing)


def test_both_ends_of_the_range_are_used() -> None:
    observer = InputObserver(8)
    observer.observe(torch.linspace(-1.0, 4.1, 32).reshape(4, 8))
    found = with_input_range(edit("w8a8-static-shifted"), observer)
    assert found.input_scale is not None and found.input_zero is not None
    assert found.input_scale.item() == pytest.approx(5.1 / 255)
    assert found.input_zero.item() == -128 + 50


@pytest.mark.parametrize("scheme", ["w8a8-static", "w8a8-static-shifted", "fp8", "nvfp4"])
def test_layers_whose_inputs_were_all_zero_are_named_in_a_warning(scheme: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    stages = [{"rtn": {"scheme": scheme}}]
    (warning,) = goldstick.apply(model, {"stages": stages}, data=[torch.zeros(4, 64)]).report.warnings
    assert "showed 2 layers with a static range were 0" in warning and ": 0, 2. Use other data" in warning
    result = goldstick.apply(model, {"stages": stages}, data=[torch.randn(4, 64)])
    assert not result.report.warnings
