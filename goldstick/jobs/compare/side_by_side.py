"""Side by side: two checkpoints on the same input, the outputs of every module compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.core.counts import counted
from goldstick.core.progress import Progress, quiet
from goldstick.core.rows import row_chunks
from goldstick.core.torch_modes import as_written
from goldstick.errors import DataError, UsageError
from goldstick.evaluation.forward import embedding_rows
from goldstick.hf.example_inputs import Inputs, fixed_inputs, give_inputs
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.compare.lockstep import Finished, in_pairs, run_in_steps
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.recipes.calibration import Calibration
from goldstick.report.model_comparison import PARTING_DB, ModelComparison, ModuleDifference
from goldstick.report.report import Report


@as_written()
def compare_models(
    first: Path,
    second: Path,
    *,
    text: Calibration | None = None,
    data_dir: Path | None = None,
    inputs: Inputs | None = None,
    threshold: float = PARTING_DB,
    progress: Progress = quiet,
) -> ModelComparison:
    """Run two models side by side on the same input and compare the outputs of every module by its name.

    Each runs once, on one batch, with one block in memory at a time. Both halt behind every module, so the outputs of
    one module are held at a time where both run the same modules in the same order; see :mod:`.lockstep`.

    Args:
        first: The checkpoint directory that counts as right, float or quantized.
        second: The other.
        text: The text both are given, through the tokenizer of the first; the fixed inputs of a proof where ``None``.
        data_dir: Where sets of text known by name lie.
        inputs: What both are given instead, by the names of their forwards' arguments.
        threshold: The SQNR in decibels below which the models have parted.
        progress: Told what is done.

    Raises:
        SourceError: A directory is no readable model.
        CheckpointError: A checkpoint is damaged.
        DataError: The text is missing, malformed or too short.
        UsageError: The second model cannot read what the first reads.
    """
    models = StreamedModel(first), StreamedModel(second)
    for each in models:
        give_inputs(each.model, inputs)
    given, words = _inputs(models, first, text, data_dir)
    sums: dict[str, _Sums] = {}
    problems: dict[str, str] = {}
    unpaired: tuple[list[Finished], list[Finished]] = ([], [])
    blocks, done = models[0].blocks, 0
    progress("comparing", 0, len(blocks))
    with torch.no_grad():
        right, tried = (run_in_steps(streamed, lambda model: model(**given)) for streamed in models)
        for one, other in in_pairs(right, tried, unpaired):
            problem = _problem(one, other)
            if problem is not None:
                problems.setdefault(one.name, problem)
            elif one.output is not None and other.output is not None:
                sums.setdefault(one.name, _Sums(one=one, other=other)).add(one.output, other.output)
            if one.name in blocks:
                done += 1
                progress("comparing", done, len(blocks))
    alone = [list(dict.fromkeys(step.name for step in steps)) for steps in unpaired]
    for name in {*alone[0], *alone[1]} & {*sums, *problems}:
        problems[name] = "one model ran it more often than the other"
    found = [name for name in sums if name not in problems]
    return ModelComparison(
        first=str(first),
        second=str(second),
        inputs=words,
        threshold=threshold,
        modules=tuple(sums[name].difference() for name in found),
        only_first=tuple(name for name in alone[0] if name not in problems),
        only_second=tuple(name for name in alone[1] if name not in problems),
        not_compared=tuple(problems.items()),
        rotated=_rotation(first) != _rotation(second),
    )


def _rotation(directory: Path) -> dict[str, Any]:
    """By what the coordinates of a checkpoint's layers are told apart: its report's account of a rotation."""
    try:
        told = Report.read(directory).rotation
    except DataError:  # none, or another tool's
        return {}
    return {name: told[name] for name in ("seed", "residual_channels", "blocks", "heads") if name in told}


def _inputs(
    models: tuple[StreamedModel, StreamedModel], first: Path, text: Calibration | None, data_dir: Path | None
) -> tuple[Mapping[str, Any], str]:
    """The keyword arguments of both models' forward, and what they are in words."""
    model: Any = models[0].model
    fixed, others = (fixed_inputs(each.model) for each in models)
    if fixed.keys() != others.keys():
        raise UsageError(
            f"The two models do not take the same inputs: {first} takes {', '.join(fixed)}, "
            f"{models[1].directory} takes {', '.join(others)}. Compare models of one kind."
        )
    if text is None:
        inputs: Mapping[str, Any] = fixed
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
        words = f"the fixed inputs of a proof: {shapes}"
    else:
        data = calibration_data(text, first, data_dir)(model)
        inputs = {"input_ids": data.ids}
        words = f"{counted(data.ids.shape[0], 'sample')} of {counted(data.ids.shape[1], 'token')} from {text.dataset}"
    ids = inputs.get("input_ids")
    rows = embedding_rows(models[1].model)
    if ids is not None and rows is not None and rows <= (largest := int(ids.max())):
        raise UsageError(
            f"The two models do not read the same tokens: {models[1].directory} has embeddings for {rows} token ids, "
            f"and the input made for {first} holds the id {largest}. Compare models with one tokenizer."
        )
    return inputs, words


def _problem(one: Finished, other: Finished) -> str | None:
    if one.output is None or other.output is None:
        return "it gives no float tensor" if one.output is other.output else "only one gives a float tensor"
    if one.output.shape != other.output.shape:
        return f"its outputs have the shapes {list(one.output.shape)} and {list(other.output.shape)}"
    return None


@dataclass(kw_only=True)
class _Sums:
    """Sums over the outputs of a module's calls: float64 over the values of a row, then exact over rows."""

    one: Finished
    other: Finished
    shape: tuple[int, ...] = ()
    calls: int = 0
    max_abs: float = 0.0
    signal: list[float] = field(default_factory=list)
    energy: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    product: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Keep the names, let go of the outputs."""
        assert self.one.output is not None
        self.shape = tuple(self.one.output.shape)
        self.one, self.other = _without_output(self.one), _without_output(self.other)

    def add(self, one: Tensor, other: Tensor) -> None:
        """Count the outputs of a call."""
        self.calls += 1
        width = one.shape[-1] if one.ndim else 1
        if one.numel() == 0:
            return
        rows, other_rows = one.reshape(-1, width), other.reshape(-1, width)
        for part in row_chunks(rows, copies=8):
            a, b = rows[part].double(), other_rows[part].double()
            equal = torch.equal(a, b)  # also where both hold the same infinities
            difference = torch.zeros_like(a) if equal else a - b
            largest = float(difference.abs().max())
            self.max_abs = largest if math.isnan(largest) else max(self.max_abs, largest)
            for sums, values in (
                (self.signal, a * a),
                (self.energy, b * b),
                (self.noise, difference * difference),
                (self.product, a * b),
            ):
                sums.append(_exact_sum(values))

    def difference(self) -> ModuleDifference:
        """What the sums say."""
        signal, energy, noise = (_total(sums) for sums in (self.signal, self.energy, self.noise))
        return ModuleDifference(
            name=self.one.name,
            first_kind=self.one.kind,
            second_kind=self.other.kind,
            shape=self.shape,
            calls=self.calls,
            sqnr_db=_decibels(signal, noise),
            cosine=_cosine(_total(self.product), signal, energy, noise),
            max_abs=self.max_abs,
        )


def _without_output(step: Finished) -> Finished:
    return Finished(name=step.name, call=step.call, kind=step.kind, output=None)


def _exact_sum(values: Tensor) -> float:
    """The sum of [rows, columns], of the same bits at any number of threads: torch sums a row in one."""
    return _total(values.sum(-1).tolist())


def _total(values: list[float]) -> float:
    """The exact sum, rounded once; NaN where a value is not finite."""
    return math.fsum(values) if all(math.isfinite(value) for value in values) else math.nan


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if math.isnan(signal) or math.isnan(noise):
        return math.nan
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _cosine(product: float, signal: float, energy: float, noise: float) -> float:
    if noise == 0:
        return 1.0
    norm = math.sqrt(signal) * math.sqrt(energy) if math.isfinite(signal + energy) else math.nan
    return product / norm if norm != 0 else 0.0
