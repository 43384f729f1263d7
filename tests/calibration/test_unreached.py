"""Sites that no batch reaches: text alone for models of text and images, and batches of which some hold images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    FuyuConfig,
    FuyuForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

import goldstick
from goldstick.calibration.unreached import unreached_warnings
from goldstick.errors import QuantizationError, StructureError
from goldstick.report import LayerRecord
from tests.support.tiny_multimodal import TEXT, VISION

IMAGE = 5
PATCHES = 4
SEES = ("vision", "multi_modal_projector")


def llava() -> nn.Module:
    vision, text = CLIPVisionConfig(**VISION), LlamaConfig(**TEXT)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE))


def gemma3() -> nn.Module:
    text = {**TEXT, "head_dim": 32}
    config = Gemma3Config(vision_config=VISION, text_config=text, image_token_index=IMAGE, mm_tokens_per_image=PATCHES)
    return Gemma3ForConditionalGeneration(config)


def fuyu() -> nn.Module:
    shape = {name: value for name, value in TEXT.items() if name != "num_key_value_heads"}
    inner = {"model_type": "persimmon", **shape}
    return FuyuForCausalLM(FuyuConfig(**shape, patch_size=8, image_size=16, text_config=inner))


def texts(count: int = 3) -> list[dict[str, Tensor]]:
    return [{"input_ids": torch.randint(6, 60, (4, 32))} for _ in range(count)]


def images(count: int = 3) -> list[dict[str, Tensor]]:
    return [
        {
            "input_ids": torch.cat([torch.full((2, PATCHES), IMAGE), torch.randint(6, 60, (2, 20))], dim=1),
            "pixel_values": torch.randn(2, 3, 16, 16),
        }
        for _ in range(count)
    ]


def sees(layer: LayerRecord) -> bool:
    return any(part in layer.name for part in SEES)


def quantized(report: Any) -> list[LayerRecord]:
    return [layer for layer in report.layers if layer.scheme is not None]


@pytest.mark.parametrize(
    ("build", "recipe"),
    [(llava, f"{words}-w4a16-g32") for words in ("gptq", "awq-gptq", "gptaq")]
    + [(llava, "gptq-slb_finish-w2a16-g32"), (gemma3, "awq-gptq-w4a16-g32"), (fuyu, "awq-gptq-w4a16-g32")],
)
def test_text_alone_rounds_what_sees_without_data_and_says_so_by_name(
    build: Callable[[], nn.Module], recipe: str
) -> None:
    torch.manual_seed(0)
    report = goldstick.apply(build().eval(), recipe, data=texts()).report
    calibrated = [layer for layer in quantized(report) if "reads the numbers" not in (layer.reason or "")]
    seeing = [layer for layer in calibrated if sees(layer)]
    assert seeing
    for layer in calibrated:
        assert ("unreached" in layer.notes) == sees(layer), layer.name
    (said,) = [warning for warning in report.warnings if "No calibration batch reached" in warning]
    assert all(layer.name.removesuffix(".weight") in said for layer in seeing)


def test_what_is_not_reached_is_what_rounding_gives() -> None:
    torch.manual_seed(0)
    model = llava().eval()
    stage = {"scheme": "w4a16-g32", "targets": {"exclude": ["*patch_embedding"]}}
    made = goldstick.apply(model, {"stages": [{"gptq": stage}]}, data=texts()).model
    rounded = goldstick.apply(model, {"stages": [{"rtn": {**stage, "range_search": "mse"}}]}).model
    pixels = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        found, expected = (one.get_image_features(pixel_values=pixels) for one in (made, rounded))
    for first, second in zip(found.pooler_output, expected.pooler_output, strict=True):
        assert torch.equal(first, second)


def test_what_the_recipe_leaves_alone_stays_float_and_is_not_warned_of() -> None:
    torch.manual_seed(0)
    targets = {"exclude": ["*vision*", "*multi_modal_projector*"]}
    made = goldstick.apply(
        llava().eval(), {"stages": [{"gptq": {"scheme": "w4a16-g32", "targets": targets}}]}, data=texts()
    )
    left = [layer for layer in made.report.layers if sees(layer) and len(layer.shape) == 2]
    assert left
    assert all(layer.scheme is None and layer.reason for layer in left)
    assert not any("No calibration batch reached" in warning for warning in made.report.warnings)


@pytest.mark.parametrize("first", ["images", "texts"])
def test_images_in_some_of_the_batches_reach_every_layer(first: str) -> None:
    torch.manual_seed(0)
    batches = [*images(), *texts()] if first == "images" else [*texts(), *images()]
    report = goldstick.apply(llava().eval(), "gptq-w4a16-g32", data=batches).report
    counted = [layer for layer in quantized(report) if layer.algorithm == "gptq"]
    assert any(sees(layer) for layer in counted)
    unreached = [layer.name for layer in counted if "unreached" in layer.notes]
    assert unreached == []


def test_many_names_are_cut_short() -> None:
    (said,) = unreached_warnings({f"experts.{number}": {"unreached": "so"} for number in range(90)})
    assert "reached 90 layers" in said
    assert "experts.19 and 70 more" in said
    assert list(unreached_warnings({"one": {"tokens": 3}})) == []


class Reader(nn.Module):
    """Multiplies by the weight of a layer that it does not call, as timm's BEiT does for a bias in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 32, bias=False), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(nn.functional.linear(x, self.qkv.weight, torch.ones(32)))
        return found


def test_of_a_layer_that_another_module_multiplies_by_it_is_said_that_no_data_help() -> None:
    data = [torch.randn(32, 32)]
    (said,) = goldstick.apply(Reader(), "gptq-w4a16-g32", data=data).report.warnings
    assert "reached 1 layer, rounded without data: qkv" in said
    assert "another module multiplies by its weight" in said
    with pytest.raises(QuantizationError, match="another module multiplies by its weight"):
        goldstick.apply(Reader(), "rtn-w8a8-static", data=data)


class Borrowed(nn.Module):
    """Calls a layer with another weight in the place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.func.functional_call(self.a, {"weight": self.a.weight * 2}, (x,)))
        return found


def test_a_layer_that_is_called_with_another_weight_is_named_and_can_be_excluded() -> None:
    data = [torch.randn(32, 32)]
    with pytest.raises(StructureError, match=r"a no longer .*put a tensor in its place .*functional_call.*exclude it"):
        goldstick.apply(Borrowed(), "gptq-w4a16-g32", data=data)
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g32", "targets": {"exclude": ["a"]}}}]}
    assert goldstick.apply(Borrowed(), recipe, data=data).model(data[0]).shape == (32, 8)
