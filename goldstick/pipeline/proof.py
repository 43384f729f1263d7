"""Proof: a checkpoint read back in a fresh process gives what the model in memory gave."""

from __future__ import annotations

import ctypes
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from goldstick.errors import CheckpointError

#: Largest difference of outputs that is called equal, relative to the largest output. The same machine gives 0.
TOLERANCE = 1e-5
#: Source bytes above which the proof compares tensors instead of building the model twice, to keep memory flat.
OUTPUTS_LIMIT = 2**28
ProofMethod = Literal["auto", "outputs", "tensors"]
#: Largest relative difference of perplexities that is called equal.
PERPLEXITY_TOLERANCE = 1e-4
_SAMPLES = 64
_TEXT = """\
The harbour lies on the north side of the island, where the hills keep the wind away. In the morning the boats go out
in a long line, one behind the other, and the children count them from the wall. There are twelve boats in summer and
seven in winter. The oldest of them belongs to a woman who learned to sail from her grandmother. She knows every rock
along the coast by its name, and she says that the sea is a good teacher, but a strict one: it asks the same question
every day, and it never tells you whether your answer of yesterday was right. In the evening the boats come back, the
fish are weighed and sold, and the lamps are lit along the quay. Then somebody begins to sing, and the others join in.
"""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a model gives on fixed inputs.

    Attributes:
        outputs: Its first output, flat, in float32.
        perplexity: On a slice of text, for causal language models with a tokenizer; otherwise ``None``.
    """

    outputs: Tensor
    perplexity: float | None

    def summary(self) -> dict[str, Any]:
        """Enough to recognise it again: size, hash, evenly spaced samples, perplexity."""
        step = max(1, self.outputs.numel() // _SAMPLES)
        return {
            "numel": self.outputs.numel(),
            "sha256": hashlib.sha256(self.outputs.numpy().tobytes()).hexdigest(),
            "samples": [float(value) for value in self.outputs[::step][:_SAMPLES]],
            "perplexity": self.perplexity,
        }


def observe(model: nn.Module, directory: Path | None) -> Observation:
    """Run a model on fixed inputs; ``directory`` may hold its tokenizer."""
    with torch.no_grad():
        outputs = first_output(model(**fixed_inputs(model)))
    return Observation(outputs=outputs.float().flatten().contiguous(), perplexity=_perplexity(model, directory))


def buffer_dtypes(model: nn.Module) -> dict[str, str]:
    """Dtypes of the float buffers that no checkpoint holds: a model cast with ``.to(dtype)`` computes in other ones."""
    stored = model.state_dict()
    return {
        name: str(buffer.dtype).removeprefix("torch.")
        for name, buffer in model.named_buffers()
        if name not in stored and buffer.is_floating_point()
    }


def set_buffer_dtypes(model: nn.Module, dtypes: Mapping[str, str]) -> None:
    """Cast the buffers of a reloaded model as those of the model in memory were."""
    for name, dtype in dtypes.items():
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        setattr(owner, leaf, getattr(owner, leaf).to(getattr(torch, dtype)))


def fixed_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Inputs of a transformers model that are the same every time: 4 sequences of 16 tokens, or 2 images."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(0)
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        size = getattr(config, "image_size", None) or 64
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(config, "num_channels", 3)
        return {"pixel_values": torch.randn(2, channels, height, width, generator=generator).to(_dtype(model))}
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = int(text_config.vocab_size)
    ids = torch.randint(0, vocabulary, (4, 16), generator=generator)
    inputs = {"input_ids": ids}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids[:, :8]
    return inputs


def first_output(output: Any) -> Tensor:
    """The first floating-point tensor of a model's output."""
    values = (
        output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else [output]
    )
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise CheckpointError("The model gives no floating-point output to compare.")


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _perplexity(model: nn.Module, directory: Path | None) -> float | None:
    if directory is None or not type(model).__name__.endswith("ForCausalLM"):
        return None
    if not any((directory / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from goldstick.evaluation.language_model import LanguageModel

    language_model = LanguageModel.from_directory(model, directory)
    ids = language_model.encode(_TEXT)[: language_model.context_length]
    (log_probabilities,) = language_model.token_log_probabilities([ids])
    return float(torch.as_tensor(log_probabilities).double().mean().neg().exp())


def prove(directory: Path, request: Mapping[str, Any], expected: Observation | None) -> dict[str, Any]:
    """Compare a checkpoint with what it should hold, in a fresh process.

    Args:
        directory: The checkpoint.
        request: ``method`` (``outputs`` or ``tensors``) and what the method needs; see ``prove_worker``.
        expected: What the model in memory gave; without it the worker rebuilds that model from source and recipe.

    Returns:
        The findings, ``passed`` among them, as plain data for the manifest.

    Raises:
        CheckpointError: The worker could not do it; the message is its own.
    """
    _return_freed_memory()
    with tempfile.TemporaryDirectory(prefix="goldstick-proof-") as folder:
        full = dict(request, directory=str(directory), result=str(Path(folder) / "result.json"))
        if expected is not None:
            save_file({"outputs": expected.outputs}, Path(folder) / "expected.safetensors")
            full |= {"expected": str(Path(folder) / "expected.safetensors"), "perplexity": expected.perplexity}
        task = Path(folder) / "request.json"
        task.write_text(json.dumps(full), encoding="utf-8")
        command = [sys.executable, "-m", "goldstick.pipeline.prove_worker", str(task)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        result = Path(full["result"])
        if process.returncode or not result.exists():
            lines = process.stderr.strip().splitlines() or [f"it ended with code {process.returncode}"]
            raise CheckpointError(f"The proof of {directory} could not be made: {lines[-1]}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def _return_freed_memory() -> None:
    """Give freed memory back to the system before another process needs some; glibc keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def compare(expected: Observation, found: Observation) -> dict[str, Any]:
    """Differences of two observations, and whether they count as equal."""
    if expected.outputs.shape != found.outputs.shape:
        raise CheckpointError("The reloaded model's output has another shape.")
    difference = float((expected.outputs - found.outputs).abs().max()) if expected.outputs.numel() else 0.0
    largest = float(expected.outputs.abs().max()) if expected.outputs.numel() else 0.0
    finite = bool(torch.isfinite(found.outputs).all())
    return {
        "method": "outputs",
        "max_abs_difference": difference,
        "largest_output": largest,
        "perplexity_expected": expected.perplexity,
        "observed": found.summary(),
        "passed": finite
        and difference <= TOLERANCE * max(largest, 1e-30)
        and _same_perplexity(expected.perplexity, found.perplexity),
    }


def _same_perplexity(expected: float | None, found: float | None) -> bool:
    if expected is None or found is None:
        return True  # no tokenizer on one side: there is no text to read
    return abs(found - expected) <= PERPLEXITY_TOLERANCE * expected


def require(proof: Mapping[str, Any], directory: Path) -> None:
    """Raise where a proof did not pass."""
    if not proof["passed"]:
        raise CheckpointError(
            f"The checkpoint in {directory} was written and read back, and does not give what the model in memory "
            "gave: "
            f"{json.dumps({k: v for k, v in proof.items() if k != 'observed'})}. Do not use it; please report this."
        )
