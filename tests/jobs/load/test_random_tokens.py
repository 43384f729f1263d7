"""Rows of random tokens for a model: which ids are drawn, by which recipes, and what the report says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

import goldstick
from goldstick.errors import RecipeError
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.random_tokens import random_tokens, special_ids
from goldstick.recipes.calibration import Calibration
from tests.support.tiny_models import FAMILIES, VOCABULARY

STAGES = [{"gptq": {"scheme": "w4a16-g32"}}]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama_gqa"]()


def asking(share: float) -> Calibration:
    return Calibration(random_tokens=share)


def test_no_special_token_is_drawn_nor_one_that_the_tokenizer_does_not_have(
    model: PreTrainedModel, source_with_text: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source_with_text)
    found = random_tokens(asking(0.5), model, tokenizer)
    assert found is not None
    drawn = set(found.ordinary.tolist())
    assert not drawn & {*tokenizer.all_special_ids, *special_ids(model.config)}
    assert max(drawn) < min(len(tokenizer), VOCABULARY)
    assert len(drawn) > len(tokenizer) // 2
    alone = random_tokens(asking(0.5), model)
    assert alone is not None
    assert set(alone.ordinary.tolist()) == set(range(VOCABULARY)) - special_ids(model.config)


def test_special_ids_are_what_a_configuration_names_so() -> None:
    config = SimpleNamespace(bos_token_id=3, eos_token_id=[4, 5], pad_token_id=None, image_token_index=6, hidden_size=7)
    assert special_ids(config) == {3, 4, 5, 6}
    assert special_ids(None) == set()


def test_none_are_drawn_unless_a_recipe_asks_or_where_no_embedding_is_known(model: PreTrainedModel) -> None:
    assert random_tokens(asking(0.0), model) is None
    found = random_tokens(asking(1.0), nn.Linear(4, 4))
    assert found is not None and found.count(8) == 0


@pytest.mark.usefixtures("proof_here")
def test_a_run_from_a_directory_shows_them_and_its_report_counts_them(source_with_text: Path, tmp_path: Path) -> None:
    settings = {"dataset": str(source_with_text / "text.txt"), "samples": 8, "seq_len": 16, "random_tokens": 0.5}
    recipe: dict[str, Any] = {"stages": STAGES, "calibration": settings}
    report = goldstick.quantize(source_with_text, recipe, output=tmp_path / "out").report
    assert (report.calibration["samples"], report.calibration["random_samples"]) == (8, 4)
    assert {layer.notes["tokens"] for layer in report.layers if layer.notes} == {12 * 16}
    text = goldstick.quantize(
        source_with_text, {**recipe, "calibration": {**settings, "random_tokens": 0}}, output=tmp_path / "text"
    ).report
    assert {layer.notes["tokens"] for layer in text.layers if layer.notes} == {8 * 16}
    assert text.calibration["fingerprint"] != report.calibration["fingerprint"]


def test_a_run_in_memory_shows_them_beside_batches_of_ids(model: PreTrainedModel) -> None:
    ids = torch.randint(90, (8, 16))
    recipe = {"stages": STAGES, "calibration": {"random_tokens": 0.25}}
    report = goldstick.apply(model, recipe, data=list(ids.split(2))).report
    assert report.calibration == {"batches": 6, "samples": 10, "tokens": 160}


def test_the_share_is_a_part(model: PreTrainedModel) -> None:
    with pytest.raises(RecipeError, match=r"calibration\.random_tokens: .*less than or equal to 1"):
        goldstick.Recipe.load({"stages": STAGES, "calibration": {"random_tokens": 2}})


def test_padded_rows_have_them_too(model: PreTrainedModel, source_with_text: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "{"a cat " * count}"}}\n' for count in (1, 2, 3, 4)))
    settings = Calibration(dataset=str(rows), samples=4, seq_len=32, packing=False, random_tokens=1.0)
    data = calibration_data(settings, source_with_text, None)(model)
    assert sum(len(batch["input_ids"]) for batch in data.batches()) == 8
