"""The tables of docs/consumers.md: what programs answered on checkpoints of goldstick's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from tools.consumers import BUNDLED
from tools.consumers.cells import READERS as CELL_READERS
from tools.consumers.cells import cells
from tools.docs.results import read, table

#: From which load on others used the machine.
BUSY = 1.5
ENCODED = {"sentence-transformers": "sentence-transformers"}
READERS = {"vllm": "vLLM", "transformers": "transformers", "gptqmodel": "GPTQModel", "llama.cpp": "llama.cpp"}


def _cells() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read("consumers")["cells"]
    return {name: cell for name, cell in found.items() if cell.get("readers")}


def _shown(told: Mapping[str, Any] | None) -> str:
    """A distance, in bold where it is more than the program's precision; why it does not load, in a word."""
    if told is None:
        return ""
    if not told["loads"]:
        return "–"
    if told["mean"] is None:
        return "**not finite**"
    return f"{told['mean']:.4f}" if told["agrees"] else f"**{told['mean']:.4f}**"


def bundled() -> str:
    """A row for each scheme and format of the bundled model."""
    rows = [
        [f"`{cell['format']}`", f"`{cell['scheme']}`", *(_shown(cell["readers"].get(reader)) for reader in READERS)]
        for cell in _cells().values()
        if cell["model"] == BUNDLED
    ]
    return table(["format", "scheme", *READERS.values()], rows)


def architectures() -> str:
    """A row for each program and architecture, and a column for each format and scheme."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for cell in _cells().values():
        if cell["model"] == BUNDLED:
            continue
        title = "float" if cell["format"] == "float" else f"`{cell['format']}` `{cell['scheme']}`"
        columns[title] = None
        for reader, told in cell["readers"].items():
            rows.setdefault((reader, cell["model"]), {})[title] = _shown(told)
    ordered = sorted(columns, key=lambda title: (title != "float", title))
    by_program = sorted(rows.items(), key=lambda one: (list(READERS).index(one[0][0]), one[0][1]))
    body = [[READERS[who], f"`{model}`", *(row.get(one, "") for one in ordered)] for (who, model), row in by_program]
    return table(["program", "architecture", *ordered], body)


def refusals() -> str:
    """What did not load, with the program's own words, alike ones together."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, cell in _cells().items():
        for reader, told in cell["readers"].items():
            if not told["loads"]:
                found.setdefault((READERS[reader], _words(told["error"])), []).append(f"`{name}`")
    return table(
        ["program", "what it said", "of"], [[who, what, ", ".join(names)] for (who, what), names in found.items()]
    )


def _words(error: str) -> str:
    """The first sentence of an error, without what would break a table."""
    plain = re.sub(r"[|`<>\n]", " ", error.partition(": ")[2] or error)
    first = re.split(r"(?<=[a-z\])])\. |Reasons", plain)[0]
    return " ".join(first.split())[:160]


def instructions() -> str:
    """W8A8 in vLLM by the instructions that oneDNN may use."""
    found = read("consumers")["vllm_w8a8_by_instructions"]
    rows = [
        [f"`{isa}`", f"{one['w8a8']['mean']:.4f}", f"{one['float']['mean']:.4f}"] for isa, one in sorted(found.items())
    ]
    return table(["ONEDNN_MAX_CPU_ISA", "W8A8", "the float model"], rows)


def _verdicts() -> Iterator[bool]:
    """Of each answer: whether doctor had said so."""
    for told in _all_told():
        if "runs" in told.get("doctor", {}):
            numbers = told["loads"] and not told.get("not_finite")  # NaN is no answer
            yield told["doctor"]["runs"] == numbers


def _all_told() -> Iterator[dict[str, Any]]:
    """Every answer of a program that a rule of doctor's is of."""
    for cell in _cells().values():
        yield from cell["readers"].values()
    yield from (told for told in _encoders().values() if "loads" in told)


def graphs() -> str:
    """A row for each file of ONNX: the squared error of each runtime's outputs, and milliseconds."""
    result = read("consumers")
    runtimes = list(result["graph_versions"])
    head = ["network", "scheme", *(f"{name} {result['graph_versions'][name]}" for name in runtimes)]
    rows = []
    for name, answers in result["graphs"].items():
        network, _, scheme = name.partition("/")
        told = [answers[runtime] for runtime in runtimes]
        cells = [
            f"{one['squared_error_share']:.0e}; {one['milliseconds']:.2f} ms" if one["loads"] else "–" for one in told
        ]
        rows.append([f"`{network}`", f"`{scheme}`", *cells])
    return table(head, rows)


def counts() -> str:
    """How many answers there are, how many agree, and how many doctor had right; who read them."""
    result = read("consumers")
    told = list(_all_told())
    loaded = [one for one in told if one["loads"]]
    agree = [one for one in loaded if one["agrees"]]
    versions = "; ".join(
        f"{(READERS | ENCODED)[reader]}: " + ", ".join(f"{name} {number}" for name, number in packages.items())
        for reader, packages in result["versions"].items()
    )
    right = list(_verdicts())
    left = [
        f"{cell.model}: `{cell.format}` in {READERS[reader]}"
        for cell in cells()
        for reader in CELL_READERS[cell.format]
        if not _asked(result["cells"].get(cell.name, {}), reader)
    ]
    partial = (
        f"**This is a part: {len(left)} answers are missing,** of {', '.join(dict.fromkeys(left))}.\n\n" if left else ""
    )
    return partial + (
        f"{len(told)} answers: {len(loaded)} load, {len(agree)} of them within the program's precision. "
        f"`goldstick doctor --for` says {sum(right)} of {len(right)} right.\n\n"
        f"Machine: {result['machine']}. {versions}."
    )


def _asked(cell: Mapping[str, Any], reader: str) -> bool:
    """Whether a program was asked, or there is a reason that it was not."""
    return "refused" in cell or reader in cell.get("readers", {})


def summary() -> str:
    """A row for each program and format."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in _cells().values():
        for reader in READERS:
            if reader in cell["readers"]:
                of = "float" if cell["format"] == "float" else f"`{cell['format']}`"
                groups.setdefault((READERS[reader], of), []).append(cell["readers"][reader] | cell)
    for name, told in _encoders().items():
        if "loads" in told:
            model, _, scheme = name.partition("/")
            of = "float" if scheme == "float" else "`compressed-tensors`"
            groups.setdefault((ENCODED["sentence-transformers"], of), []).append(
                told | {"model": model, "scheme": scheme}
            )
    order = [*READERS.values(), *ENCODED.values()]
    rows = []
    for (who, of), told in sorted(groups.items(), key=lambda one: (order.index(one[0][0]), one[0][1] != "float")):
        loaded = [one for one in told if one["loads"]]
        counted = [len({one[part] for one in told}) for part in ("model", "scheme")]
        rows.append([who, of, *map(str, counted), f"{len(loaded)} of {len(told)}",
                     f"{sum(one['agrees'] for one in loaded)} of {len(loaded)}"])  # fmt: skip
    return table(["program", "format", "models", "schemes", "load and run", "within its precision"], rows)


def speeds() -> str:
    """Tokens of a second of processor time, of the bundled model."""
    rows = []
    for cell in _cells().values():
        found = [cell["readers"].get(reader, {}).get("tokens_s") for reader in READERS]
        if cell["model"] == BUNDLED and any(found):
            shown = ["" if one is None else f"{one:.0f}" for one in found]
            rows.append([f"`{cell['format']}`", f"`{cell['scheme']}`", *shown])
    loads = [
        told["load"]
        for cell in _cells().values()
        for told in cell["readers"].values()
        if cell["model"] == BUNDLED and "tokens_s" in told and "load" in told
    ]
    cores = read("consumers")["machine"].rpartition(", ")[2]
    busy = (
        f"Others used the machine: its load was {median(loads):.0f} on {cores}, so that numbers within a factor of two "
        "of each other say nothing. `make consumers ONLY=reference/` on a quiet machine takes them again.\n\n"
    )
    return (busy if median(loads) > BUSY else "") + table(["format", "scheme", *READERS.values()], rows)


def _encoders() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read("consumers").get("encoders", {})
    return found


def encoders() -> str:
    """A row for each encoder and scheme in sentence-transformers."""
    rows = []
    for name, told in _encoders().items():
        model, _, scheme = name.partition("/")
        if "refused" in told or not told["loads"]:
            rows.append([model, f"`{scheme}`", _words(told.get("refused") or told["error"]), "", "", "", ""])
            continue
        apart = f"{told['apart']:.0e}"
        first = _words(told["error_as_loaded"]) if "error_as_loaded" in told else "runs"
        cost = f"{told['cost']:.0e}" if scheme != "float" else ""
        shown = apart if told["agrees"] else f"**{apart}**"
        rows.append(
            [
                model,
                f"`{scheme}`",
                first,
                shown,
                f"{told['own']:.0e}",
                cost,
                f"{told['milliseconds']:.0f}" if "milliseconds" in told else "",
            ]
        )
    head = [
        "encoder",
        "scheme",
        "the first call",
        "1 − cosine to goldstick",
        "goldstick's own",
        "cost of compression",
        "ms of processor time a text",
    ]
    return table(head, rows)


def unwritten() -> str:
    """What goldstick does not write, by format and reason."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in read("consumers")["cells"].values():
        if "refused" in cell:
            reason = _reason(cell["refused"])
            found.setdefault((cell["format"], reason), {}).setdefault(cell["model"], []).append(f"`{cell['scheme']}`")
    rows = [
        [f"`{form}`", reason, "; ".join(_of(model, schemes) for model, schemes in by_model.items())]
        for (form, reason), by_model in sorted(found.items())
    ]
    return table(["format", "why", "schemes"], rows)


def _of(model: str, schemes: list[str]) -> str:
    return ", ".join(schemes) if model == BUNDLED else f"{model}: {', '.join(schemes)}"


def _reason(words: str) -> str:
    """Why, without the layer's name and its scheme."""
    plain = re.sub(r"[|`<>\n]", " ", re.sub(r" \(and \d+ more\).*| Use --format .*", "", words))
    plain = re.sub(r"^\S+ cannot hold this: [\w.]+: ", "", plain)
    plain = re.sub(r"^\d+ things are illegal\. \(1\) \S+ is an? (.*?)(; give it| \(2\)).*", r"\1", plain)
    plain = re.sub(r"^(experts weight|weight of fused experts) and", "fused experts", plain)
    plain = re.sub(r",? and its scheme is [\w-]+|, not \d+$", "", plain)
    return " ".join(re.sub(r"its scheme is [\w-]+,? and ", "", plain).split()).rstrip(".")[:200]
