"""Words for what a report holds, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goldstick.evaluation.compare import ComparisonRow


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
    parts = [f"the residual of {channels} channels"] if channels else []
    parts += [f"the heads of {heads} of {blocks} blocks"] if heads else []
    error = rotation["error_of_the_whole_model"]
    kind = "the whole model" if error is not None else "a block of each kind"
    error = rotation["error_with_a_block_of_each_kind"] if error is None else error
    untied = f"; {', '.join(rotation['untied'])} no longer tied" if rotation["untied"] else ""
    return f"rotated: {' and '.join(parts)}{untied}; error of {kind} in float64 {error:.1e}"


def proof_words(proof: Mapping[str, Any]) -> str:
    """What a proof found, in a sentence."""
    if proof["method"] == "outputs":
        return (
            "read back in a fresh process; largest difference of outputs "
            f"{proof['max_abs_difference']:.3g} (outputs reach {proof['largest_output']:.3g})"
        )
    if proof["method"] == "stored":
        return f"read back in a fresh process; {proof['tensors']} tensors have the hashes of those in memory"
    return (
        f"read back in a fresh process; {proof['tensors_quantized']} quantized and {proof['tensors_copied']} copied "
        "tensors as they should be"
    )


def verdict(row: ComparisonRow) -> str:
    """What a metric's change means: nothing is called better or worse that chance alone would explain.

    The 95 % interval is that of the difference over the same items; one that holds 0 shows no difference.
    """
    if row.note is not None or row.difference is None:
        return f"not compared: {row.note or 'no difference'}"
    if row.difference == 0:
        return "equal"
    direction = "worse" if row.worse else "better"
    if row.interval is None:
        return f"{direction} by the figure alone, without an interval to judge by"
    if row.interval[0] <= 0 <= row.interval[1]:
        return "no difference that these items show"
    return f"{direction}, beyond what chance explains"
