"""The few answers that reports show: of prompts, running text, choices, questions and images, the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from goldstick.errors import UsageError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.examples import Example, examples, side_by_side
from goldstick.evaluation.image_classifier import ImageClassifier
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.load.runnable import load_language_model


@pytest.fixture(scope="module")
def data() -> DataSource:
    return DataSource(reference_directory() / "data")


def test_a_language_model_goes_on_from_texts_and_answers_items_of_every_kind(data: DataSource, tmp_path: Path) -> None:
    model = load_language_model(reference_directory())
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"prompt": "Is it?\nAnswer:", "choices": [" yes", " no"], "answer": 1}) + "\n")
    tasks = ("text", "boolq", "squad", "ceval", f"choice:{own}")
    found = examples(model, tasks, data, 2, limit=10)
    assert [one.task for one in found] == ["text"] * 2 + ["boolq"] * 2 + ["squad"] * 2 + ["ceval"] * 2 + [
        f"choice:{own}"
    ]
    assert found == examples(model, tasks, data, 2, limit=10)
    text, rest = found[0], found[2:]
    assert text.expected is None
    assert text.answer == model.generate_greedy([text.item], 40)[0]
    assert all(one.expected for one in rest)
    assert sum(one.answer == one.expected for one in rest) >= 5  # it was trained to answer these
    assert {one.answer for one in rest[:2]} <= {"no", "yes"}
    assert all(len(one.item) <= 301 for one in found)


def test_prompts_stand_in_the_place_of_items_and_none_are_looked_at_where_none_are_wanted(data: DataSource) -> None:
    model = load_language_model(reference_directory())
    (found,) = examples(model, ["text", "boolq"], data, ["The island"])
    assert found == Example(task=None, item="The island", answer=model.generate_greedy(["The island"], 40)[0])
    assert examples(model, ["text", "boolq"], data, 0) == []


class Lightness(nn.Module):
    """Says class 1 of what is light, class 0 of what is dark."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        mean = pixels.mean(dim=(1, 2, 3))
        return torch.stack([-mean, mean], dim=1)


def test_a_classifier_names_the_class_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("dark", 10), ("light", 250)):
        (tmp_path / "images" / name).mkdir(parents=True)
        image.new("RGB", (8, 8), (shade,) * 3).save(tmp_path / "images" / name / "1.png")
    (tmp_path / "images" / "dark" / "2.png").write_bytes((tmp_path / "images" / "light" / "1.png").read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "ViTImageProcessor",
                "do_resize": False,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            }
        )
    )
    model = ImageClassifier.from_directory(Lightness(), tmp_path)
    found = examples(model, ["images"], DataSource(tmp_path), 3)
    assert [(Path(one.item).parts[-2:], one.answer, one.expected) for one in found] == [
        (("dark", "1.png"), "dark", "dark"),
        (("dark", "2.png"), "light", "dark"),
        (("light", "1.png"), "light", "light"),
    ]
    with pytest.raises(UsageError, match="prompts are for models that write; this is an image classifier"):
        examples(model, ["images"], DataSource(tmp_path), ["go on"])


def test_answers_are_paired_where_both_models_were_given_the_same() -> None:
    before = [Example(task="text", item="a", answer="x"), Example(task="text", item="b", answer="y")]
    after = [Example(task="text", item="a", answer="z"), Example(task="text", item="c", answer="y")]
    assert side_by_side(before, after) == [{"task": "text", "item": "a", "expected": None, "before": "x", "after": "z"}]
