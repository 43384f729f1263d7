"""Reports on a terminal: rich tables there, plain aligned lines where the output is a file or a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from goldstick.report.grouping import LayerGroup, group_layers
from goldstick.report.report import LayerRecord, Report, SizeSummary
from goldstick.report.words import format_bytes, pruning_words, rotation_words, training_words, verdict

if TYPE_CHECKING:
    from goldstick.evaluation.compare import ComparisonRow


def print_report(console: Console, report: Report, rows: Sequence[ComparisonRow] = (), verbose: bool = False) -> None:
    """Print the layers, the sizes, the evaluation where ``rows`` holds one, and the warnings."""
    print_layers(console, report.layers, verbose)
    print_size(console, report.size)
    if report.rotation:
        _line(console, rotation_words(report.rotation))
    if report.kv_cache:
        _line(console, f"KV cache: {report.kv_cache['scheme']}")
    for pruning in report.pruning:
        _line(console, pruning_words(pruning))
    for training in report.training:
        _line(console, training_words(training))
    if rows:
        print_comparison(console, rows)
    for warning in report.warnings:
        _line(console, f"warning: {warning}", "yellow")


def print_layers(console: Console, layers: Sequence[LayerRecord], verbose: bool = False) -> None:
    """Print a line per parameter, the equal ones of repeated blocks in one line with their number."""
    columns = ("parameter", "<count", "shape", "dtype", "became", "<size", "<bits", "<SQNR dB", "<max error")
    print_table(console, "Layers", columns, [_layer_cells(group) for group in group_layers(layers, verbose)])


def print_size(console: Console, size: SizeSummary) -> None:
    """Print the size before and after, their ratio and the bits per quantized weight."""
    text = f"size: {format_bytes(size.bytes_before)} -> {format_bytes(size.bytes_after)}"
    if size.bytes_before > 0:
        text += f" ({100.0 * size.bytes_after / size.bytes_before:.1f} %)"
    if size.bits_per_weight is not None:
        text += f", {size.bits_per_weight:.2f} bits per quantized weight"
    _line(console, text, "bold")


def print_comparison(console: Console, rows: Sequence[ComparisonRow]) -> None:
    """Print each metric before and after, the difference with its interval, and what it means in words."""
    columns = ("task", "metric", "<before", "<after", "<difference", "<relative", "<95 % interval", "verdict")
    print_table(console, "Evaluation", columns, [_comparison_cells(row) for row in rows])


def print_evaluation(console: Console, evaluation: Mapping[str, Any]) -> None:
    """Print one evaluation (what ``Evaluation.to_dict`` returns): each metric with its 95 % interval."""
    cells = []
    for name, result in evaluation["tasks"].items():
        intervals = result.get("details", {}).get("interval_95", {})
        for metric, value in result["metrics"].items():
            interval = _interval(intervals.get(metric), signed=False)
            cells.append([name, metric, f"{value:.4g}", interval, str(result["n"]), result["protocol"]])
    print_table(console, "Evaluation", ("task", "metric", "<value", "<95 % interval", "<n", "protocol"), cells)


def _layer_cells(group: LayerGroup) -> list[str]:
    first = group.records[0]
    if first.reason is not None and first.scheme is None:
        became = f"left alone: {first.reason}"
    else:
        became = " ".join(word for word in (first.scheme, first.algorithm and f"({first.algorithm})") if word)
        became += f", {first.reason}" if first.reason else ""
        fallbacks = [record.notes["fallback"] for record in group.records if "fallback" in record.notes]
        became += f", {len(fallbacks)} fell back to rtn: {fallbacks[0]}" if fallbacks else ""
    size = f"{format_bytes(group.bytes_before)} -> {format_bytes(group.bytes_after)}"
    decibels = " … ".join(dict.fromkeys(f"{value:.1f}" for value in group.sqnr_range or ()))
    error = "" if group.max_abs_error is None else f"{group.max_abs_error:.3g}"
    shape = "x".join(str(length) for length in first.shape)
    bits = f"{8 * first.bytes_after / first.elements:.2f}" if first.elements and first.bytes_after else ""
    return [group.name, str(len(group.records)), shape, first.dtype, became, size, bits, decibels, error]


def _comparison_cells(row: ComparisonRow) -> list[str]:
    return [
        row.task,
        row.metric,
        "" if row.before is None else f"{row.before:.4g}",
        "" if row.after is None else f"{row.after:.4g}",
        "" if row.difference is None else f"{row.difference:+.3g}",
        "" if row.relative is None else f"{100.0 * row.relative:+.2f} %",
        _interval(row.interval, signed=True),
        verdict(row),
    ]


def _interval(interval: Sequence[float] | None, signed: bool) -> str:
    if interval is None:
        return ""
    form = "+.3g" if signed else ".4g"
    return f"{interval[0]:{form}} … {interval[1]:{form}}"


def print_table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print ``rows`` under ``columns``; a column whose name begins with ``<`` is kept to the right."""
    right = [column.startswith("<") for column in columns]
    names = [column.removeprefix("<") for column in columns]
    if console.is_terminal:
        table = Table(title=title, title_justify="left", title_style="bold")
        for name, number in zip(names, right, strict=True):
            table.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
        return
    widths = [max(len(line[k]) for line in (names, *rows)) for k in range(len(names))]
    _line(console, title)
    for cells in (names, *rows):
        pairs = zip(cells, widths, right, strict=True)
        line = "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in pairs)
        _line(console, line.rstrip())


def _line(console: Console, text: str, style: str | None = None) -> None:
    """Print one line as it is: no markup, no highlighting, never broken."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
