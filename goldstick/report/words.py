"""Words for what a report holds, the same on a terminal and on a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from goldstick.core.counts import counted

if TYPE_CHECKING:
    from goldstick.evaluation.compare import ComparisonRow

#: What the page calls the entries of a report's ``calibration``.
CALIBRATION_WORDS = {
    "dataset": "data",
    "samples": "samples",
    "random_samples": "further samples, of random tokens",
    "seq_len": "tokens in a sample",
    "tokens": "tokens",
    "windows_available": "samples there were to draw from",
    "distinct_tokens": "different tokens",
    "unknown_tokens": "tokens the tokenizer does not know",
    "unknown_rate": "share of unknown tokens",
    "blank_rows": "blank rows",
    "cut_rows": "rows cut",
    "batches": "batches",
    "kind": "kind of the samples",
    "arguments": "arguments of the first sample",
    "transcripts": "recordings with a transcript",
    "other_files": "other files in the folder",
    "fingerprint": "SHA-256 of the samples",
}


def format_bytes(count: int) -> str:
    """Return a size in the largest binary unit that leaves a number of at least 1: ``1.50 GiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def format_seconds(seconds: float) -> str:
    """Return a duration in units that fit it: ``4.5 s``, ``12 min 3 s``, ``2 h 5 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def format_shape(shape: Sequence[int]) -> str:
    """Return ``64×32``, or ``scalar`` for the shape of a single number."""
    return "×".join(str(length) for length in shape) or "scalar"


def rotation_words(rotation: Mapping[str, Any]) -> str:
    """What was rotated, and the error of the proof, in a sentence."""
    channels, heads, blocks = rotation["residual_channels"], len(rotation["heads"]), len(rotation["blocks"])
    parts = [f"the residual of {counted(channels, 'channel')}"] if channels else []
    parts += [f"the heads of {heads} of {counted(blocks, 'block')}"] if heads else []
    inputs = rotation.get("inputs", {})
    left = rotation.get("inputs_left", [])
    but = f" (not of {left[0]}{f' and {len(left) - 1} more' if len(left) > 1 else ''})" if left else ""
    parts += [f"the inputs of {counted(len(inputs), 'layer')} at run time{but}"] if inputs else []
    error = rotation["error_of_the_whole_model"]
    kind = "the whole model" if error is not None else "a block of each kind"
    error = rotation["error_with_a_block_of_each_kind"] if error is None else error
    untied = f"; {', '.join(rotation['untied'])} no longer tied" if rotation["untied"] else ""
    return f"rotated: {_listed(parts)}{untied}; error of {kind} in float64 {error:.1e}"


def _listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def training_words(training: Mapping[str, Any]) -> str:
    """What a training stage did, in a sentence."""
    losses, scores = training["losses"], training["scores"]
    if stopped := training.get("stopped"):
        return f"{training['stage']}: its start was kept. {stopped}"
    if not losses:
        return f"{training['stage']}: trained by the caller's own function"
    text = f"{training['stage']}: {counted(training['steps'], 'step')}, loss {losses[0]:.4g} in the first epoch, "
    text += f"{losses[-1]:.4g} in the last of {len(losses)}"
    if "held_out" in training:
        text += _held_out_words(training)
    elif scores:
        text += f"; epoch {training['kept_epoch']} kept, which validated at {max(scores):.4g}"
    return text


def _held_out_words(training: Mapping[str, Any]) -> str:
    """Which epoch of a distillation was kept, and what it gave on batches it has not learned from."""
    before, after = training["held_out"]
    if not training["kept_epoch"]:
        return f"; its start was kept, whose divergence held out, {before:.4g}, no epoch made smaller"
    return f"; epoch {training['kept_epoch']} kept, divergence held out {before:.4g} → {after:.4g}"


def speed_words(speed: Mapping[str, Any]) -> str:
    """How fast both models write, in a sentence."""
    before, after, threads = speed["before"], speed["after"], speed["threads"]
    return (
        f"{before:.3g} → {after:.3g} tokens a second ({after / before:.2f} ×), one text, {threads} "
        f"thread{'' if threads == 1 else 's'}, measured here once"
    )


def pruning_words(pruning: Mapping[str, Any]) -> str:
    """What a stage cut out of the network, in a sentence."""
    pairs = (pruning["parameters"], pruning["macs"])
    parameters, macs = (f"{before:,} → {after:,} ({after / before:.0%})" for before, after in pairs)
    slow, fast = pruning["seconds"]
    text = f"{pruning['stage']}: parameters {parameters}, multiplications {macs}; a forward of {pruning['samples']} "
    text += f"samples {1000 * slow:.3g} → {1000 * fast:.3g} ms"
    if pruning["refused"]:
        text += f"; {counted(len(pruning['refused']), 'layer')} kept all channels"
    return text


def proof_words(proof: Mapping[str, Any]) -> str:
    """What a proof found, in a sentence."""
    if proof["method"] == "outputs":
        return (
            "read back in a fresh process; largest difference of outputs "
            f"{proof['max_abs_difference']:.3g} (outputs reach {proof['largest_output']:.3g})"
        ) + (": the network makes much of last bits; every stored tensor is as written" if "stored" in proof else "")
    if proof["method"] == "stored":
        return (
            f"read back in a fresh process, with the hashes of those in memory: {counted(proof['tensors'], 'tensor')}"
        )
    if proof["method"] == "files":
        readable = counted(proof["tensors_quantized"], "quantized tensor")
        return (
            f"outputs are not proven ({proof['not_run']}); in a fresh process, what was written was read back from "
            f"{counted(proof['files'], 'file')}, and {readable} can be read"
        )
    return (
        f"read back in a fresh process, as they should be: {counted(proof['tensors_quantized'], 'quantized tensor')}, "
        f"{proof['tensors_copied']:,} copied"
    )


def verdict(row: ComparisonRow) -> str:
    """What a metric's change means, in words with an interval; never a bare number.

    A loss or a gain is named only where the items show one (see `ComparisonRow.shown`), with the half-width of its
    95 % interval. Else the words say which loss can be ruled out: the end of that interval. Perplexity and bits per
    byte count in percent of what they were, all scores in points.
    """
    from goldstick.evaluation.threshold import loss_of

    found = loss_of(row)
    if found is None:
        return f"not compared: {row.note or 'no difference'}"
    loss, interval, unit = found.value, found.interval, found.unit
    if interval is None:
        change = "equal" if loss == 0 else f"{'loses' if loss > 0 else 'gains'} {abs(loss):.2g} {unit}"
        return f"{change} by the figure alone, without an interval to judge by"
    low, high = interval
    if row.shown:
        return f"{'loses' if loss > 0 else 'gains'} {_with_margin(abs(loss), max(high - loss, loss - low))} {unit}"
    ruled_out = f"no loss larger than {_rounded_up(high)} {unit} at 95 %"
    if row.paired is not None and row.paired.changed == 0:
        return f"equal on each of {counted(row.paired.items, 'item')}" + (f"; {ruled_out}" if high > 0 else "")
    return ruled_out


def _with_margin(value: float, margin: float) -> str:
    """``1.2 ± 0.5``: the margin rounded up to two digits, the value to as many places."""
    if not 0 < margin < math.inf:
        return f"{value:.3g} ± {margin:.2g}"
    places = max(0, 1 - math.floor(math.log10(margin)))
    return f"{value:.{places}f} ± {math.ceil(margin * 10**places) / 10**places:.{places}f}"


def _rounded_up(bound: float) -> str:
    """A bound in two digits, never below itself; nothing below 0."""
    if not 0 < bound < math.inf:
        return "0" if bound <= 0 else f"{bound}"
    scale = 10.0 ** (1 - math.floor(math.log10(bound)))
    return f"{math.ceil(bound * scale * (1 - 1e-12)) / scale:.3g}"
