"""Fixtures of the tests of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import goldstick
from goldstick.jobs.quantize import quantize
from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify
from tests.support.proofs import FRESH, RECIPE, Job, prove_here
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer
from tests.support.words import WORDS


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Layers this small lose more to waking threads than they win."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def source_with_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer, and text.txt beside it; never to be changed."""
    directory = tmp_path_factory.mktemp("llama")
    FAMILIES["llama_gqa"]().save_pretrained(directory)
    write_tokenizer(directory)
    (directory / "text.txt").write_text("The harbour lies on the north side of the island. " * 8)
    return directory


@pytest.fixture(scope="module")
def all_proofs_here() -> Iterator[None]:
    """Let proofs of saving and of exporting run in the process of a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        patch.setattr(verify, "prove", prove_here)
        yield


@pytest.fixture
def proof_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let proofs run in the test's own process."""
    monkeypatch.setattr(finish, "prove", prove_here)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``max_memory=1`` asks for, which no process keeps: batches one by one, nothing proven whole."""
    monkeypatch.setattr(quantize, "require_memory", lambda *_: None)


@pytest.fixture(scope="session")
def family_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Job]:
    """Every family quantized from its checkpoint with RECIPE, once in a session."""
    jobs: dict[str, Job] = {}

    def make(family: str) -> Job:
        if family not in jobs:
            folder = tmp_path_factory.mktemp(family)
            model = FAMILIES[family]()
            model.save_pretrained(folder / "source")
            with pytest.MonkeyPatch.context() as patch:
                if family not in FRESH:
                    patch.setattr(finish, "prove", prove_here)
                made = goldstick.quantize(folder / "source", RECIPE, output=folder / "output")
            jobs[family] = Job(model=model, source=folder / "source", made=made)
        return jobs[family]

    return make


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words in random order, 4000 of them."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    chosen = torch.randint(len(WORDS), (4000,), generator=torch.Generator().manual_seed(0)).tolist()
    path.write_text("".join(WORDS[number] + (".\n" if place % 9 == 8 else " ") for place, number in enumerate(chosen)))
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of tiny models with tokenizers, each under the name of its family, and a text."""
    folder = tmp_path_factory.mktemp("sources")
    for family in ("llama_gqa", "opt", "gemma2", "bert"):
        FAMILIES[family]().save_pretrained(folder / family)
        write_tokenizer(folder / family)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "bird"]
    chosen = torch.randint(len(words), (800,), generator=torch.Generator().manual_seed(0)).tolist()
    (folder / "text.txt").write_text(" ".join(words[number] for number in chosen))
    return folder
