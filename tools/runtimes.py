"""The tables of docs/runtimes.md, from the rules: ``python -m tools.runtimes`` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from goldstick.core.scheme import Scheme
from goldstick.formats import FORMATS
from goldstick.formats.base import StoredLayer
from goldstick.jobs.doctor.runtimes import RUNTIMES
from goldstick.jobs.doctor.runtimes.runtime import HARDWARE, Answer, Runtime
from goldstick.jobs.doctor.runtimes.subject import Module, Subject

#: Schemes of the tables, in their order.
SCHEMES = (
    "w4a16-g128", "w4a16-g128-asym", "w4a16-g32", "w4a16-g16", "w4a16-channel", "w8a16", "w8a16-g128-asym",
    "w3a16-g128", "w2a16-g64", "w8a8-dynamic", "w8a8-static", "w4a8-dynamic-g128", "w4a8-static-g128",
    "w4a4-dynamic-g128", "w4afp8", "fp8", "fp8-dynamic", "fp8-block", "fp8a16", "fp8a16-block", "mxfp8", "mxfp8a16",
    "mxfp6a16", "mxfp4", "mxfp4a16", "mxfp4afp8", "nvfp4", "nvfp4a16",
)  # fmt: skip
#: Further ones, that no program was asked to run (tools/consumers asks for those above).
_UNASKED = ("nf4a16",)
_NAME = "model.layers.0.mlp.down_proj"


def support_table(runtime: Runtime) -> str:
    """Which schemes a runtime runs in which format, and on which hardware, as a table of Markdown.

    Rows that say the same are one. A dash is a scheme or hardware that it does not run; a question mark, what was not
    read in its source.
    """
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for form, scheme, cells in _rows(runtime):
        rows.setdefault((form, cells), []).append(f"`{scheme}`")
    lines = [f"| format | scheme | {' | '.join(HARDWARE)} |", f"|---|---|{'---|' * len(HARDWARE)}"]
    lines += [
        f"| `{form}` | {', '.join(schemes)} | {' | '.join(_once(cells))} |" for (form, cells), schemes in rows.items()
    ]
    return "\n".join(lines)


def _rows(runtime: Runtime) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for form in FORMATS.own_names:
        storage = FORMATS[form]
        if storage not in runtime.formats:
            continue
        for name in (*SCHEMES, *_UNASKED):
            scheme = Scheme.parse(name)
            shape = torch.Size([256, 256])
            layer = StoredLayer(
                name=f"{_NAME}.weight", site=_NAME, kind="linear", shape=shape, scheme=scheme, fractional_zeros=False,
                float16_ranges=True,
            )  # fmt: skip
            if storage.refuses(layer) is not None:
                continue
            subject = Subject(
                config={"architectures": ["LlamaForCausalLM"]},
                table=storage.config([layer], ["lm_head"], {}),
                modules=(Module(name=_NAME, shape=shape, scheme=scheme),),
            )
            answers = runtime.answers(subject)
            yield form, name, tuple(_cell(answers[hardware]) for hardware in HARDWARE)


def _once(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Cells that all say one thing say it once."""
    alike = len(set(cells)) == 1 and len(cells[0]) > 1
    return (cells[0], *["the same"] * (len(cells) - 1)) if alike else cells


def _cell(answer: Answer) -> str:
    if not answer.runs:
        return "?" if answer.runs is None else "–"
    return re.sub(r"^compute capability ([\d.]+) or later", r"\1 or later", answer.words)


def rule_table(runtime: Runtime) -> str:
    """Its further rules, as a table of Markdown."""
    lines = ["| check | severity | what | read in |", "|---|---|---|---|"]
    lines += [f"| `{rule.check}` | {rule.severity} | {rule.what} | {rule.read_in} |" for rule in runtime.rules]
    return "\n".join(lines)


def section(runtime: Runtime) -> str:
    """The section of a runtime."""
    schemes = f"Schemes, read in {runtime.read_in}:"
    tables = f"{support_table(runtime)}\n\nFurther rules:\n\n{rule_table(runtime)}"
    return f"## {runtime.title} {runtime.version}\n{schemes}\n\n{tables}"


def main() -> None:
    """Print the sections of all runtimes."""
    print("\n\n".join(section(runtime) for runtime in RUNTIMES.values()))


if __name__ == "__main__":
    main()
