"""Attribution: a compressed checkpoint's loss, split by putting one part of it back to float at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from goldstick.algorithms import ALGORITHMS
from goldstick.core.counts import counted
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.core.rounded_inputs import quantized_input
from goldstick.errors import DataError, UsageError
from goldstick.hf.cache import cached_decoder, quantized_cache_of, use_float_cache, use_quantized_cache
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.load import load
from goldstick.jobs.sensitivity.block_runs import BlockRuns
from goldstick.jobs.sensitivity.measures import mean_kl
from goldstick.kernels.convolution import rounded_samples
from goldstick.nn import PackedWeight, QuantizedConvolution, QuantizedLinear, TiedQuantizedLinear
from goldstick.recipes.calibration import Calibration
from goldstick.report.attribution import Attribution, Part
from goldstick.report.report import Report
from goldstick.structure.blocks import block_of, find_blocks


def attribute(
    original: Path,
    compressed: Path,
    text: Calibration,
    *,
    data_dir: Path | None = None,
    progress: Progress = quiet,
    ranks: Ranks | None = None,
) -> Attribution:
    """Split the loss of a compressed causal language model by source and by layer; both models are in memory.

    The loss is the mean over all tokens of KL(p ‖ q), p the float model's distribution of the next token. A layer that
    is put back computes with the float model's weight and float inputs. Where the recipe scaled weights against each
    other (AWQ, SmoothQuant), or is not known, a layer of the float model does not fit into the compressed one alone,
    and whole blocks are put back.

    Args:
        original: The float checkpoint.
        compressed: What was made of it.
        text: The text.
        data_dir: Where sets of text known by name lie.
        progress: Told what is done.
        ranks: Who does it together, part by part; all of them get the result.

    Raises:
        UsageError: The first model is not float, the second not compressed or rotated, or the two do not fit.
        DataError: The text is missing, malformed or too short.
    """
    model, other = load(original), load(compressed)
    stages = _stages(compressed)
    paths = _quantized(other)
    _refuse(original, compressed, stages, bool(_quantized(model)), bool(paths) or quantized_cache_of(other) is not None)
    data = calibration_data(text, original, data_dir)(model)
    blocks = find_blocks(model)
    runs = BlockRuns(other, data.batches(), blocks)
    right = list(BlockRuns(model, data.batches(), blocks).logits())
    total = mean_kl(right, runs.logits())
    folded = stages is None or any(getattr(ALGORITHMS[name], "smooths", False) for name in stages)
    places = _places(blocks, paths, folded)
    sources: list[Part] = []
    notes: list[str] = []
    for name, change in _sources(model, other, paths, folded).items():
        if change is None:
            notes.append("weights: not put back alone, since the recipe scaled them together with the inputs.")
            continue
        with ExitStack() as stack:
            change(stack)
            sources.append(Part(name=name, left=mean_kl(right, runs.logits())))
    if folded:
        reason = "the recipe is not known" if stages is None else "the recipe scaled layers against each other"
        notes.append(f"Blocks are put back whole, since {reason}.")
    begins = {path: runs.position(block_of(path, blocks)) for path in places}
    order = sorted(places, key=lambda path: begins[path])

    def lost(number: int) -> float:
        path = order[number]
        progress("putting back to float", number, len(order))
        runs.start_at(begins[path])
        with _put_back(model, other, path):
            return mean_kl(right, runs.logits())

    costs = [runs.cost(begins[path]) for path in order]
    left = dict(zip(order, (ranks or Ranks()).each(costs, lost), strict=True))
    progress("putting back to float", len(order), len(order))
    return Attribution(
        total=total,
        tokens=data.ids.numel(),
        inputs=f"{counted(data.ids.shape[0], 'sample')} of {counted(data.ids.shape[1], 'token')} from {text.dataset}",
        sources=tuple(sources),
        places=tuple(Part(name=path, left=left[path]) for path in places),
        notes=tuple(notes),
    )


def _stages(directory: Path) -> list[str] | None:
    """Names of the stages of the recipe a checkpoint was made with, or ``None`` where nothing says them."""
    try:
        recipe = Report.read(directory).recipe
    except DataError:
        return None
    names = [name for stage in recipe.get("stages", ()) for name in stage]
    return names if names and all(name in ALGORITHMS for name in names) else None


def _refuse(first: Path, second: Path, stages: Sequence[str] | None, quantized: bool, compressed: bool) -> None:
    if quantized:
        raise UsageError(
            f"{first} is compressed itself; attribution puts parts back to the float model, so it comes first."
        )
    if not compressed:
        raise UsageError(f"Nothing in {second} is compressed, so there is no loss to attribute.")
    if stages is not None and "rotate" in stages:
        raise UsageError(
            f"{second} was rotated: its layers have other coordinates than those of {first}, so none can be put back."
        )


def _quantized(model: nn.Module) -> list[str]:
    """Paths of the quantized parts of a model."""
    kinds = (PackedWeight, TiedQuantizedLinear)
    return [path for path, module in model.named_modules() if isinstance(module, kinds)]


def _places(blocks: tuple[str, ...], paths: Sequence[str], folded: bool) -> list[str]:
    """What is put back one at a time: what lies in the blocks, or the blocks themselves, then what lies outside."""
    inside = [path for path in paths if block_of(path, blocks)]
    return [*(blocks if folded else inside), *(path for path in paths if path not in inside)]


def _sources(model: nn.Module, other: nn.Module, paths: Sequence[str], folded: bool) -> dict[str, Any]:
    """Source → what puts it back, or ``None`` where that cannot be done; of those that the model has."""
    rounded = [path for path in paths if _rounds_input(other.get_submodule(path))]
    found: dict[str, Any] = {}
    if paths:
        found["weights"] = None if folded and rounded else lambda stack: _weights(stack, model, other, paths, folded)
    if rounded:
        found["activations"] = lambda stack: [
            stack.enter_context(_put_back(model, other, path, keep_weight=True)) for path in rounded
        ]
    if quantized_cache_of(other) is not None:
        found["KV cache"] = lambda stack: stack.enter_context(_float_cache(other))
    return found


def _rounds_input(module: nn.Module) -> bool:
    return isinstance(module, QuantizedLinear | QuantizedConvolution) and module.scheme.activation is not None


def _weights(stack: ExitStack, model: nn.Module, other: nn.Module, paths: Sequence[str], folded: bool) -> None:
    """Put back every weight; inputs stay rounded. A model whose weights were scaled becomes the float model."""
    if folded:
        for path in [name for name, _ in other.named_children()]:
            stack.enter_context(_put_back(model, other, path))
        if (settings := quantized_cache_of(other)) is not None:
            stack.enter_context(_quantized_cache(model, settings))
        return
    for path in paths:
        stack.enter_context(_put_back(model, other, path, keep_input=True))


@contextmanager
def _put_back(
    model: nn.Module, other: nn.Module, path: str, keep_input: bool = False, keep_weight: bool = False
) -> Iterator[None]:
    """Let the compressed model run on a module, or a parameter, of the float one for a while."""
    above, _, name = path.rpartition(".")
    parent = other.get_submodule(above)
    source = getattr(model.get_submodule(above), name)
    replaced = parent._modules[name]
    if isinstance(source, nn.Parameter):  # the fused weights of experts
        del parent._modules[name]
        parent._parameters[name] = source
    elif keep_weight:
        parent._modules[name] = _with_weight_of(replaced, source)
    else:
        keeps = keep_input and replaced is not None and _rounds_input(replaced)
        parent._modules[name] = _RoundedInput(replaced, source) if keeps else source
    try:
        yield
    finally:
        parent._parameters.pop(name, None)
        parent._modules[name] = replaced


class _RoundedInput(nn.Module):
    """A float layer behind the rounding of the inputs that the quantized layer in its place does."""

    def __init__(self, quantized: Any, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self._quantized = layer, (quantized,)  # in a tuple: not a part of this module

    def forward(self, x: Tensor) -> Tensor:
        quantized = self._quantized[0]
        multiplier = _multiplier(quantized)
        round_input = rounded_samples if isinstance(quantized, QuantizedConvolution) else quantized_input
        activation = quantized.prepared.settings[-1]
        rounded = round_input(x * multiplier, activation, quantized.input_scale, quantized.input_zero_point)
        output: Tensor = self.layer(rounded / multiplier)
        return output


def _with_weight_of(quantized: Any, layer: nn.Module) -> nn.Module:
    """A float layer with the rounded weight of the quantized layer in its place, whose input is not rounded."""
    found = copy.copy(layer)
    weight = quantized.stored_numbers().to(layer.get_parameter("weight").dtype)
    mine = {"weight": nn.Parameter(weight, requires_grad=False), "bias": quantized._parameters["bias"]}
    found._parameters = {**layer._parameters, **mine}
    return found


def _multiplier(quantized: Any) -> Any:
    found = getattr(quantized, "input_multiplier", None)  # convolutions have none
    return 1.0 if found is None else found


@contextmanager
def _float_cache(model: nn.Module) -> Iterator[None]:
    settings = quantized_cache_of(model)
    assert settings is not None
    use_float_cache(cached_decoder(model))
    try:
        yield
    finally:
        use_quantized_cache(model, settings)


@contextmanager
def _quantized_cache(model: nn.Module, settings: Any) -> Iterator[None]:
    use_quantized_cache(model, settings)
    try:
        yield
    finally:
        use_float_cache(cached_decoder(model))
