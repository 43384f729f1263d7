"""How much of a difference in perplexity is a model's confidence: ``python -m benchmarks.confidence [--only 'w4*']``.

A model that is too sure of its predictions gains perplexity by whatever flattens them, noise of rounding included. Here
each model's logits are divided by the temperature that is best for its own perplexity on each text, the float model's
too, and the perplexities are compared as they are and so. Models, texts and recipes are those of
``benchmarks/effort.py`` (rounding, and ``default`` over several draws of calibration windows, GPTQ's and AWQ's) and of
``benchmarks/chance.py`` (other roundings of the same weights; where inputs are rounded, too, of the same network with
its channels in another order). One thread.

Writes ``benchmarks/results/confidence.json`` row by row, and a table of ``docs/effort.md``. What is there is not
measured again; ``--report`` measures nothing.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import goldstick
from benchmarks.cells import schemes_to_measure, write_behind
from benchmarks.chance import another_order, another_rounding
from benchmarks.effort import DOCUMENT, ROOT, ROUNDING, SUBJECT, TEXTS, documents_of, drawn, recipe_of
from goldstick.core.scheme import Scheme
from goldstick.recipes.needs_data import needs_data

RESULTS = ROOT / "benchmarks" / "results" / "confidence.json"
MARK = "<!-- written by benchmarks/confidence.py -->\n"
FLOAT, OTHERS, DEFAULT, AWQ = "float", "other roundings", "default", "default, awq"
#: Row → the first word of its recipe; all others round.
CALIBRATED = {DEFAULT: "gptq", AWQ: "awq"}
#: Scheme → what is measured of it, and how often.
ROWS: dict[str, dict[str, int]] = {
    "w4a16-g128": {ROUNDING: 1, OTHERS: 16, DEFAULT: 4},
    "w4a16-g32": {ROUNDING: 1, OTHERS: 16, DEFAULT: 4, AWQ: 8},
    "nvfp4a16": {ROUNDING: 1, OTHERS: 16, DEFAULT: 8},
    "nvfp4": {ROUNDING: 1, OTHERS: 16, DEFAULT: 8},
}
#: What logits are divided by.
TEMPERATURES = tuple(round(1 + step / 20, 2) for step in range(-1, 9))


def main() -> None:
    """Measure, write."""
    if schemes := schemes_to_measure(__doc__, ROWS):
        measure(schemes)
    write_behind(DOCUMENT, MARK, f"{table(read())}\n\n{differences(read())}")


def measure(schemes: Sequence[str]) -> None:
    """What is missing of some schemes, kept model by model."""
    model = AutoModelForCausalLM.from_pretrained(SUBJECT.directory, dtype=torch.float32).eval()
    documents = documents_of(model)
    rows = [(FLOAT, 0)] + [
        (f"{scheme} {row}", n) for scheme in schemes for row in ROWS[scheme] for n in range(ROWS[scheme][row])
    ]
    for name, number in rows:
        if str(number) in read().get(name, {}):
            continue
        changed = model if name == FLOAT else made(model, *name.split(" ", 1), number)
        found = {text: losses(changed, documents[text]) for text in TEXTS}
        results = read()
        results.setdefault(name, {})[str(number)] = found
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(name, number, {text: least(curve) for text, curve in found.items()}, flush=True)


def made(model: Any, scheme: str, row: str, number: int) -> Any:
    """The model of a row."""
    if row == OTHERS and Scheme.parse(scheme).activation is None:
        return another_rounding(model, f"rtn-{scheme}", number)
    recipe = recipe_of(f"{CALIBRATED.get(row, 'rtn')}-{scheme}", "default", number)
    data = drawn(model, number).batches() if needs_data(recipe.stages) else None
    return goldstick.apply(another_order(model, number) if row == OTHERS else model, recipe, data=data).model


@torch.no_grad()
def losses(model: Any, documents: Sequence[Sequence[int]]) -> dict[str, float]:
    """The mean −log p of the next token at each temperature."""
    sums, tokens = dict.fromkeys(TEMPERATURES, 0.0), 0
    for document in documents:
        ids = torch.tensor([document])
        logits = model(input_ids=ids).logits[0, :-1].float()
        given = logits.gather(1, ids[0, 1:, None])[:, 0].double()
        for temperature in TEMPERATURES:
            sums[temperature] += float(((logits / temperature).logsumexp(-1).double() - given / temperature).sum())
        tokens += len(document) - 1
    return {str(temperature): round(total / tokens, 6) for temperature, total in sums.items()}


def least(curve: Mapping[str, float]) -> tuple[float, float]:
    """The best temperature and the loss there: the vertex of the parabola through the least loss and its neighbours."""
    losses = [curve[str(one)] for one in TEMPERATURES]
    place = min(max(losses.index(min(losses)), 1), len(losses) - 2)
    before, here, after = losses[place - 1 : place + 2]
    step, bend = TEMPERATURES[place] - TEMPERATURES[place - 1], before - 2 * here + after
    return TEMPERATURES[place] + step * (before - after) / (2 * bend), here - (before - after) ** 2 / (8 * bend)


def read() -> dict[str, Any]:
    """The results: row → number → text → temperature → loss."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return found


def table(results: Mapping[str, Any]) -> str:
    """Of each text and row the best temperature, and the perplexity over the float model's as it is and at the best."""
    lines = ["| text | scheme | | best temperature | perplexity over float | each at its best |", "|---" * 6 + "|"]
    for text in TEXTS:
        float_ = results[FLOAT]["0"][text]
        best, lowest = least(float_)
        gained = math.exp(lowest - float_["1.0"])
        lines.append(f"| {text} | float | | {best:.3f} | 1 | 1 ({gained:.4f} of what it was) |")
        for name, rows in sorted(results.items(), key=_order):
            if name == FLOAT:
                continue
            scheme, row = name.split(" ", 1)
            curves = [found[text] for found in rows.values()]
            temperature = statistics.fmean(least(curve)[0] for curve in curves)
            plain = [math.exp(curve["1.0"] - float_["1.0"]) for curve in curves]
            fair = [math.exp(least(curve)[1] - lowest) for curve in curves]
            shown = row if row in (ROUNDING, OTHERS) else f"`{row}`"
            lines.append(f"| {text} | `{scheme}` | {shown} | {temperature:.3f} | {_shown(plain)} | {_shown(fair)} |")
    return "\n".join(lines)


def differences(results: Mapping[str, Any]) -> str:
    """What calibration has beside other roundings, as means over the draws of both, with the standard error."""
    lines = []
    for scheme, row in ((scheme, row) for scheme, rows in ROWS.items() for row in rows if row in CALIBRATED):
        draws = [results.get(f"{scheme} {one}", {}) for one in (row, OTHERS)]
        for text in TEXTS if all(map(len, draws)) else ():
            said = []
            for at in (lambda curve: curve["1.0"], lambda curve: least(curve)[1]):
                ours, others = ([at(found[text]) for found in rows.values()] for rows in draws)
                apart = 100 * (statistics.fmean(ours) - statistics.fmean(others))
                error = 100 * math.sqrt(
                    statistics.variance(ours) / len(ours) + statistics.variance(others) / len(others)
                )
                said.append(f"{apart:+.2f} ± {error:.2f} %")
            lines.append(f"- `{scheme}`, {text}: `{row}` beside other roundings {said[0]}; each at its best {said[1]}.")
    return "\n".join(lines)


def _order(row: tuple[str, Any]) -> tuple[int, int]:
    scheme, _, kind = row[0].partition(" ")
    return (list(ROWS).index(scheme), list(ROWS[scheme]).index(kind)) if kind else (-1, 0)


def _shown(values: Sequence[float]) -> str:
    middle = f"{statistics.fmean(values):.4f}"
    return middle if len(values) < 2 else f"{middle} ± {statistics.stdev(values):.4f} ({len(values)})"


if __name__ == "__main__":
    main()
