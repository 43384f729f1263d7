"""Would a search for a size choose MLPs with fewer neurons, if these were candidates?

    python -m benchmarks.pruned_candidates [--models reference,stories260k] [--report]

A neuron goes by zeroing what reads it. Of every MLP the neurons of the least second order, ½ E⟨G, Δ⟩² with Δ the zeroed
column alone, go first; these scores are of other rows than the losses. Each share that goes is tried with all three
matrices at each of the smaller schemes, rounded to nearest, and its KL is measured with that MLP alone changed, as a
search measures its candidates. Beside it stands the best choice of schemes for the three matrices, whole, in as many
bytes, found by the sum of their measured losses, as a search finds it, and then measured together. Schemes are those
that a search for goldstick's own format chooses among and that groups divide; bytes are codes and scales.

One thread. Writes ``benchmarks/results/pruned-candidates.json``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from benchmarks.accuracy_cases import Subject
from benchmarks.searched_models import searched_subjects
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.load import load_float
from goldstick.jobs.search.losses import RowLosses
from goldstick.jobs.search.rows import in_batches
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.recipes.calibration import Calibration

RESULTS = Path(__file__).resolve().parent / "results" / "pruned-candidates.json"
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
SCHEMES = ("float", *RUNTIMES["goldstick"].schemes)
FEWER = tuple(scheme for scheme in SCHEMES if scheme.startswith(("w2", "w3", "w4", "w5")))
MATRICES = ("gate_proj", "up_proj", "down_proj")
SAMPLES, SEQ_LEN, DRAWS = 8, 256, 4
EDGES = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="reference,stories260k")
    parser.add_argument("--report", action="store_true", help="say what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in [] if arguments.report else arguments.models.split(","):
        results[name] = compared(searched_subjects()[name])
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(table(results))


def compared(subject: Subject) -> list[dict[str, Any]]:
    """Each MLP, share and scheme: KL of the MLP with fewer neurons, and of the best whole one in as many bytes."""
    model: Any = load_float(subject.directory).float().eval().requires_grad_(False)
    text = Calibration(dataset=subject.dataset, samples=2 * SAMPLES, seq_len=SEQ_LEN)
    ids = calibration_data(text, subject.directory, subject.data)(model).ids
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]
    rows = RowLosses(model, in_batches(ids[SAMPLES:]))
    scores = neuron_scores(model, ids[:SAMPLES])
    found = []
    for number, layer in enumerate(model.model.layers):
        weights = [getattr(layer.mlp, name).weight for name in MATRICES]
        whole = [weight.detach().clone() for weight in weights]
        rounded = [{scheme: _rounded(matrix, scheme) for scheme in _fitting(matrix.shape[1])} for matrix in whole]
        alone: list[dict[str, tuple[int, float]]] = [{} for _ in MATRICES]
        for place, weight in enumerate(weights):
            for scheme, matrix in rounded[place].items():
                weight.copy_(matrix)
                loss = 0.0 if scheme == "float" else fmean(rows.kl())
                alone[place][scheme] = _bits(scheme, *matrix.shape), loss
            weight.copy_(whole[place])
        together: dict[tuple[str, ...], float] = {}
        order = scores[number].argsort()
        for share in SHARES:
            gone = order[: round(share * len(order))]
            left, hidden = len(order) - len(gone), whole[0].shape[1]
            for scheme in [one for one in FEWER if one in _fitting(hidden) and one in _fitting(left)]:
                _become(weights, [matrices[scheme] for matrices in rounded])
                weights[2][:, gone] = 0
                bits = 2 * _bits(scheme, left, hidden) + _bits(scheme, hidden, left)
                one = {"block": number, "share": share, "scheme": scheme, "kl": fmean(rows.kl())}
                one["bits_per_weight"] = bits / sum(matrix.numel() for matrix in whole)
                best = best_whole(alone, bits)
                if best and best not in together:
                    _become(weights, [matrices[name] for matrices, name in zip(rounded, best, strict=True)])
                    together[best] = fmean(rows.kl())
                found.append(one | {"whole": together.get(best), "chosen": best})
                print(json.dumps(found[-1]), flush=True)
        _become(weights, whole)
    return found


def neuron_scores(model: Any, ids: Tensor) -> list[Tensor]:
    """½ E⟨G, Δ⟩² per token of each neuron of each MLP, Δ being the column that reads it zeroed."""
    generator = torch.Generator().manual_seed(0)
    weights = [layer.mlp.down_proj.weight.requires_grad_() for layer in model.model.layers]
    sums = [torch.zeros(weight.shape[1], dtype=torch.float64) for weight in weights]
    for row in ids:
        with torch.enable_grad():
            log_p = torch.log_softmax(model(input_ids=row[None], use_cache=False).logits[0], dim=-1)
            for draw in range(DRAWS):
                labels = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
                gradients = torch.autograd.grad(log_p.gather(1, labels).sum(), weights, retain_graph=draw + 1 < DRAWS)
                for total, weight, gradient in zip(sums, weights, gradients, strict=True):
                    total += (gradient * weight.detach()).double().sum(0).square()
    for weight in weights:
        weight.requires_grad_(False)
    return [total / (2 * DRAWS * ids.numel()) for total in sums]


def best_whole(alone: Sequence[dict[str, tuple[int, float]]], most: int) -> tuple[str, ...]:
    """The schemes of whole matrices of the least sum of losses in at most so many bits; none where none is so small.

    Args:
        alone: Of each matrix, scheme → its bits and its loss.
        most: Bits.
    """
    least, kept = math.inf, tuple[str, ...]()
    for choice in product(*(one.items() for one in alone)):
        loss = sum(found for _, (_, found) in choice)
        if loss < least and sum(bits for _, (bits, _) in choice) <= most:
            least, kept = loss, tuple(scheme for scheme, _ in choice)
    return kept


def _become(weights: Sequence[Tensor], matrices: Sequence[Tensor]) -> None:
    for weight, matrix in zip(weights, matrices, strict=True):
        weight.copy_(matrix)


def _fitting(columns: int) -> list[str]:
    """Schemes whose groups divide so many columns."""
    return [scheme for scheme in SCHEMES if scheme == "float" or Scheme.parse(scheme).weight.divides(columns)]


def _bits(scheme: str, rows: int, columns: int) -> int:
    """Of the codes and scales of a matrix."""
    if scheme == "float":
        return 16 * rows * columns
    weight = Scheme.parse(scheme).weight
    return rows * (weight.bits * columns + 16 * (columns // (weight.group_size or columns)))


def _rounded(weight: Tensor, scheme: str) -> Tensor:
    if scheme == "float":
        return weight
    return quantize_with_search(weight, Scheme.parse(scheme).weight, "mse").dequantize().float()


def table(results: dict[str, Any]) -> str:
    """What was found, by the bits that an MLP takes, for each of its weights before any neuron goes."""
    lines = [
        "| model | bits a weight | pairs | fewer lose less | median ratio of KL | least |",
        "|---" * 6 + "|",
    ]
    for model, rows in results.items():
        for low, high in pairwise(EDGES):
            ratios = [
                row["kl"] / row["whole"]
                for row in rows
                if low <= row["bits_per_weight"] < high and row["whole"] is not None
            ]  # fmt: skip
            if ratios:
                better = sum(ratio < 1 for ratio in ratios)
                lines.append(
                    f"| {model} | {low:g} to {high:g} | {len(ratios)} | {better} | {median(ratios):.2f} | "
                    f"{min(ratios):.2f} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
