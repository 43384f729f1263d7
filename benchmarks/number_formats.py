"""What FP8, MX, NVFP4 and other number formats cost in accuracy, plainly rounded, searched and solved.

    python -m benchmarks.number_formats [--models reference,stories260k,planted] [--only 'nvfp4*'] [--report]

Each row loads a model in float32, applies a recipe in memory and compares its next tokens with the float model's: the
mean KL divergence over the held-out text, with a 95 % interval of documents drawn again, and perplexity as a ratio to
the float model's. The models, with their data, are those of :mod:`benchmarks.accuracy`. ``rtn minmax`` is plain
rounding as compressed-tensors does it; ``rtn`` searches ranges among the scales that can be stored; ``descent``
searches codes and scales by the error of outputs; ``gptq`` rounds column by column. Differences between two rows are
of the same documents.

Writes ``benchmarks/results/number-formats.json`` after each row, and the tables of ``docs/number-formats.md``
and, of perplexity, of ``docs/accuracy.md``. ``--report`` measures nothing, ``--missing`` what is not in the results.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.accuracy import Bench, write_formats
from benchmarks.accuracy_cases import FLOAT, Row, subjects
from benchmarks.accuracy_verdicts import Results
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.save.records import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "number-formats.json"
DOCUMENT = ROOT / "docs" / "number-formats.md"
BEGIN, END = "<!-- written by benchmarks/number_formats.py -->", "<!-- end -->"

EIGHT_BITS = ("w8a8-dynamic", "fp8a16", "fp8-dynamic", "fp8-static", "fp8-block", "mxfp8", "mxfp6a16")
FLOAT_FOUR_BITS = ("mxfp4a16", "nvfp4a16", "nf4a16", "iq4a16", "mxfp4", "nvfp4", "mxfp4afp8")
FOUR_BITS = ("w4a16-g128", "w4a16-g32", "w4a16-g16", "w4afp8", "w4a8-dynamic-g32", *FLOAT_FOUR_BITS)
#: Measured by further methods: what 8-bit floats can gain, and 4-bit ones whose weights are scaled first.
SOLVED = ("fp8a16", "fp8-dynamic")
BALANCED = ("mxfp4a16", "nvfp4a16")
#: What Blackwell multiplies.
BLACKWELL = ("mxfp4a16", "nvfp4a16", "mxfp4", "nvfp4")
#: "No loss larger than 0.5 %."
CLOSE = 1.005
#: FP8 inputs of weights that lose next to nothing: the least that a layer with such inputs costs.
_INPUTS_ALONE = {
    "weight": {"bits": 8, "granularity": "group", "group_size": 4},
    "activation": {"element": "e4m3", "bits": 8, "granularity": "token"},
}
#: Layers that read one input, or follow one another, which a recipe leaves in 16 bits.
_KINDS = {
    "gate and up": ("*gate_proj", "*up_proj"),
    "query, key and value": ("*q_proj", "*k_proj", "*v_proj"),
    "output projections": ("*o_proj",),
    "down projections": ("*down_proj",),
}


def rows() -> Iterator[Row]:
    """All rows but the float one."""
    for scheme in (*EIGHT_BITS, *FOUR_BITS):
        yield _row("rtn minmax", scheme, {"rtn": {"range_search": "minmax"}})
    for scheme in (*SOLVED, *FOUR_BITS):
        yield _row("rtn", scheme, {"rtn": {"range_search": "mse"}})
        yield _row("imatrix", scheme, {"rtn": {"range_search": "imatrix"}})
    for scheme in FLOAT_FOUR_BITS:
        yield _row("descent", scheme, {"descent": {}})
    for scheme in (*BLACKWELL, "fp8-dynamic"):
        yield _row("descent: gptaq", scheme, {"descent": {"gptaq": True}})
        yield _row("descent: gptaq, distill", scheme, {"descent": {"gptaq": True}}, {"distill": {}})
    for scheme in (*EIGHT_BITS, *FOUR_BITS):
        yield _row("gptq", scheme, {"gptq": {}})
    for scheme in (*BALANCED, *SOLVED):
        yield _row("awq", scheme, {"awq": {}})
        yield _row("gptaq", scheme, {"gptq": {"gptaq": True}})
    for scheme in BALANCED:
        yield _row("awq+gptaq", scheme, {"awq": {"quantize": False}}, {"gptq": {"gptaq": True}})
        yield _row("gptq: 8 cycles", scheme, {"gptq": {"cycles": 8}})
    yield from fp8_recipes()


def fp8_recipes() -> Iterator[Row]:
    """What may bring the loss of FP8 weights and inputs down, beside the methods of all schemes."""
    gptq: dict[str, dict[str, Any]] = {"gptq": {}}
    for name, before in (
        ("awq", {"awq": {"quantize": False}}),
        ("smoothquant", {"smoothquant": {}}),
        ("rotate", {"rotate": {}}),
    ):
        yield _row(f"{name}+gptq", "fp8-dynamic", before, gptq)
    yield _row("gptaq+distill", "fp8-dynamic", {"gptq": {"gptaq": True}}, {"distill": {}})
    descent: dict[str, dict[str, Any]] = {"descent": {"gptaq": True}}
    yield _row("awq+descent: gptaq", "fp8-dynamic", {"awq": {"quantize": False}}, descent)
    yield _row("awq+descent: gptaq+distill", "fp8-dynamic", {"awq": {"quantize": False}}, descent, {"distill": {}})
    yield Row(
        method="inputs alone (weights in int8, groups of 4)",
        scheme="fp8-dynamic",
        stages=[{"rtn": {"scheme": _INPUTS_ALONE, "group_size_mismatch": "channel"}}],
    )
    for name, patterns in _KINDS.items():
        yield _row(f"gptq: {name} in 16 bits", "fp8-dynamic", {"gptq": {"targets": {"exclude": list(patterns)}}})
    integers = dict.fromkeys(_KINDS["gate and up"], "w8a8-dynamic")
    yield _row("gptq: gate and up in int8", "fp8-dynamic", {"gptq": {"overrides": integers}})


def _row(method: str, scheme: str, *stages: dict[str, dict[str, Any]]) -> Row:
    options = {"scheme": scheme, "group_size_mismatch": "channel"}
    full = [
        {
            name: more if name in ("smoothquant", "rotate", "distill") or "quantize" in more else {**options, **more}
            for name, more in stage.items()
        }
        for stage in stages
    ]
    return Row(method=method, scheme=scheme, stages=full)


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(subjects()))
    parser.add_argument("--only", default="*", help="patterns of the rows to measure, such as 'gptq *,rtn nv*'")
    parser.add_argument("--missing", action="store_true", help="measure rows that are not in the results alone")
    parser.add_argument("--report", action="store_true", help="write tables from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    for name in [] if arguments.report else arguments.models.split(","):
        bench = Bench.of(subjects()[name])
        patterns = arguments.only.split(",")
        for row in (FLOAT, *rows()):
            if row is not FLOAT and not any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns):
                continue
            if arguments.missing and "kl_items" in Results.read(RESULTS).row(name, row.name):
                continue
            found = bench.measure(row)
            results = Results.read(RESULTS)
            results.put(subjects()[name], row, found, environment())
            results.write(RESULTS)
            print(f"{name:12s} {row.name:28s} KL {found['kl']:.5f} {found['seconds']:6.1f} s", flush=True)
    text = "\n\n".join([*tables(Results.read(RESULTS)), "\n".join(verdicts(Results.read(RESULTS)))])
    print(text)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    write_formats(Results.read(RESULTS), rows())


def tables(results: Results) -> Iterator[str]:
    """For each model: schemes down, methods across; mean KL in thousandths of a nat, and what 8 bits cost."""
    for model in results.names:
        found = results.models[model]["rows"]
        lines = [f"**{model}**: mean KL to the float model, thousandths of a nat (95 % interval)", ""]
        further = {row.method for row in fp8_recipes()}
        methods = [method for method in dict.fromkeys(row.method for row in rows()) if method not in further]
        lines += [_line("scheme", "bits a weight", *methods), _line(*["---"] * (len(methods) + 2))]
        for scheme in dict.fromkeys(row.scheme for row in rows()):
            cells = [_cell(found.get(f"{method} {scheme}")) for method in methods]
            bits = next((row["bits_per_weight"] for name, row in found.items() if name.endswith(f" {scheme}")), None)
            if bits is not None:
                lines.append(_line(f"`{scheme}`", f"{bits:.2f}", *cells))
        yield "\n".join(lines)
    yield fp8_table(results)


def fp8_table(results: Results) -> str:
    """For each recipe of ``fp8-dynamic`` and each model: perplexity over float."""
    lines = ["**fp8-dynamic**: perplexity over float (95 % interval)", "", _line("recipe", *results.names)]
    lines.append(_line(*["---"] * (len(results.names) + 1)))
    for row in rows():
        ratios = [results.ratio(model, row.name) for model in results.names]
        if row.scheme == "fp8-dynamic" and any(ratios):
            lines.append(_line(row.method, *(str(ratio or "–") for ratio in ratios)))
    return "\n".join(lines)


def verdicts(results: Results) -> Iterator[str]:
    """How much a search and GPTQ gain on each 4-bit grid of floats, and whether FP8 costs anything."""
    for model in results.names:
        for scheme in FLOAT_FOUR_BITS:
            plain = results.kl(model, f"rtn minmax {scheme}")
            shares = {
                word: kl / plain
                for word, method in (
                    ("searched ranges", "rtn"),
                    ("descent", "descent"),
                    ("with gptaq", "descent: gptaq"),
                    ("and distilled", "descent: gptaq, distill"),
                    ("AWQ", "awq"),
                    ("GPTQ", "gptq"),
                    ("and 8 cycles", "gptq: 8 cycles"),
                )
                if plain and (kl := results.kl(model, f"{method} {scheme}")) is not None
            }
            apart = results.kl_difference(model, f"gptq {scheme}", f"rtn {scheme}")
            if "GPTQ" in shares and apart is not None:
                listed = ", ".join(f"{word} {share:.2f}" for word, share in shares.items())
                middle, low, high = (f"{1000 * value:.2f}".replace("-", "−") for value in apart)
                yield (
                    f"- {model} `{scheme}`, left of plain rounding's KL: {listed}; GPTQ less searched ranges "
                    f"{middle} ({low}…{high}) thousandths of a nat."
                )
        for scheme in EIGHT_BITS:
            ratio = results.ratio(model, f"rtn minmax {scheme}")
            if ratio is not None:
                within = "; no loss larger than 0.5 % at 95 %" if ratio.high <= CLOSE else ""
                yield f"- {model} `{scheme}`: perplexity over float {ratio}{within}."


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    low, high = found["kl_interval"]
    return f"{1000 * found['kl']:.2f} ({1000 * low:.2f}…{1000 * high:.2f})"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
