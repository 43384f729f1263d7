"""The results of accuracy.py as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.accuracy_cases import Row, rows, subjects
from benchmarks.accuracy_verdicts import Results


def tables(results: Results) -> str:
    """A table of rounded weights for each model, one of 8-bit activations and caches for all, and what is missing."""
    parts = [table for model in results.names for table in _of_weights(results, model)]
    return "\n\n".join([*parts, _of_eight_bits(results), _of_divergence(results), _missing(results)])


def format_tables(results: Results, found: Iterable[Row]) -> str:
    """For each model: number formats down, methods across; the ratio of perplexity to the float model's.

    Args:
        results: what ``benchmarks/number_formats.py`` has measured.
        found: its rows.
    """
    measured, parts = list(found), []
    methods = [method for method in dict.fromkeys(row.method for row in measured) if method in _FORMAT_METHODS]
    for model in results.names:
        lines = [f"**{model}**, number formats; float {results.perplexity(model, 'float'):.4f}", ""]
        lines += [_line("scheme", *methods), _rule(len(methods))]
        for scheme in dict.fromkeys(row.scheme for row in measured):
            ratios = [results.ratio(model, f"{method} {scheme}") for method in methods]
            lines.append(_line(f"`{scheme}`", *(str(ratio or "–") for ratio in ratios)))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


_FORMAT_METHODS = ("rtn minmax", "rtn", "descent", "gptq")


def _measured(results: Results, model: str) -> list[Row]:
    """The rows that were measured, in the order of the cases."""
    return [row for row in rows(subjects()[model]) if row.name in results.models[model]["rows"]]


def _of_weights(results: Results, model: str) -> Iterator[str]:
    """For each grain: methods down, bits across; perplexity, and its ratio to float."""
    measured = [row for row in _measured(results, model) if "a16-" in row.scheme]
    for grain in dict.fromkeys(row.scheme.partition("-")[2] for row in measured):
        chosen = [row for row in measured if row.scheme.endswith(f"-{grain}")]
        columns, methods = dict.fromkeys(row.scheme for row in chosen), _in_order(chosen)
        head = f"**{model}** ({subjects()[model].title}), {_GRAINS.get(grain, grain)}; float "
        lines = [f"{head}{results.perplexity(model, 'float'):.4f}", "", _line("method", *columns), _rule(len(columns))]
        lines += [_line(method, *(_cell(results, model, f"{method} {one}") for one in columns)) for method in methods]
        yield "\n".join(lines)


_GRAINS = {"g32": "groups of 32 (by channel where 32 does not divide)", "channel": "one scale a row"}


def _in_order(chosen: list[Row]) -> list[str]:
    """Methods in the order of the cases, whichever scheme they were measured with."""
    return [method for method in _methods() if any(row.method == method for row in chosen)]


def _methods() -> list[str]:
    return list(dict.fromkeys(row.method for subject in subjects().values() for row in rows(subject)))


def _of_eight_bits(results: Results) -> str:
    models = results.names
    names = dict.fromkeys(row.name for model in models for row in _measured(results, model) if "a16-" not in row.scheme)
    lines = ["**8 bits**", "", _line("method", *models), _rule(len(models))]
    return "\n".join(lines + [_line(name, *(_cell(results, model, name) for model in models)) for name in names])


def _of_divergence(results: Results) -> str:
    """Mean KL in nats of every row of rounded weights that has one: models and schemes down, methods across."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for model in results.names:
        for row in _measured(results, model):
            kl = results.kl(model, row.name)
            if kl is not None and "a16-" in row.scheme:
                found.setdefault((model, row.scheme), {})[row.method] = kl
    methods = [method for method in _methods() if any(method in row for row in found.values())]
    lines = ["**Mean KL of the float model's next token to the rounded model's, nats**", ""]
    lines += [_line("model", "scheme", *methods), _rule(len(methods) + 1)]
    for (model, scheme), row in found.items():
        lines.append(_line(model, scheme, *(f"{row[method]:.4f}" if method in row else "–" for method in methods)))
    return "\n".join(lines)


def _missing(results: Results) -> str:
    """Which rows were not measured: stages that are not there yet, models that were not found, runs cut short."""
    parts = []
    for model, subject in subjects().items():
        found = results.models.get(model, {}).get("rows", {})
        wanted: dict[str, list[str]] = {}
        for row in rows(subject):
            if row.name not in found:
                wanted.setdefault(row.method, []).append(row.scheme)
        listed = "; ".join(f"{method} ({', '.join(schemes)})" for method, schemes in wanted.items())
        parts += [f"{model}: {listed if found else 'everything'}"] if wanted else []
    return "Not measured: " + ". ".join(parts) + "." if parts else "Everything was measured."


def _cell(results: Results, model: str, row: str) -> str:
    perplexity = results.perplexity(model, row)
    return "–" if perplexity is None else f"{perplexity:.{4 if perplexity < 100 else 1}f}: {results.ratio(model, row)}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|---" * (columns + 1) + "|"
