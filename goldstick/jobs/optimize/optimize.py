"""Optimize: a loaded model rearranged to run faster, each change proven before it stays."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.core.torch_modes import as_written
from goldstick.errors import UsageError
from goldstick.hf.cache import quantized_cache_of
from goldstick.hf.example_inputs import inputs_for
from goldstick.jobs.optimize.faster_blocks import (
    MODEL_TOLERANCE,
    attentions,
    blocks,
    chain,
    close,
    feed_forwards,
    in_float32,
    norms,
)
from goldstick.jobs.optimize.faster_convolutions import bounded, folded, handed, taken_before
from goldstick.jobs.optimize.faster_layers import interleaved, share_inputs
from goldstick.jobs.optimize.optimization import Change, Optimization, Step, nothing
from goldstick.jobs.proof.observation import first_output
from goldstick.nn import PackedWeight, QuantizedLinear
from goldstick.structure.trace import evaluating
from goldstick.structure.wrong_inputs import wrong_inputs


@as_written()
def optimize(model: nn.Module, inputs: Mapping[str, Any] | None = None, *, interleave: bool = True) -> Optimization:
    """Rearrange a loaded model so that it runs faster, in place; what it computes stays.

    - Quantized linear layers that are given the same tensor (query, key and value; gate and up) run as one
      multiplication of their stacked weights. Which ones, a traced forward pass shows. To the bit.
    - With AVX2, quantized linear layers read a copy of their weight, rows side by side. To the bit. The copies take as
      much memory as the codes, and twice that of 16-bit scales.
    - On the CPU, quantized convolutions take over batch norms that alone read them, and ReLU, ReLU6 and Hardtanh after
      that: scales and bounds of what they write anyway. Activations to the bit. Where another quantized convolution,
      with a static input, alone reads what they give, they write the codes that it reads. To the bit.
    - On the CPU, root-mean-square norms, silu(gate) · up, and rotation, cache and attention of single tokens run as one
      C++ operation each; sums are taken in another order. A block of these runs as a whole for a single token.

    No family of models is known here: a faster forward is tried beside a module's own, on random inputs. Then the whole
    model runs before and after, a few tokens onto its own cache included. A change that fails is undone, and its reason
    reported. The modules stay what and where they are, so state dicts are the same. What an earlier call changed stays,
    and is not reported again.

    Args:
        model: A model on packed weights, as :func:`goldstick.load` gives it.
        inputs: Keyword arguments for its forward; random token ids (or images) for a transformers model where ``None``.
        interleave: Whether to copy weights.

    Returns:
        Every change, those that could not be made with the reason.

    Raises:
        UsageError: The model is no transformers model, and no inputs are given; or it does not run on those given; or
            tensors of it are not in memory.
    """
    if not any(isinstance(module, PackedWeight) for module in model.modules()):
        return Optimization(changes=())
    _require_tensors_in_memory(model)
    found = inputs if inputs is not None else inputs_for(model)
    if found is None:
        raise UsageError(
            f"Nothing says what the forward of a {type(model).__name__} takes: give optimize(model, inputs={{…}}), "
            "keyword arguments for it."
        )
    if inputs is None:  # a few numbers tell as much as many
        found = {name: value[:2, :8] if value.ndim == 2 else value for name, value in found.items()}
    with evaluating(model), torch.inference_mode(False), torch.no_grad():
        with nullcontext() if inputs is None else wrong_inputs(partial(_refused, model, list(found))):
            trial = _Trial(model, found)
        changes = trial.keep(share_inputs(model, found), same_bits=True)
        groups = {_parent(change.modules): change.modules for change in changes if change.reason is None}
        changes += trial.keep(interleaved(model) if interleave else [], same_bits=True)
        taken = taken_before(model)
        normed = trial.keep(folded(model, found))
        kept = trial.keep(bounded(model, found, [*taken, *normed]), same_bits=True)
        changes += normed + kept
        changes += trial.keep(handed(model, found, [*taken, *normed, *kept]), same_bits=True)
        steps = _faster(model, "one norm", norms(model))
        steps += _faster(model, "one gated activation", feed_forwards(model, groups))
        steps += _faster(model, "one token's attention", attentions(model, groups, trial.decode))
        changes += trial.keep(steps)
        steps = _faster(model, "one block of one token", blocks(model, trial.decode))
        chain(model)
        changes += trial.keep(steps)
    return Optimization(changes=tuple(changes))


def _require_tensors_in_memory(model: nn.Module) -> None:
    absent = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if absent:
        raise UsageError(
            f"{len(absent)} tensors of this {type(model).__name__}, {absent[0]} the first, are on the device meta: "
            "what loads each for one call, as accelerate's device_map and offloading do, leaves nothing in memory to "
            "rearrange. Load the model without that, or use it as it is."
        )


class _Trial:
    """The model as it was, to compare with: its outputs, and what it gives when tokens are added to its cache.

    Changes that keep all bits are compared with the model behind the changes before them.
    """

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        self.model, self.inputs = model, inputs
        layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
        exact = in_float32(*layers) and all(p.dtype == torch.float32 for p in model.parameters())
        exact = exact and quantized_cache_of(model) is None
        self.tolerance = MODEL_TOLERANCE[exact]
        self.before = self.last = self.decode()

    def decode(self) -> list[Tensor]:
        """Outputs on the inputs, and on three tokens more for each sequence, if the model has a cache."""
        output = self.model(**self.inputs)
        found = [first_output(output)]
        cache, ids = getattr(output, "past_key_values", None), self.inputs.get("input_ids")
        if cache is None or ids is None or "decoder_input_ids" in self.inputs:
            return found
        for place in range(3):
            output = self.model(input_ids=ids[:, place : place + 1], past_key_values=cache)
            found.append(first_output(output))
            cache = output.past_key_values
        return found

    def keep(self, steps: list[Step], *, same_bits: bool = False) -> list[Change]:
        """Keep changes if the model still gives the same, else undo them all."""
        made = [step for step in steps if step[0].reason is None]
        if not made:
            return [change for change, _ in steps]
        after = self.decode()
        pairs = zip(self.last if same_bits else self.before, after, strict=True)
        if all(torch.equal(*pair) if same_bits else close(*pair, self.tolerance) for pair in pairs):
            self.last = after
            return [change for change, _ in steps]
        for _, undo in reversed(made):
            undo()
        reason = "the model's outputs were no longer the same"
        return [replace(change, reason=change.reason or reason) for change, _ in steps]


def _refused(model: nn.Module, names: list[str], reason: str) -> UsageError:
    return UsageError(
        f"{type(model).__name__} does not run on the inputs ({', '.join(names)}): {reason}. "
        "Give optimize(model, inputs={…}), keyword arguments of its forward."
    )


def optimize_and_log(model: nn.Module) -> None:
    """Rearrange a model, and tell the logger ``goldstick`` what was changed and what was not."""
    found, logger = optimize(model), logging.getLogger("goldstick")
    for change in found.left:
        logger.warning("%s", change)
    logger.info("%s", found)


def _parent(modules: tuple[str, ...]) -> str:
    return modules[0].rpartition(".")[0]


def _faster(model: nn.Module, what: str, found: Iterable[tuple[str, surgery.Forward | str]]) -> list[Step]:
    """Give modules faster forwards; all are tried before the first gets one."""
    steps: list[Step] = []
    for path, new in list(found):
        if isinstance(new, str):
            steps.append((Change(what=what, modules=(path,), reason=new), nothing))
        else:
            undo = surgery.run_through(model.get_submodule(path), new)
            steps.append((Change(what=what, modules=(path,)), undo))
    return steps
