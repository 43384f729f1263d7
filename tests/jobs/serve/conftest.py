"""Models to be served, small and quick."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import goldstick
from goldstick.evaluation.language_model import LanguageModel
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.load.load import load
from goldstick.jobs.load.runnable import with_tokenizer
from tests.support.served import Served, served


@pytest.fixture(scope="session")
def language_model() -> LanguageModel:
    """The bundled model, compressed and optimized as a checkpoint is that is served."""
    model = load(reference_directory())
    model = goldstick.apply(model, "rtn-w4a16-g128", inplace=True).model
    goldstick.optimize(model)
    return with_tokenizer(model, reference_directory())


@pytest.fixture(scope="module")
def server(language_model: LanguageModel) -> Iterator[Served]:
    """A server of that model, with the limits that are usual."""
    with served(language_model) as running:
        yield running
