"""How much of a difference in perplexity is chance: ``python -m benchmarks.chance [--only 'w4*'] [--roundings 16]``.

The reference model, rounded to nearest as ``benchmarks/effort.py`` does, and again with every column of weights taken
times a number between 0.9 and 1.1 beforehand and divided by it behind: other codes of the same accuracy. So much as
their perplexities differ, a single rounding's is a matter of luck, which an interval of documents drawn again does not
see. Texts and figures are those of ``benchmarks/effort.py``. One thread.

Writes ``benchmarks/results/chance.json`` after each scheme, and a table of ``docs/effort.md``. ``--report`` measures
nothing.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import statistics
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

import goldstick
from benchmarks.cells import write_behind
from benchmarks.effort import DOCUMENT, RESULTS, ROOT, ROUNDING, SUBJECT, TEXTS, compared, documents_of, over_float
from goldstick.hf.names import quiet_libraries
from goldstick.nn import QuantizedLinear

FOUND = ROOT / "benchmarks" / "results" / "chance.json"
MARK = "<!-- written by benchmarks/chance.py -->\n"
SCHEMES = ("w4a16-g128", "w4a16-g32")
EFFORTS = ("default", "best")


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of the schemes to measure")
    parser.add_argument("--roundings", type=int, default=16)
    parser.add_argument("--report", action="store_true", help="write the table from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    if not arguments.report:
        measure([scheme for scheme in SCHEMES if fnmatch.fnmatchcase(scheme, arguments.only)], arguments.roundings)
    write_behind(DOCUMENT, MARK, table())


def measure(schemes: list[str], roundings: int) -> None:
    """Round so often by each scheme, and keep what comes of it."""
    model = AutoModelForCausalLM.from_pretrained(SUBJECT.directory, dtype=torch.float32).eval()
    documents = documents_of(model)
    for scheme in schemes:
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in TEXTS}
        for seed in range(roundings):
            rounded = another_rounding(model, f"rtn-{scheme}", seed)
            for name, texts in documents.items():
                found = compared(model, rounded, texts)
                rows[name].append({"kl": found["kl"], "over_float": round(over_float(found), 6)})
        results = json.loads(FOUND.read_text()) if FOUND.is_file() else {}
        results[scheme] = rows
        FOUND.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(scheme, {name: _shown([row["over_float"] for row in found]) for name, found in rows.items()}, flush=True)


def another_rounding(model: nn.Module, recipe: str, seed: int) -> nn.Module:
    """A float model with rounded weights, each column taken times a number by chance before, divided by it behind."""
    generator = torch.Generator().manual_seed(seed)
    scaled, factors = copy.deepcopy(model), {}
    with torch.no_grad():
        for name, module in scaled.named_modules():
            if isinstance(module, nn.Linear):
                factors[name] = 0.9 + 0.2 * torch.rand(module.in_features, generator=generator)
                module.weight.mul_(factors[name])
        made: nn.Module = goldstick.apply(scaled, recipe).model
        rounded = copy.deepcopy(model)
        for name, module in made.named_modules():
            if isinstance(module, QuantizedLinear):
                rounded.get_submodule(name).weight.copy_(module.stored_numbers() / factors[name])
    return rounded


@torch.no_grad()
def another_order(model: Any, seed: int) -> Any:
    """The same network with its channels in another order, so that other weights, and other inputs, share a scale.

    Channels between blocks have one order throughout, those within each feed-forward part and those of values another;
    what a Llama computes is the same but for the order of sums.
    """
    generator, changed = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    config = changed.config
    order, values = (torch.randperm(count, generator=generator) for count in (config.hidden_size, config.head_dim))
    head, embedding = changed.get_output_embeddings().weight, changed.get_input_embeddings().weight
    if head is not embedding:
        head.copy_(head[:, order])
    for name, module in changed.named_modules():
        kind = name.rpartition(".")[2]
        if kind in ("embed_tokens", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
            module.weight.copy_(module.weight[:, order])
        elif kind.endswith("norm") or kind in ("o_proj", "down_proj"):
            module.weight.copy_(module.weight[order])
    for layer in changed.model.layers:
        inner = torch.randperm(config.intermediate_size, generator=generator)
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj):
            part.weight.copy_(part.weight[inner])
        layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, inner])
        given, taken = layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight
        given.copy_(given.unflatten(0, (-1, config.head_dim))[:, values].flatten(0, 1))
        taken.copy_(taken.unflatten(1, (-1, config.head_dim))[:, :, values].flatten(1))
    return changed


def table() -> str:
    """For each scheme and text what roundings by chance have, beside the rows of the effort table."""
    results, efforts = json.loads(FOUND.read_text()), json.loads(RESULTS.read_text())
    named = " | ".join(f"`{one}`" for one in EFFORTS)
    lines = [f"| scheme | text | roundings: KL | perplexity over float | the rounding above | {named} |"]
    lines.append("|---" * (5 + len(EFFORTS)) + "|")
    for scheme, rows in sorted(results.items(), key=lambda item: SCHEMES.index(item[0])):
        for name, found in rows.items():
            kl = [row["kl"] for row in found]
            cells = [f"`{scheme}`", name, f"{statistics.fmean(kl):.5f} ± {statistics.stdev(kl):.5f}"]
            cells.append(_shown([row["over_float"] for row in found]))
            for row in (ROUNDING, *EFFORTS):
                seeds = efforts.get(f"{scheme} {row}", {})
                cells.append(_shown([over_float(one[name]) for one in seeds.values()]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(values: list[float]) -> str:
    """One figure, or how several spread."""
    if len(values) < 2:
        return f"{values[0]:.4f}" if values else "–"
    middle, deviation = statistics.fmean(values), statistics.stdev(values)
    return f"{middle:.4f} ± {deviation:.4f} ({min(values):.4f} … {max(values):.4f})"


if __name__ == "__main__":
    main()
