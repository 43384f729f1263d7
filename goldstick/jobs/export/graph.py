"""A quantized checkpoint as a file of operators, which runs without Python, tried beside goldstick's plain backend."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldstick.checkpoint.entries import write_small
from goldstick.checkpoint.sidecars import sidecars_of, write_sidecars
from goldstick.checkpoint.staging import check_output, refuse_overlap, staged
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.core.json_files import dump_json
from goldstick.core.progress import Progress, quiet
from goldstick.core.torch_modes import as_written
from goldstick.errors import CheckpointError, DataError, FormatError, NotRunError, UsageError
from goldstick.formats import GRAPHS
from goldstick.formats.graph import GraphFormat, GraphLayer
from goldstick.hf.calling import arguments_of
from goldstick.hf.checkpoint import open_quantized
from goldstick.hf.example_inputs import fixed_inputs, give_inputs, inputs_beside
from goldstick.jobs.export.graph_layers import stand_in_for_layers
from goldstick.jobs.inspect.stored_report import report_of_files
from goldstick.jobs.load.load import load
from goldstick.jobs.quantize.quantize import Quantized
from goldstick.jobs.save.records import environment
from goldstick.report import Report

#: What a graph may differ by: its squared error over the sum of squares of each output, in float32, and where inputs
#: are rounded to 8 bits, of which sums in another order turn some.
BOUND, BOUND_OF_ROUNDED_INPUTS = 1e-8, 1e-3


@as_written()
def export_graph(
    directory: Path, name: str, output: Path, *, overwrite: bool = False, progress: Progress = quiet
) -> Quantized:
    """Store a quantized model as a graph, with its config and what makes its inputs.

    It is computed in float32. The graph is run, and each of its outputs compared with that of goldstick's plain backend
    on the same inputs.

    Raises:
        UsageError: A package that writes or runs it is not installed.
        FormatError: It has no operators for a layer; the message names it and the remedy.
        NotRunError: The network cannot be traced.
        DataError: Nothing says how to run it.
        CheckpointError: It gives other outputs.
    """
    target = GRAPHS[name]
    missing = [package for package in target.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)}: not installed. To write {name}: pip install 'goldstick[{name}]'.")
    refuse_overlap(output, {"source": directory})
    check_output(output, overwrite)
    started = time.perf_counter()
    checkpoint = open_quantized(directory)
    progress("tracing", 0, 1)
    model = _runnable(directory)
    give_inputs(model, inputs_beside(directory))
    inputs = _inputs_of(model)
    expected = _outputs(model, inputs)
    layers = stand_in_for_layers(model)
    for layer in layers:
        if (reason := target.refuses(layer)) is not None:
            raise FormatError(f"{name} cannot hold this: {layer.name}: {reason}.")
    with staged(output, overwrite) as work:
        traced = traced_graph(model, inputs, tuple(expected), target.version)
        used = target.write(traced, layers, work / target.file)
        progress("proving", 0, 1)
        proof = _compared(target, work / target.file, inputs, expected, layers)
        config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
        write_small(work / "config.json", dump_json(config | {"dtype": "float32"}).encode())
        write_sidecars(work, sidecars_of(directory))
        mine = (directory / MANIFEST_NAME).is_file()
        before = Report.read(directory) if mine else report_of_files(checkpoint)
        report = dataclasses.replace(
            before,
            format=name,
            proof=proof | {"operators": ", ".join(f"{count} {operator}" for operator, count in sorted(used.items()))},
            environment=environment(),
            timing={"export_and_write": time.perf_counter() - started},
        )
        report.write(work)
        progress("proving", 1, 1)
    return Quantized(directory=output, report=report)


def _runnable(directory: Path) -> nn.Module:
    model = load(directory, dtype=torch.float32).eval()
    config: Any = getattr(model, "config", None)
    if config is not None:
        config.return_dict = True
    for module in model.modules():  # a decoder may have a config of its own
        own: Any = getattr(module, "config", None)
        if hasattr(own, "use_cache"):
            own.use_cache = False
    return model


def _inputs_of(model: nn.Module) -> dict[str, Tensor]:
    """Inputs to trace and to compare with; those of text have a mask, with padding at the end of the last row."""
    try:
        inputs = dict(fixed_inputs(model))
    except DataError as error:
        raise DataError(f"{error} An export takes those that its checkpoint was quantized with.") from error
    tokens, taken = inputs.get("input_ids"), arguments_of(model)
    if tokens is not None and "attention_mask" in taken:
        mask = torch.ones_like(tokens)
        mask[-1, -3:] = 0
        inputs.setdefault("attention_mask", mask)
    if tokens is not None and "token_type_ids" in taken:
        inputs.setdefault("token_type_ids", torch.zeros_like(tokens))
    return inputs


def _outputs(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the plain backend gives, by name."""
    before = os.environ.get("GOLDSTICK_BACKEND")
    os.environ["GOLDSTICK_BACKEND"] = "reference"
    try:
        with torch.inference_mode():
            found: Any = model(**inputs)
    finally:
        os.environ.pop("GOLDSTICK_BACKEND", None)
        if before is not None:
            os.environ["GOLDSTICK_BACKEND"] = before
    return dict(_named_tensors(found, ""))


def _named_tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors in the order in which torch takes them out of what holds them: ``logits``, ``hidden_states.0``, ..."""
    if isinstance(value, Tensor):
        yield name or "output", value
    elif isinstance(value, Mapping | tuple | list):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for part, inner in parts:
            yield from _named_tensors(inner, f"{name}.{part}" if name else str(part))


def traced_graph(model: nn.Module, inputs: Mapping[str, Tensor], outputs: tuple[str, ...], version: int) -> Any:
    """The network with nodes in the places of quantized layers; sizes of inputs stay open where it takes any."""
    shapes = {name: dict.fromkeys(range(value.ndim), torch.export.Dim.AUTO) for name, value in inputs.items()}
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it names every library that is not there
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            return torch.onnx.export(
                model, (), kwargs=dict(inputs), dynamo=True, dynamic_shapes=shapes, output_names=list(outputs),
                opset_version=version, verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises many kinds
        first: BaseException = error
        while first.__cause__ is not None:  # what is raised tells of steps and of reports to write, in colours
            first = first.__cause__
        reason = str(first).strip().splitlines()
        raise NotRunError(
            f"torch {torch.__version__} cannot trace this {type(model).__name__} "
            f"({reason[0] if reason else type(first).__name__}); a checkpoint of another format runs it"
        ) from error
    finally:
        logger.setLevel(level)


def _compared(
    target: GraphFormat, path: Path, inputs: Mapping[str, Tensor], expected: Mapping[str, Tensor],
    layers: list[GraphLayer],
) -> dict[str, Any]:  # fmt: skip
    found = target.session(path)({name: value.numpy() for name, value in inputs.items()})
    rounded = any(layer.scheme.activation is not None for layer in layers)
    bound = BOUND_OF_ROUNDED_INPUTS if rounded else BOUND
    errors = {
        name: _error(value.numpy(), theirs) for (name, value), theirs in zip(expected.items(), found, strict=True)
    }
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= bound:
        raise CheckpointError(
            f"{path.name} gives another {worst}: a squared error of {errors[worst]:.3g} of its sum of squares, and "
            f"{bound:g} is what another order of sums may make. It was not kept; please report this."
        )
    apart = max(float(np.abs(value.numpy() - got).max()) for value, got in zip(expected.values(), found, strict=True))
    return {"method": "outputs", "max_abs_difference": apart, "squared_error_share": errors[worst], "bound": bound}


def _error(mine: np.ndarray, theirs: np.ndarray) -> float:
    exact = mine.astype(np.float64)
    return float(((theirs - exact) ** 2).sum() / max((exact**2).sum(), np.finfo(np.float64).tiny))
