"""The Python interface: wiring only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.data.batches import as_batches
from goldstick.calibration.device_memory import naming_full_devices
from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.checkpoint.staging import check_output, refuse_overlap
from goldstick.core.inference_mode import make_ordinary, ordinary, without_inference_mode
from goldstick.core.processes import rank, told_by_first
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.errors import UsageError
from goldstick.evaluation import Evaluation, Task
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.formats import FORMATS, GRAPHS
from goldstick.hf.example_inputs import as_inputs, give_inputs
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.doctor.finding import Diagnosis
from goldstick.jobs.doctor.runtimes import runtime_named
from goldstick.jobs.doctor.runtimes.planned import plan_for
from goldstick.jobs.evaluate.evaluate import before_and_after, evaluate_directory, evaluate_loaded
from goldstick.jobs.export.export import export_checkpoint
from goldstick.jobs.export.graph import export_graph
from goldstick.jobs.load.accelerate import accelerate
from goldstick.jobs.load.bundled_data import with_bundled_data
from goldstick.jobs.load.calibration_inputs import calibration_inputs, require_calibration
from goldstick.jobs.load.find_model import data_directory, find_model
from goldstick.jobs.load.load import load as load_checkpoint
from goldstick.jobs.load.random_tokens import random_tokens
from goldstick.jobs.optimize.optimize import optimize, optimize_and_log
from goldstick.jobs.proof.proof import ProofMethod
from goldstick.jobs.quantize.quantize import Quantized, execute
from goldstick.jobs.quantize.together import help_the_first, refuse_idle_ranks
from goldstick.jobs.save.result import Result, apply_recipe
from goldstick.jobs.search.ask import search
from goldstick.kernels.input_bits import refuse_fewer_bits
from goldstick.kernels.input_bits import set_input_bits as set_input_bits
from goldstick.planning import RecipeLike as RecipeLike
from goldstick.planning import plan as plan
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe
from goldstick.structure.trace import map_tensors
from goldstick.training import TrainingTask

__all__ = [
    "accelerate", "apply", "doctor", "evaluate", "export", "load", "optimize", "plan", "quantize", "search",
    "set_input_bits",
]  # fmt: skip


def apply(
    model: nn.Module, recipe: RecipeLike, *, data: Any = None, training: TrainingTask | None = None,
    inputs: Mapping[str, Tensor] | None = None, inplace: bool = False, progress: Progress = quiet,
) -> Result:  # fmt: skip
    """Compress a module in memory.

    Args:
        model: Any ``nn.Module``. It is left untouched unless ``inplace``.
        recipe: Words such as ``gptq-w4a16-g128``, a YAML file, a mapping, or a :class:`Recipe`.
        data: Calibration data, where algorithms look at data: an iterable of batches. A batch is a mapping of keyword
            arguments of the forward; a tensor, its first argument (such as token ids); or a tuple or list of tensors,
            as many as it takes without a default, and at least one: one more, such as labels, is left out.
        training: What to train on, with which loss, for stages that train; ``data``, and the loss that the model itself
            gives for it, where ``None``.
        inputs: Keyword arguments of its forward to try a transformers model with, where goldstick cannot know any.
        inplace: Rewrite ``model`` itself, which saves the memory of a copy.
        progress: Called with (description, done, total).

    Returns:
        The compressed ``model``, its ``report``, and ``save(directory)``.

    Raises:
        RecipeError: The recipe is wrong, or illegal for this model.
        DataError: ``data`` holds what is no batch; the message names the item.
        SourceError: A layer to be quantized is in float64 or in codes of its own, or has no numbers (meta).
        QuantizationError: A weight is not finite.
        UsageError: :func:`set_input_bits` has let inputs be rounded to 8 bits.
        TrainingError: A training diverged, or its checkpoint is of another.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"apply takes an nn.Module, not {model!r}. Load a checkpoint with goldstick.load(directory), or compress "
            "its directory with goldstick.quantize(directory, recipe, output=…)."
        )
    refuse_fewer_bits()
    loaded = Recipe.load(recipe)
    if data is not None and not needs_data(loaded.stages):
        raise UsageError("None of the recipe's algorithms looks at data; leave out data=.")
    if training is not None and not any(stage.trains for stage in loaded.stages):
        raise UsageError("None of the recipe's stages trains; leave out training=.")
    batches = [] if data is None else as_batches(model, data)
    with without_inference_mode():
        batches = [map_tensors(batch, ordinary) for batch in batches]
        if random := random_tokens(loaded.calibration, model):
            batches = random.beside(batches)
        if inplace:
            make_ordinary(model)
        result = apply_recipe(model, loaded, inplace=inplace, batches=batches, training=training, progress=progress)
    give_inputs(result.model, inputs)
    return result


def quantize(
    model: str | Path, recipe: RecipeLike, *, output: str | Path, overwrite: bool = False,
    evaluate: Sequence[str | Task] | None = None, data_dir: str | Path | None = None, limit: int | None = None,
    device: str = "cpu", proof: ProofMethod = "outputs", resume: bool = False, max_memory: int | None = None,
    inputs: Mapping[str, Tensor] | str | Path | None = None, runtime: str | None = None, tensor_parallel: int = 1,
    save_importance: str | Path | None = None, cache: Path | None = None, examples: int | Sequence[str] = 3,
    progress: Progress = quiet,
) -> Quantized:  # fmt: skip
    """Compress a checkpoint directory into another, tensor by tensor; in several processes together (docs/scale.md).

    Args:
        model: A local directory in the hub's layout, quantized or not, a GGUF file, a hub id, or ``reference``.
        recipe: Words such as ``gptq-w4a16-g128``, a YAML file, a mapping, or a :class:`Recipe`.
        output: The directory to make; it appears whole or not at all.
        overwrite: Whether it may replace a checkpoint that goldstick wrote.
        evaluate: Tasks to run before and after; the recipe's where ``None``. On running text what both models predict
            is compared token by token, with both in memory. How fast both write is measured, too.
        data_dir: Where the tasks, and data known by name, lie; ``reference`` for what comes with the reference model.
        limit: At most so many items of each task.
        device: Where blocks run and weights are rounded, such as ``cuda``; under torchrun each process takes its own.
        proof: How the result is proven in a fresh process: its ``outputs``, block by block, against those of the
            float model quantized in memory, or its ``tensors`` against the source, where it cannot be run here.
        resume: Go on with a calibrated run that was stopped; the result is the same, byte for byte.
        max_memory: Bytes that the run may use, which must hold it; a good part of what is free where ``None``.
        inputs: As :func:`plan` takes them; the checkpoint carries them.
        runtime: As :func:`plan` takes it.
        tensor_parallel: As :func:`plan` takes it.
        save_importance: A GGUF file in which to keep how large inputs were, as llama.cpp's tools take it.
        cache: Where results of tasks are kept and looked up; nowhere where ``None``.
        examples: How many items of each task the report shows with both answers; or prompts, in the place of items.
        progress: Called with (description, done, total).

    Raises:
        OutputError: ``output`` exists or cannot be written.
        SourceError: The model cannot be read, or holds NaN.
        RecipeError: The recipe is wrong, or illegal for this model.
        CheckpointError: What was written and read back is not what it should be.
    """
    refuse_fewer_bits()
    with checkpoint_directory(find_model(model)) as directory:
        wanted_by = runtime_named(runtime, tensor_parallel)
        bundled = with_bundled_data(Recipe.load(recipe), model, data_dir)
        planned = plan_for(directory, bundled, as_inputs(inputs), wanted_by, tensor_parallel)
        local = data_directory(data_dir, model)
        require_calibration(planned.recipe, directory, local)
        calibrate = calibration_inputs(planned.recipe.calibration, directory, local)
        refuse_idle_ranks(planned)
        if rank():
            with naming_full_devices():
                told = help_the_first(planned, output, device, calibrate, max_memory, Path(save_importance or "").name)
            return Quantized(directory=Path(output), report=told)
        tasks = tuple(planned.recipe.evaluate if evaluate is None else evaluate)
        refuse_overlap(Path(output), {"data directory": local, "calibration data": planned.recipe.calibration.dataset})
        check_output(Path(output), overwrite, resume)
        measure = before_and_after(directory, tasks, local, limit, progress, cache, examples) if tasks else None
        with naming_full_devices():
            made = execute(
                planned, Path(output), base_model=str(model), overwrite=overwrite, device=device, proof=proof,
                resume=resume, max_memory=max_memory, progress=progress, calibrate=calibrate, evaluate=measure,
                importance=None if save_importance is None else Path(save_importance),
            )  # fmt: skip
        told_by_first(made.report.to_json())
    return made


def export(
    directory: str | Path,
    format: str,
    *,
    output: str | Path,
    overwrite: bool = False,
    proof: ProofMethod = "outputs",
    max_shard_size: int | None = None,
    together: bool = True,
    progress: Progress = quiet,
) -> Quantized:
    """Store a compressed checkpoint in another format; codes, scales and zeros stay what they are.

    Args:
        directory: A checkpoint in any format that goldstick reads, made by it or by another tool, or a GGUF file.
        format: A name in :data:`goldstick.formats.FORMATS`, such as ``gptq``, or in ``GRAPHS``: ``onnx``, a network of
            operators for runtimes beside PyTorch (docs/onnx.md).
        output: The directory to make; it appears whole or not at all.
        overwrite: Whether it may replace a checkpoint that goldstick wrote.
        proof: Tensors are always compared; with ``outputs``, what both checkpoints give as well.
        max_shard_size: Bytes a weight file may have; 5 GB where ``None``, of GGUF files 50 GB.
        together: Whether all processes that torchrun started call it and do it together; one of them does it alone
            where not.
        progress: Called with (description, done, total).

    Raises:
        UsageError: There is no such format, or the checkpoint is stored in it.
        FormatError: The format cannot hold the checkpoint without loss; the message names the layer and the remedy.
        SourceError: The directory is no quantized checkpoint of a transformers model.
        CheckpointError: What was written and read back is not what it should be.
    """
    refuse_fewer_bits()
    if format not in FORMATS and format not in GRAPHS:
        raise UsageError(f"There is no format {format!r}. There are {', '.join([*FORMATS, *GRAPHS])}.")
    with checkpoint_directory(find_model(directory)) as found:
        if format in GRAPHS:
            if max_shard_size is not None:
                raise UsageError(f"{format} has one file of weights; leave out max_shard_size.")
            return export_graph(found, format, Path(output), overwrite=overwrite, progress=progress)
        limits: Any = {"overwrite": overwrite, "proof": proof, "max_shard_size": max_shard_size, "together": together}
        return export_checkpoint(found, format, Path(output), progress=progress, **limits)


def doctor(
    directory: str | Path, *, source: str | Path | None = None, runtime: str | None = None, tensor_parallel: int = 1,
    progress: Progress = quiet,
) -> Diagnosis:  # fmt: skip
    """Look for all that is wrong with a checkpoint, by any tool or in float: findings, and whether it is healthy.

    Args:
        directory: A checkpoint of a transformers model, or a GGUF file.
        source: The model that it was made from, to compare weights with.
        runtime: A program that is to run it, such as ``vllm``: its loaders' rules are looked at, too.
        tensor_parallel: Over how many devices that program is to split the layers.
        progress: Called with (description, done, total).

    Raises:
        SourceError: There is no such directory, or it holds no config.json and no GGUF file.
        UsageError: There is no such runtime, or no rules of how it splits layers are known.
    """
    compared = None if source is None else find_model(source)
    return examine(find_model(directory), progress, compared, runtime_named(runtime, tensor_parallel), tensor_parallel)


def load(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    dtype: str | torch.dtype = "auto",
    optimize: bool = False,
) -> nn.Module:
    """A model on packed weights from a compressed checkpoint.

    Args:
        directory: A checkpoint in any format that goldstick reads, or a GGUF file.
        model: The float module a native checkpoint was made from, for modules that are no transformers models; it is
            rewritten in place and returned.
        dtype: What float tensors are read as; ``auto`` keeps the checkpoint's.
        optimize: Whether to rearrange the model so that it runs faster, as :func:`goldstick.optimize` does. What that
            did goes to the logger ``goldstick``; call it yourself to have the report.

    Raises:
        UsageError: It is to be optimized, and is no transformers model.
        CheckpointError: Tensors are missing, unexpected or misshapen.
        FormatError: The checkpoint is of a kind goldstick does not read.
        SourceError: There is no such directory, or it must not be trusted.
    """
    loaded = load_checkpoint(directory, model=model, dtype=dtype)
    if optimize:
        optimize_and_log(loaded)
    return loaded


def evaluate(
    model: str | Path | nn.Module, tasks: Sequence[str | Task], *, tokenizer: str | Path | None = None,
    data_dir: str | Path | None = None, limit: int | None = None, cache: Path | None = None, progress: Progress = quiet,
) -> Evaluation:  # fmt: skip
    """Run evaluation tasks on a model; in several processes together, each of which gets the results (docs/scale.md).

    Args:
        model: A checkpoint directory (float or compressed), a GGUF file, a hub id, ``reference``, or a loaded model: a
            causal language model, one for question answering or one for image classification.
        tasks: Tasks, or their names: ``wikitext2``, ``lm_eval:TASK``, ``text:FILE``, ``choice:FILE``, ``FILE.py``, ….
        tokenizer: Directory of the tokenizer or image processor, for a model that is loaded already.
        data_dir: Where local data lie; ``reference`` for what comes with the reference model.
        limit: At most so many items of each task.
        cache: Where results are kept and looked up, for a model in a directory; nowhere where ``None``.
        progress: Called with (description, done, total).

    Raises:
        UsageError: There is no such task.
        DataError: The data of a task are neither local nor on the hub.
    """
    if isinstance(model, nn.Module):
        return evaluate_loaded(model, tasks, tokenizer, data_directory(data_dir, None), limit, progress)
    find_tasks(tasks)  # before a model is loaded
    directory, local = find_model(model), data_directory(data_dir, model)
    return evaluate_directory(directory, tasks, local, limit, progress, cache, Ranks.joined())
