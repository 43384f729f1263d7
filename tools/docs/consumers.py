"""The tables of docs/consumers.md: what programs answered on checkpoints of goldstick's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tools.consumers import BUNDLED
from tools.docs.results import read, table

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
    """A row for each architecture, and a column for each format and scheme with the program that read it."""
    cells = [cell for cell in _cells().values() if cell["model"] != BUNDLED]
    columns = dict.fromkeys((cell["format"], cell["scheme"], reader) for cell in cells for reader in cell["readers"])
    ordered = sorted(columns, key=lambda one: (list(READERS).index(one[2]), one[0] != "float", one))
    by_model: dict[str, dict[tuple[str, str, str], str]] = {}
    for cell in cells:
        for reader, told in cell["readers"].items():
            by_model.setdefault(cell["model"], {})[cell["format"], cell["scheme"], reader] = _shown(told)
    head = ["architecture", *(_title(*one) for one in ordered)]
    return table(head, [[f"`{model}`", *(row.get(one, "") for one in ordered)] for model, row in by_model.items()])


def _title(form: str, scheme: str, reader: str) -> str:
    return f"{READERS[reader]}: float" if form == "float" else f"{READERS[reader]}: `{form}` `{scheme}`"


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
    for cell in _cells().values():
        for told in cell["readers"].values():
            if told["doctor"]:
                cpu = told["doctor"]["cpu"] or ""
                elsewhere = re.match(r"there is no|weights of 4|its kernel|with AMX|Arm$", cpu)
                says = told["doctor"]["loads"] and not elsewhere
                yes = says if told["doctor"]["loads"] is not None else False
                yield yes == told["loads"]


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
    """How many cells there are, how many agree, and how many doctor had right; who read them."""
    result = read("consumers")
    told = [one for cell in _cells().values() for one in cell["readers"].values()]
    loaded = [one for one in told if one["loads"]]
    apart = [one for one in loaded if not one["agrees"]]
    versions = "; ".join(
        f"{READERS[reader]}: " + ", ".join(f"{name} {number}" for name, number in packages.items())
        for reader, packages in result["versions"].items()
    )
    right = list(_verdicts())
    return (
        f"{len(told)} answers: {len(loaded)} load, {len(loaded) - len(apart)} of them within the program's precision. "
        f"`goldstick doctor --for` had said {sum(right)} of {len(right)} right.\n\n"
        f"Machine: {result['machine']}. {versions}."
    )
