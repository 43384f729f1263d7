"""Whether a checkpoint can be stored in another format, and what of it decides that."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from goldstick.checkpoint.kv_cache import StoredKV, attention_modules, read_kv, stored_kv
from goldstick.core.qtensor import scale_dtype
from goldstick.errors import FormatError, UsageError
from goldstick.formats import FORMATS
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.hf.checkpoint import QuantizedCheckpoint, open_quantized
from goldstick.hf.pruned import is_marked
from goldstick.jobs.export.exported import change_of_values
from goldstick.jobs.plan.choose_format import refusal_words, refusals


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """An export that can be made.

    Attributes:
        checkpoint: What is exported.
        format: What it becomes.
        scale_dtype: Dtype of scales in the loaded model, which those of GPTQ and AWQ files become in other formats.
        kv: What is stored of a quantized KV cache.
    """

    checkpoint: QuantizedCheckpoint
    format: StorageFormat
    scale_dtype: torch.dtype
    kv: StoredKV | None

    def scales_of(self, layer: StoredLayer) -> torch.dtype:
        """Dtype in which the scales of a layer are handed to the format."""
        if layer.scale_dtype is torch.float8_e8m0fnu:
            return torch.float32  # which holds every exponent
        if layer.scheme.weight.scale is not None:  # stored as codes, and computed with in the model's dtype
            return self.scale_dtype
        if not self.checkpoint.stored.format.float16_scales:
            return layer.scale_dtype or self.scale_dtype
        return torch.float16 if self.format.float16_scales else self.scale_dtype


def plan_export(directory: Path, format_name: str) -> ExportPlan:
    """Look whether a checkpoint can be stored in another format; reads headers, scales and zeros.

    Raises:
        UsageError: It is stored so already.
        FormatError: It cannot, with the layer and what would.
        SourceError: It is no quantized checkpoint of a transformers model.
    """
    checkpoint = open_quantized(directory)
    stored, target = checkpoint.stored, FORMATS[format_name]
    if stored.format.name == target.name:
        raise UsageError(f"{directory} is stored as {target.name} already; copy it.")
    if is_marked(checkpoint.config):
        raise FormatError(
            f"{directory} is of a pruned model of which no config says how wide it is; only the native format holds it."
        )
    if strange := [info for info in stored.tensors.values() if info.stored_as]:
        raise FormatError(
            f"{strange[0].name} is stored as {strange[0].stored_as}, which no other format holds without loss (and "
            f"{len(strange) - 1} more). 'goldstick quantize' takes the checkpoint as a source."
        )
    # Which scales fit is a question to the numbers, not to their dtype.
    layers = [dataclasses.replace(layer, scale_dtype=None) for layer in stored.layers]
    reasons = refusals(target, layers, checkpoint.ties)
    if reasons:
        by_chance = not all(layer.scheme.weight.symmetric for layer in layers)
        others = [other for other in FORMATS.values() if other is not stored.format]
        others = [other for other in others if not (by_chance and other.rounds_zeros)]
        held = [other.name for other in others if not refusals(other, layers, checkpoint.ties)]
        remedy = " and ".join(held) or "no other as it is: quantize its source with such layers excluded"
        raise FormatError(f"{refusal_words(target, reasons)} It can be exported to {remedy}.")
    dtype = scale_dtype(checkpoint.dtype)
    plan = ExportPlan(checkpoint=checkpoint, format=target, scale_dtype=dtype, kv=_kv(checkpoint, target, dtype))
    for layer in stored.layers:
        reason = change_of_values(stored, layer, target, plan.scales_of(layer))
        if reason:
            raise FormatError(f"{target.name} cannot hold this: {layer.site}: {reason}")
    return plan


def _kv(checkpoint: QuantizedCheckpoint, target: StorageFormat, dtype: torch.dtype) -> StoredKV | None:
    settings = read_kv(checkpoint.directory, checkpoint.config["quantization_config"])
    if settings is None:
        return None
    stored = stored_kv(settings, attention_modules(checkpoint.network.model), target, dtype)
    return dataclasses.replace(stored, tensors=checkpoint.names.to_checkpoint(stored.tensors))
