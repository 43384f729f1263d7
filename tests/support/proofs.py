"""Checkpoints made and proven in the process of a test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

import goldstick
from goldstick.errors import NotRunError
from goldstick.jobs.proof import worker as prove_worker
from goldstick.jobs.proof.observation import Observation
from goldstick.jobs.quantize.quantize import Quantized
from goldstick.jobs.save.result import Result
from tests.support.tiny_models import output_tensor, sample_inputs

RECIPE = {"stages": [{"rtn": {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}}]}


#: Families whose checkpoint is proven in a fresh process, as users' are; the others' proof runs in the test's.
FRESH = ("llama_gqa", "gpt2", "mixtral", "resnet")


def prove_here(directory: Path, request: Mapping[str, Any], expected: Observation | None) -> dict[str, Any]:
    """What ``prove`` does, without the seconds that a fresh Python takes to import everything."""
    full = dict(request, directory=str(directory))
    if expected is not None:
        file = directory / "expected.tmp"
        save_file({"outputs": expected.outputs}, file)
        full |= {"expected": str(file), "perplexity": expected.perplexity}
    try:
        found = prove_worker.work(json.loads(json.dumps(full)))
    finally:
        (directory / "expected.tmp").unlink(missing_ok=True)
    if "not_run" in found:
        raise NotRunError(found["not_run"])
    return found


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
