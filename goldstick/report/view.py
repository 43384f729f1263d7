"""A report as what a page shows: words, tables and drawings, each made from the report alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from goldstick.report.accuracy_view import accuracy_view, categories_of, headline_of
from goldstick.report.examples_view import examples_view
from goldstick.report.grouping import LayerGroup, group_layers
from goldstick.report.heat_map import heat_map
from goldstick.report.pruning_view import pruning_view
from goldstick.report.report import LayerRecord, Report
from goldstick.report.search_words import search_pairs, searched_rows
from goldstick.report.sensitivity import Sensitivity
from goldstick.report.svg import Mark, bars, marks
from goldstick.report.words import (
    CALIBRATION_WORDS,
    format_bytes,
    format_seconds,
    format_shape,
    proof_words,
    pruning_words,
    rotation_words,
    speed_words,
    training_words,
)

#: Rows of the table of channels.
_WORST_CHANNELS = 10
_LAYER_NOTES = {
    "tokens": "tokens (fewest)",
    "effective_rank": "effective rank (largest)",
    "tokens_needed": "tokens needed (most)",
    "dropped_tokens": "not finite",
    "dead_inputs": "inputs always 0",
    "damping": "damping (largest)",
}


def report_view(report: Report) -> dict[str, Any]:
    """What the template of a compression's page is given, in plain data and drawings."""
    found = report.evaluation
    accuracy = accuracy_view(found.get("after", {}), found.get("before"), found.get("divergence"))
    return {
        "title": f"{report.model}: compressed with goldstick",
        "figures": _figures(report, accuracy),
        "headline": _headline(report) + (headline_of(accuracy) if accuracy else []) + _speed(found) + _costs(report),
        "warnings": report.warnings,
        "accuracy": accuracy,
        "categories": categories_of(found.get("after", {}), found.get("before", {})) if accuracy else [],
        "examples": examples_view(found.get("examples", ())),
        "weight_errors": _weight_errors(report.layers),
        "worst_channels": _worst_channels(report.layers),
        "sensitivity": heat_map(Sensitivity.from_dict(report.sensitivity)) if report.sensitivity else None,
        "search": search_pairs(report.search) if report.search else None,
        "searched": searched_rows(report.search),
        "output_errors": _output_errors(report.layers),
        "pruning": [pruning_view(pruning) for pruning in report.pruning],
        "sizes": _sizes(report.layers),
        "ignored": _ignored(report.layers),
        "fallbacks": _fallbacks(report.layers),
        "calibration": [(CALIBRATION_WORDS.get(key, key), _plain(value)) for key, value in report.calibration.items()],
        "layer_notes": _layer_notes(report.layers),
        "recipe": yaml.safe_dump(_plain_data(report.recipe), sort_keys=False, allow_unicode=True),
        "timing": [(stage.replace("_", " "), format_seconds(seconds)) for stage, seconds in report.timing.items()],
        "environment": list(report.environment.items()),
        "version": report.goldstick_version,
    }


def _headline(report: Report) -> list[tuple[str, str]]:
    size = report.size
    share = f" ({100.0 * size.bytes_after / size.bytes_before:.1f} %)" if size.bytes_before else ""
    stages = [name for stage in report.recipe.get("stages", ()) for name in stage]
    lines = [
        ("Made from", report.model),
        ("Recipe", ": ".join(filter(None, (" → ".join(stages), report.recipe.get("description"))))),
        ("Size", f"{format_bytes(size.bytes_before)} → {format_bytes(size.bytes_after)}{share}"),
    ]
    if size.bits_per_weight is not None:
        lines.append(("Bits per quantized weight", f"{size.bits_per_weight:.2f}, scales and zeros counted"))
    lines.append(("Stored as", report.format))
    if report.rotation:
        lines.append(("Rotation", rotation_words(report.rotation)))
    if report.kv_cache:
        lines.append(("KV cache", str(report.kv_cache["scheme"])))
    lines += [("Pruning", pruning_words(pruning)) for pruning in report.pruning]
    lines += [("Training", training_words(training)) for training in report.training]
    if report.proof:
        lines.append(("Proof", _proof(report.proof)))
    return lines


def _figures(report: Report, accuracy: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """What the page says first: a figure, words for it, and whether it is good or bad."""
    size, speed = report.size, report.evaluation.get("speed")
    figures = [(format_bytes(size.bytes_after), f"of {format_bytes(size.bytes_before)}", "")]
    if size.bits_per_weight is not None:
        figures.append((f"{size.bits_per_weight:.2f}", "bits per quantized weight", ""))
    if accuracy:
        figures += accuracy["figures"]
    if speed:
        figures.append((f"{speed['after'] / speed['before']:.2f} ×", "the speed of writing", ""))
    if report.peak_memory is not None:
        figures.append((format_bytes(report.peak_memory), "of memory at most, to make it", ""))
    return figures


def _speed(evaluation: Mapping[str, Any]) -> list[tuple[str, str]]:
    speed = evaluation.get("speed")
    return [("Speed", speed_words(speed))] if speed else []


def _costs(report: Report) -> list[tuple[str, str]]:
    lines = []
    if report.peak_memory is not None:
        lines.append(
            ("Peak memory", f"{format_bytes(report.peak_memory)}, of the process until the checkpoint was written")
        )
    if report.timing:
        lines.append(("Time", format_seconds(math.fsum(report.timing.values()))))
    return lines


def _proof(proof: Mapping[str, Any]) -> str:
    if "method" in proof:
        return proof_words(proof)
    return ", ".join(f"{key}: {_plain(value)}" for key, value in proof.items())


def _weight_errors(layers: Sequence[LayerRecord]) -> dict[str, Any] | None:
    """SQNR of each layer's weight, on a scale that holds them all."""
    groups = [group for group in group_layers(layers) if group.sqnr_range is not None]
    values = [value for group in groups for value in group.sqnr_range or () if math.isfinite(value)]
    if not groups:
        return None
    low, high = (math.floor(min(values) - 1), math.ceil(max(values) + 1)) if values else (0, 1)
    rows = []
    for group in groups:
        known = [record for record in group.records if record.weight_sqnr_db is not None]
        found = [Mark(label=f"{r.name}: {r.weight_sqnr_db:.1f} dB", value=r.weight_sqnr_db or 0.0) for r in known]
        words = _range([mark.value for mark in found], ".1f")
        error = group.max_abs_error
        rows.append(
            {
                "name": group.name,
                "count": len(group.records),
                "became": group.records[0].scheme or "",
                "values": words,
                "largest": "" if error is None else f"{error:.3g}",
                "drawing": marks(found, low, high, f"{group.name}: {words} dB in the order of the layers"),
            }
        )
    return {"low": low, "high": high, "rows": rows}


def _worst_channels(layers: Sequence[LayerRecord]) -> list[dict[str, str]]:
    """The output channels of the largest relative error, of all layers."""
    found = [(decibels, channel, record) for record in layers for channel, decibels in record.worst_channels]
    return [
        {
            "name": record.name,
            "channel": channel,
            "sqnr": f"{decibels:.1f}",
            "layer": "" if record.weight_sqnr_db is None else f"{record.weight_sqnr_db:.1f}",
        }
        for decibels, channel, record in sorted(found, key=lambda one: one[0])[:_WORST_CHANNELS]
    ]


def _output_errors(layers: Sequence[LayerRecord]) -> dict[str, Any] | None:
    """Output errors of calibrated layers in percent of that of rounding to nearest."""
    rows = []
    shares = {record.name: share for record in layers if (share := _share(record)) is not None}
    largest = max([110.0, *(share for share in shares.values() if math.isfinite(share))])
    for group in group_layers(layers):
        found = [(record, shares[record.name]) for record in group.records if record.name in shares]
        if not found:
            continue
        words = _range([share for _, share in found], ".0f")
        drawn = [Mark(label=f"{record.name}: {share:.1f} %", value=share) for record, share in found]
        drawing = marks(drawn, 0.0, largest, f"{group.name}: {words} % of rounding's error", line=100.0)
        rows.append({"name": group.name, "count": len(found), "values": words, "drawing": drawing})
    return {"high": f"{largest:.0f}", "rows": rows} if rows else None


def _share(record: LayerRecord) -> float | None:
    """The output error of a layer in percent of rounding's; None where either is unknown or rounding has none."""
    own, rounding = record.notes.get("output_error"), record.notes.get("rtn_output_error")
    if not isinstance(own, int | float) or not isinstance(rounding, int | float) or not rounding > 0:
        return None
    return 100.0 * own / rounding


def _sizes(layers: Sequence[LayerRecord]) -> list[dict[str, Any]]:
    groups = [group for group in group_layers(layers) if group.bytes_before or group.bytes_after]
    largest = max((max(group.bytes_before, group.bytes_after) for group in groups), default=0)
    return [_size_row(group, largest) for group in groups]


def _size_row(group: LayerGroup, largest: int) -> dict[str, Any]:
    first = group.records[0]
    before, after = format_bytes(group.bytes_before), format_bytes(group.bytes_after)
    bits = f"{8 * first.bytes_after / first.elements:.2f}" if first.elements and first.bytes_after else ""
    return {
        "name": group.name,
        "count": len(group.records),
        "shape": format_shape(first.shape),
        "dtype": first.dtype,
        "became": " ".join(word for word in (first.scheme, first.algorithm and f"({first.algorithm})") if word),
        "note": (first.reason or "") if first.scheme else "",
        "before": before,
        "after": after,
        "bits": bits,
        "drawing": bars(group.bytes_before, group.bytes_after, largest, f"{before} before, {after} after"),
    }


def _ignored(layers: Sequence[LayerRecord]) -> list[dict[str, Any]]:
    found = []
    for group in group_layers(layers):
        first = group.records[0]
        if first.scheme is None:
            reason = first.reason or f"changed by {first.algorithm} only"
            size = format_bytes(group.bytes_after)
            found.append({"name": group.name, "count": len(group.records), "reason": reason, "size": size})
    return found


def _fallbacks(layers: Sequence[LayerRecord]) -> list[dict[str, Any]]:
    """Everything an algorithm did in another way than it was asked to, layer by layer."""
    kinds = {
        "fallback": "rounded to nearest",
        "symmetric": "solved without the float model's inputs",
        "unbalanced": "not smoothed",
        "multiplied": "multiplies its input itself",
    }
    return [
        {"name": record.name, "algorithm": record.algorithm or "", "what": what, "reason": str(record.notes[kind])}
        for record in layers
        for kind, what in kinds.items()
        if kind in record.notes
    ]


def _layer_notes(layers: Sequence[LayerRecord]) -> dict[str, Any] | None:
    """What calibration saw in each group of layers: the fewest tokens, the most of everything else."""
    groups = [group for group in group_layers(layers) if any("tokens" in record.notes for record in group.records)]
    if not groups:
        return None
    rows = []
    for group in groups:
        cells = []
        for note in _LAYER_NOTES:
            values = list(_numbers(group, note))
            pick = min if note == "tokens" else max
            cells.append(f"{pick(values):,.6g}" if values else "")
        short = any(_numbers(group, "short_of_tokens"))
        rows.append({"name": group.name, "count": len(group.records), "cells": cells, "short": short})
    ranked = any("effective_rank" in record.notes for record in layers)
    return {"columns": list(_LAYER_NOTES.values()), "rows": rows, "ranked": ranked}


def _numbers(group: LayerGroup, note: str) -> Iterator[float]:
    for record in group.records:
        value = record.notes.get(note)
        if isinstance(value, int | float):
            yield value


def _range(values: Sequence[float], form: str) -> str:
    """``17.3 … 18.9``, or one number where both ends read the same."""
    return " … ".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _plain_data(value: Any) -> Any:
    """Mappings and tuples as the dictionaries and lists that YAML knows."""
    if isinstance(value, Mapping):
        return {key: _plain_data(item) for key, item in value.items()}
    return [_plain_data(item) for item in value] if isinstance(value, list | tuple) else value
