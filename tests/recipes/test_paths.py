"""Paths in a recipe's file count from the file's folder, wherever one works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goldstick.recipes.recipe import Recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's folder, seen from another one."""
    (tmp_path / "recipes" / "photos").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return Path("../recipes")


def dataset(folder: Path, name: str) -> str:
    (folder / "mine.yaml").write_text(f"stages: [gptq]\ncalibration: {{dataset: {json.dumps(name)}}}\n")
    return Recipe.load(folder / "mine.yaml").calibration.dataset


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mine.jsonl", "../recipes/mine.jsonl"),
        ("../data/mine.txt.gz", "../recipes/../data/mine.txt.gz"),
        ("photos", "../recipes/photos"),
        ("/data/mine.txt", "/data/mine.txt"),
        ("wikitext2", "wikitext2"),
        ("owner/name", "owner/name"),
    ],
)
def test_a_data_set_is_a_path_from_the_recipe_s_folder_or_a_name(folder: Path, name: str, meant: str) -> None:
    assert dataset(folder, name) == meant


def test_a_folder_beside_the_recipe_that_is_called_as_a_known_set_is_not_taken_for_it(folder: Path) -> None:
    (folder / "wikitext2").mkdir()
    assert dataset(folder, "wikitext2") == "wikitext2"


def test_files_of_tasks_count_from_there_too_and_names_are_names(folder: Path) -> None:
    tasks = ["boolq", "choice:mine.jsonl", "tasks/mine.py:NAME", "lm_eval:arc_easy"]
    (folder / "mine.yaml").write_text(f"stages: [rtn]\nevaluate: {json.dumps(tasks)}\n")
    assert Recipe.load(folder / "mine.yaml").evaluate == (
        "boolq", "choice:../recipes/mine.jsonl", "../recipes/tasks/mine.py:NAME", "lm_eval:arc_easy",
    )  # fmt: skip


def test_paths_of_a_mapping_count_from_where_one_works(folder: Path) -> None:
    given = {"stages": ["gptq"], "calibration": {"dataset": "mine.jsonl"}, "evaluate": ["text:mine.txt"]}
    loaded = Recipe.load(given)
    assert (loaded.calibration.dataset, loaded.evaluate) == ("mine.jsonl", ("text:mine.txt",))
