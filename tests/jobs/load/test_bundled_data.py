"""The reference model without another word is calibrated on the text that comes with it; all else is as it is said."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from goldstick.errors import DataError, SourceError
from goldstick.evaluation import hub
from goldstick.evaluation.hub import HubDataset, hub_answers, load_from_hub
from goldstick.jobs.load.bundled_data import with_bundled_data
from goldstick.jobs.load.find_model import find_model
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe
from tests.support.commands import run

WORDS = "gptq-w4a16-g128"


def test_the_reference_model_takes_the_bundled_text_and_as_many_samples_as_it_has() -> None:
    found = with_bundled_data(Recipe.load(WORDS), "reference", None).calibration
    assert (found.dataset, found.samples, found.allow_short) == ("reference", 128, True)
    assert with_bundled_data(Recipe.load(WORDS), "reference", "reference").calibration == found


def test_what_is_said_counts() -> None:
    named = Recipe.load(WORDS).model_copy(update={"calibration": Calibration(dataset="wikitext2")})
    assert with_bundled_data(named, "reference", None) is named
    few = Recipe.load(WORDS).model_copy(update={"calibration": Calibration(samples=500)})
    found = with_bundled_data(few, "reference", None).calibration
    assert (found.dataset, found.samples, found.allow_short) == ("reference", 500, False)


@pytest.mark.parametrize(("model", "data_dir"), [("other", None), (Path("other"), "reference"), ("reference", "mine")])
def test_other_models_and_other_folders_of_data_are_left_alone(model: Any, data_dir: str | None) -> None:
    recipe = Recipe.load(WORDS)
    assert with_bundled_data(recipe, model, data_dir) is recipe


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that knows the address of no host, and was not told to stay offline."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    for name in hub.OFFLINE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)


def test_a_machine_without_a_way_to_the_hub_says_so_and_tries_nothing(cut_off: None) -> None:
    import datasets
    from huggingface_hub import constants

    assert not hub_answers()
    with pytest.raises(DataError, match="this machine has no way to it"):
        load_from_hub(HubDataset(path="nobody/nothing-of-that-name", split="train"))
    with pytest.raises(SourceError, match="this machine has no way to the hub"):
        find_model("nobody/nothing-of-that-name")
    assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE


def test_a_slow_server_of_names_counts_as_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(5))
    assert hub_answers(timeout=0.05)


def test_sensitivity_of_the_reference_is_measured_on_the_bundled_text(tmp_path: Path) -> None:
    asked = ("sensitivity", "reference", "--bits", "4", "--samples", "1", "--seq-len", "8", "--json")
    shown = run(*asked)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["inputs"] == "1 sample of 8 tokens from reference"
    elsewhere = run(*asked, "--data-dir", str(tmp_path))
    assert elsewhere.exit_code == 1
    assert f"there is no wikitext2/wiki.train.raw (or .gz) under --data-dir {tmp_path}" in elsewhere.stderr
