"""Models of text and images, whose parts have other names in the checkpoint than in the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    SiglipVisionConfig,
    SiglipVisionModel,
)

import goldstick
from tests.support.tiny_multimodal import TEXT, VISION

pytestmark = pytest.mark.usefixtures("proof_here")
ONE: list[dict[str, Any]] = [{"rtn": {"scheme": "w4a16-g32", "targets": {"exclude": ["*patch_embedding"]}}}]
#: Two schemes, so that the config names layers, and a layer left in float that is no head.
SEVERAL: list[dict[str, Any]] = [
    {"rtn": {"scheme": "w4a16-g32", "targets": {"include": ["*self_attn.?_proj"]}}},
    {"rtn": {"scheme": "w8a16", "targets": {"include": ["*mlp.gate_proj", "*mlp.up_proj"]}}},
]


@pytest.mark.parametrize("stages", [ONE, SEVERAL])
@pytest.mark.parametrize("streamed", [True, False])
def test_transformers_finds_every_layer_by_the_name_it_has_in_its_model(
    streamed: bool, stages: list[dict[str, Any]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = LlavaConfig(vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_index=5)
    model = LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "float")
    recipe = {"stages": stages, "export": {"format": "compressed-tensors"}}
    if streamed:
        goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "made")
    else:
        goldstick.apply(model, recipe).save(tmp_path / "made")
    theirs, found = LlavaForConditionalGeneration.from_pretrained(tmp_path / "made", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    ids = torch.arange(6, 14)[None]
    with torch.no_grad():
        expected = goldstick.load(tmp_path / "made")(input_ids=ids).logits
        torch.testing.assert_close(theirs(input_ids=ids).logits, expected, rtol=1e-3, atol=1e-3)


def test_a_model_whose_initialisers_count_inputs_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = SiglipVisionModel(SiglipVisionConfig(**VISION)).eval()
    model.save_pretrained(tmp_path / "float")
    made = goldstick.quantize(tmp_path / "float", "rtn-w4a16-g32", output=tmp_path / "made")
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = goldstick.apply(model, "rtn-w4a16-g32").model(pixel_values=pixels).last_hidden_state
        found = goldstick.load(made.directory)(pixel_values=pixels).last_hidden_state
    assert torch.equal(found, expected)
