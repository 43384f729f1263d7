"""Fixtures of the pipeline tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

import goldstick
from goldstick.pipeline import finish, prove_worker, quantize, verify
from goldstick.pipeline.observation import Observation
from goldstick.pipeline.quantize import Quantized
from goldstick.pipeline.result import Result
from tests.tiny_models import FAMILIES, output_tensor, sample_inputs
from tests.tiny_tokenizer import write_tokenizer

RECIPE = {"stages": [{"rtn": {"scheme": "w4a16-g32", "indivisible": "channel"}}]}

#: Families whose checkpoint is proven in a fresh process, as users' are; the others' proof runs in the test's.
FRESH = ("llama_gqa", "gpt2", "mixtral", "resnet")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Layers this small lose more to waking threads than they win."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def prove_here(directory: Path, request: Mapping[str, Any], expected: Observation | None) -> dict[str, Any]:
    """What ``prove`` does, without the seconds that a fresh Python takes to import everything."""
    full = dict(request, directory=str(directory))
    if expected is not None:
        file = directory / "expected.tmp"
        save_file({"outputs": expected.outputs}, file)
        full |= {"expected": str(file), "perplexity": expected.perplexity}
    try:
        return prove_worker.work(json.loads(json.dumps(full)))
    finally:
        (directory / "expected.tmp").unlink(missing_ok=True)


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


@dataclass(frozen=True, kw_only=True)
class Job:
    """A float model, its checkpoint, and what quantizing that gave."""

    model: PreTrainedModel
    source: Path
    made: Quantized

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Inputs for the model."""
        return sample_inputs(self.model)

    @cached_property
    def in_memory(self) -> Result:
        """The same recipe applied to the model in memory."""
        return goldstick.apply(self.model, RECIPE)

    def reloaded_output(self) -> Tensor:
        """What the checkpoint answers, with the attention implementation of the float model."""
        reloaded: Any = goldstick.load(self.made.directory)
        return answer(reloaded, self.inputs)


def answer(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The output of a transformers model under eager attention, whose arithmetic is the same everywhere."""
    if type(model).__name__ != "FalconForCausalLM":  # which offers no choice
        model.set_attn_implementation("eager")
    return output_tensor(model, inputs)


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
