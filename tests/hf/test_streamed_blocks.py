"""What is streamed block by block: modules that are called, and no list of layers or bare layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    DetrConfig,
    DetrForObjectDetection,
    PoolFormerConfig,
    PoolFormerForImageClassification,
    ResNetConfig,
    SqueezeBertConfig,
    SqueezeBertForMaskedLM,
)

import goldstick
from goldstick.hf.streaming import StreamedModel
from tests.support.proofs import RECIPE

pytestmark = pytest.mark.usefixtures("proof_here")


def test_stages_that_are_lists_of_layers_are_read_with_the_rest(tmp_path: Path) -> None:
    config = PoolFormerConfig(hidden_sizes=[32, 32, 64, 64], depths=[1, 1, 1, 1], image_size=64)
    model = PoolFormerForImageClassification(config).eval()
    saved = goldstick.apply(model, RECIPE).save(tmp_path / "saved")
    streamed = StreamedModel(saved)
    assert streamed.blocks
    assert not any(isinstance(streamed.model.get_submodule(block), nn.ModuleList) for block in streamed.blocks)


def test_a_head_made_of_a_list_of_layers_beside_a_backbone_without_attention_is_proven(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = ResNetConfig(embedding_size=32, hidden_sizes=[32, 32, 32, 64], depths=[1, 1, 1, 1], layer_type="basic")
    config = DetrConfig(
        backbone_config=backbone,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        num_queries=5,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=2,
    )
    result = goldstick.apply(DetrForObjectDetection(config).eval(), RECIPE)
    saved = result.save(tmp_path / "saved")
    assert not any("bbox_predictor" in block for block in StreamedModel(saved).blocks)
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(goldstick.load(saved)(pixel_values=pixels).logits, result.model(pixel_values=pixels).logits)


def test_blocks_that_are_not_called_as_modules_are_read_all_at_once(tmp_path: Path) -> None:
    config = SqueezeBertConfig(
        vocab_size=100, hidden_size=32, embedding_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, q_groups=1, k_groups=1, v_groups=1, intermediate_groups=1, output_groups=1,
    )  # fmt: skip
    saved = goldstick.apply(SqueezeBertForMaskedLM(config).eval(), RECIPE).save(tmp_path / "saved")
    proof = json.loads((saved / "goldstick.json").read_text())["proof"]
    assert proof["method"] == "outputs" and proof["passed"]


def test_a_streamed_run_rounds_what_is_read_with_the_rest(tmp_path: Path) -> None:
    config = PoolFormerConfig(hidden_sizes=[32, 32, 64, 64], depths=[1, 1, 1, 1], image_size=64)
    PoolFormerForImageClassification(config).eval().save_pretrained(tmp_path / "float")
    made = goldstick.quantize(tmp_path / "float", RECIPE, output=tmp_path / "made")
    assert made.report.proof["passed"]
