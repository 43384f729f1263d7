"""What a model gives on fixed inputs: enough to say whether two models are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import CheckpointError, DataError, GoldstickError, NotRunError
from goldstick.evaluation.forward import device_of
from goldstick.hf.example_inputs import fixed_inputs as fixed_inputs
from goldstick.hf.example_inputs import shapes_of_inputs
from goldstick.structure.calls import first_call
from goldstick.structure.trace import on_device, tensors_in

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
        inputs: The shapes of what it was given, by the names of its arguments.
    """

    outputs: Tensor
    perplexity: float | None
    inputs: Mapping[str, list[int]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Enough to recognise it again: size, hash, evenly spaced samples, perplexity."""
        step = max(1, self.outputs.numel() // _SAMPLES)
        return {
            "numel": self.outputs.numel(),
            "sha256": hashlib.sha256(self.outputs.numpy().tobytes()).hexdigest(),
            "samples": [float(value) for value in self.outputs[::step][:_SAMPLES]],
            "perplexity": self.perplexity,
            "inputs": dict(self.inputs),
        }


Passes = Sequence[Callable[[], Any]]


def run_in_turn(passes: Passes) -> list[Any]:
    """Run forward passes one after the other."""
    return [run() for run in passes]


def model_inputs(model: nn.Module, directory: Path | None) -> list[dict[str, Any]]:
    """The keyword arguments of each call of the model that :func:`observe` makes; the model does not run."""
    calls = (first_call([model], run) for run in _passes(model, directory, fixed_inputs(model)))
    return [call[2] for call in calls if call is not None]


def observe(
    model: nn.Module,
    directory: Path | None,
    run: Callable[[Passes], list[Any]] = run_in_turn,
    like: Mapping[str, Sequence[int]] | None = None,
) -> Observation:
    """What a model gives on fixed inputs and a slice of text.

    Args:
        model: The model.
        directory: Where its tokenizer may lie.
        run: Runs the forward passes; a model that is not in memory as a whole runs them together, block by block.
        like: Shapes of the inputs, where those of an earlier observation are wanted.

    Raises:
        NotRunError: The model does not run on any inputs that goldstick knows of.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            inputs = fixed_inputs(model, like)
            torch.manual_seed(0)  # some networks draw numbers in their forward
            outputs, perplexity = run(_passes(model, directory, on_device(inputs, device_of(model))))
    except (GoldstickError, MemoryError):
        raise
    except Exception as error:  # any code of the model may fail, in any way
        raise NotRunError(f"{type(model).__name__} does not run: {type(error).__name__}: {error}") from error
    return Observation(
        outputs=outputs.float().flatten().contiguous().cpu(), perplexity=perplexity, inputs=shapes_of_inputs(inputs)
    )


def observe_or_say(
    model: nn.Module, directory: Path | None, run: Callable[[Passes], list[Any]] = run_in_turn
) -> tuple[Observation | None, str]:
    """What :func:`observe` gives, or why the model does not run."""
    try:
        return observe(model, directory, run), ""
    except (NotRunError, DataError) as error:
        return None, str(error)


def _passes(model: nn.Module, directory: Path | None, inputs: Mapping[str, Any]) -> Passes:
    """Forward passes that call the model once, or (no text to read) not at all; those that do come first."""
    return [lambda: first_output(model(**inputs)), lambda: _perplexity(model, directory)]


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


def first_output(output: Any) -> Tensor:
    """The first floating-point tensor of a model's output, at any depth."""
    found = next((value for value in tensors_in(output) if value.is_floating_point()), None)
    if found is None:
        raise CheckpointError("The model gives no floating-point output to compare.")
    return found


def _perplexity(model: nn.Module, directory: Path | None) -> float | None:
    if directory is None or not type(model).__name__.endswith("ForCausalLM"):
        return None
    if not any((directory / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from goldstick.evaluation.language_model import LanguageModel

    language_model = LanguageModel.from_directory(model, directory)
    ids = language_model.encode(_TEXT)[: language_model.context_length]
    if len(ids) < 2:  # a tokenizer to which all of it is one word: no token follows another
        return None
    try:
        (log_probabilities,) = language_model.token_log_probabilities([ids])
    except DataError:  # a tokenizer of another model, with which there is no text to read
        return None
    return float(torch.as_tensor(log_probabilities).double().mean().neg().exp())
