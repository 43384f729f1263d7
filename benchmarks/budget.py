"""Sizes met, losses kept, and what a search wins over one scheme for all: goldstick's search for a size or a loss.

    python -m benchmarks.budget sizes uniform channels loss scores cost [--models MODELS] [--seeds 20] [--missing]

``sizes``: for 12 sizes in bits a weight (embedding, head, scales and headers counted) a checkpoint is searched for and
written; how far below what was asked are its weight files? ``uniform``: at 4.25, 3.5, 3.0 and 2.5 bits, mean KL on the
evaluation text, which no search or calibration sees, of the recipe found and of the best scheme for all layers in at
most 2 % more bytes, both rounded by GPTQ on the same rows (the embedding, tied to the head, to nearest). ``channels``:
the same of recipes found with and without ``--prune``, at few bits. ``loss``: the
smallest model whose perplexity grows by no more than 2 %, or whose KL is no more than 0.02, for so many seeds; how much
is it on rows that no part of the search has seen? ``scores``: Spearman's correlation of gradient scores with measured
KL over all (layer, candidate) pairs. ``cost``: processor seconds and peak memory of a search beside one quantization by
GPTQ.

One thread. Writes ``benchmarks/results/budget.json`` after each row and the tables of ``docs/search.md``; ``--report``
measures nothing, and ``--missing`` only the rows that are not there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr

import goldstick
from benchmarks.accuracy_cases import Subject
from benchmarks.budget_tables import tables
from benchmarks.searched_models import searched_subjects
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.divergence import divergence
from goldstick.evaluation.language_model import LanguageModel
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.save.records import environment
from goldstick.jobs.save.result import apply_recipe
from goldstick.jobs.search.losses import RowLosses
from goldstick.jobs.search.possible import possible_sizes
from goldstick.jobs.search.rows import in_batches
from goldstick.jobs.search.target import Target
from goldstick.jobs.search.weight_files import weight_file_bytes
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe
from goldstick.training import TrainingTask

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "budget.json"
DOCUMENT = ROOT / "docs" / "search.md"
BEGIN, END = "<!-- written by benchmarks/budget.py -->", "<!-- end -->"
SIZES = (2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0, 4.25, 4.75, 5.5, 6.25, 7.0, 8.0, 9.0)
COMPARED = (4.25, 3.5, 3.0, 2.5)
FEW = (3.5, 3.0, 2.75, 2.5, 2.25)
UNIFORM = tuple(f"w{bits}a16-{grain}" for bits in (2, 3, 4) for grain in ("g16", "g32", "g64", "g128", "channel"))
ROWS: dict[str, Any] = {"samples": 128, "seq_len": 256}
#: The metric of ``loss`` and what may be lost: rounding lowers the reference model's perplexity on the bundled text.
LOSSES: dict[str, tuple[Any, float]] = {"stories260k": ("perplexity", 0.02), "reference": ("kl", 0.02)}


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--models", default="reference,stories260k")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--missing", action="store_true", help="leave rows that are there as they are")
    parser.add_argument("--report", action="store_true", help="write the tables from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in [] if arguments.report else arguments.models.split(","):
            for what in arguments.what:
                done = rows_of(what, name) if arguments.missing else frozenset()
                for row, found in MEASURES[what](searched_subjects()[name], Path(folder), arguments.seeds, done):
                    save(what, name, row, found)
                    print(f"{what} {name} {row}: {json.dumps(found)}", flush=True)
    text = tables(json.loads(RESULTS.read_text()), LOSSES)
    print(text)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def searched(subject: Subject, folder: Path, **options: Any) -> Recipe:
    """A search; those of one model, seed and method share their journal."""
    settings: dict[str, Any] = {"dataset": subject.dataset, "data_dir": subject.data, "calibration": ROWS} | options
    journal = folder / f"{subject.name}-{settings.get('seed', 0)}-{settings.get('method', 'gptq')}.json"
    return goldstick.search(subject.directory, journal=journal, **settings)


def weights_of(subject: Subject) -> int:
    """The number of a model's weights."""
    plan = make_plan(subject.directory, Recipe.load("rtn-w8a16"))
    return sum(tensor.source.shape.numel() for tensor in plan.tensors)


def sizes(subject: Subject, folder: Path, _: int, done: Set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each size: asked for, and the weight files that were written."""
    least = possible_sizes(subject.directory, Target(bits=8))
    possible = [bits for bits in SIZES if bits > least.bits(least.least)][:12]
    for bits in [bits for bits in possible if str(bits) not in done]:
        recipe = searched(subject, folder, bits=bits, method="rtn", effort="fast")
        output = folder / f"{subject.name}-{bits}"
        goldstick.quantize(subject.directory, recipe, output=output, proof="tensors")
        written = sum(path.stat().st_size for path in output.glob("*.safetensors"))
        asked = bits * weights_of(subject) / 8
        yield str(bits), {"asked": int(asked), "written": written, "below_percent": 100 * (1 - written / asked)}


def uniform(subject: Subject, folder: Path, _: int, done: Set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """KL of the recipe found at each size, and of the best scheme for all in about as many bytes."""
    weights = weights_of(subject)
    model: Any = load_float(subject.directory)
    heads = () if model.config.tie_word_embeddings else ("@head",)
    known = {scheme: one_scheme(scheme, heads) for scheme in UNIFORM}
    nbytes = {scheme: weight_file_bytes(make_plan(subject.directory, recipe)) for scheme, recipe in known.items()}
    measured: dict[str, float] = {}
    for bits in [bits for bits in COMPARED if str(bits) not in done]:
        possible = possible_sizes(subject.directory, Target(bits=bits))
        if not possible.possible:
            yield str(bits), {"least_bits": possible.bits(possible.least)}
            continue
        recipe = searched(subject, folder, bits=bits)
        asked = bits * weights / 8
        rivals = [scheme for scheme, size in nbytes.items() if 0.85 * asked <= size <= 1.02 * asked]
        for scheme in rivals:
            measured.setdefault(scheme, kl(subject, known[scheme]))
        best = min(rivals, key=measured.__getitem__)
        found = kl(subject, recipe)
        yield str(bits), {
            "bytes": recipe.search["bytes"], "kl": found, "scheme": best, "scheme_bytes": nbytes[best],
            "scheme_kl": measured[best], "ratio": found / measured[best],
            "others": {scheme: [nbytes[scheme], measured[scheme]] for scheme in rivals},
        }  # fmt: skip


def channels(subject: Subject, folder: Path, _: int, done: Set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """KL of what is found where layers may lose channels, and where they may not."""
    for bits in [bits for bits in FEW if str(bits) not in done]:
        if not possible_sizes(subject.directory, Target(bits=bits)).possible:
            continue
        whole, pruned = (searched(subject, folder, bits=bits, prune=prune) for prune in (False, True))
        kept = [[one["kept"], one["units"]] for one in pruned.search["pruning"]["channels"]]
        row = {"bytes": pruned.search["bytes"], "kept": kept, "kl": kl(subject, pruned)}
        row["whole"] = kl(subject, whole) if pruned != whole else row["kl"]
        yield str(bits), row | {"ratio": row["kl"] / row["whole"]}


def one_scheme(scheme: str, heads: Sequence[str] = ()) -> Recipe:
    """Every linear layer by GPTQ and the embedding to nearest, as a search's recipe has them, all to one scheme."""
    options = {"scheme": scheme, "range_search": "mse", "group_size_mismatch": "channel", "tie": "keep"}
    return Recipe.load(
        {
            "stages": [
                {"gptq": {**options, "targets": {"include": ["*", *heads]}}},
                {"rtn": {**options, "targets": {"include": ["@embedding"]}}},
            ],
            "export": {"format": "native"},
        }
    )


def made(subject: Subject, recipe: Recipe) -> Any:
    """The model that a recipe makes, in memory."""
    model = load_float(subject.directory)
    if not needs_data(recipe.stages):
        return apply_recipe(model, recipe, inplace=True).model.float().eval()
    data = calibration_data(Calibration(dataset=subject.dataset, **ROWS), subject.directory, subject.data)(model)
    training = TrainingTask(batches=data.training_batches(recipe.calibration.training_batch))
    made = apply_recipe(model, recipe, inplace=True, batches=data.batches(), training=training)
    return made.model.float().eval()


def kl(subject: Subject, recipe: Recipe) -> float:
    """Mean KL per token over the evaluation text."""
    with torch.no_grad():
        first, second = (
            LanguageModel.from_directory(model, subject.directory)
            for model in (load_float(subject.directory).float().eval(), made(subject, recipe))
        )
        found = divergence(first, second, [subject.task], DataSource(subject.data))[subject.task]
    return round(float(found["metrics"]["token_kl"]), 6)


def loss(subject: Subject, folder: Path, seeds: int, done: Set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The growth of perplexity on rows that were not seen, for each seed."""
    metric, most = LOSSES[subject.name]
    model = load_float(subject.directory).float().eval()
    settings = Calibration(dataset=subject.dataset, samples=1_000_000, seq_len=256, allow_short=True)
    every = calibration_data(settings, subject.directory, subject.data)(model).ids
    for seed in [seed for seed in range(seeds) if str(seed) not in done]:
        recipe = searched(
            subject, folder, max_loss=most, metric=metric, seed=seed, effort="fast", method="rtn", held_out_rows=48,
        )  # fmt: skip
        drawn = Calibration(dataset=subject.dataset, samples=8 + 2 * 48, seq_len=256, seed=seed)
        seen = calibration_data(drawn, subject.directory, subject.data)(model).ids
        known = {tuple(row) for row in seen.tolist()}
        unseen = torch.tensor([row for row in every.tolist() if tuple(row) not in known])
        judged = unseen[torch.randperm(len(unseen), generator=torch.Generator().manual_seed(seed))[:400]]
        rows = RowLosses(model, in_batches(judged))
        grown = fmean(rows.of(made(subject, recipe), metric))
        if metric == "perplexity":
            grown = math.expm1(grown)
        yield str(seed), {
            "bits": recipe.search["bits_per_weight"], "bound": min(
                look["bound"] for look in recipe.search["looks"] if look["bytes"] == recipe.search["bytes"]
            ),
            "grown": grown, "kept": grown <= most, "unseen_rows": len(judged),
        }  # fmt: skip


def scores(subject: Subject, folder: Path, _: int, done: Set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """How gradient scores rank the pairs, beside measured KL of each change alone."""
    if "all" in done:
        return
    record = searched(subject, folder, bits=4.25, effort="best").search
    pairs = [
        (one["first"], one["second"], one["measured"])
        for group in record["groups"]
        for one in group["candidates"]
        if one["scheme"] != "float"
    ]
    first, second, measured = zip(*pairs, strict=True)
    yield (
        "all",
        {
            "pairs": len(pairs),
            "spearman_first": float(spearmanr(first, measured).statistic),
            "spearman_second": float(spearmanr(second, measured).statistic),
        },
    )


def cost(subject: Subject, folder: Path, _: int, done: Set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Processor seconds and peak memory of commands, each in a process of its own."""
    data = ["--dataset", subject.dataset, "--data-dir", str(subject.data), "--threads", "1"]
    calibrated = ["--samples", "128", "--seq-len", "256"]
    model = str(subject.directory)
    jobs = {
        "quantization": ["quantize", model, "-o", str(folder / "q"), "-r", "gptq-w4a16-channel", *data, *calibrated],
        "search, fast": ["search", model, "-o", str(folder / "f.yaml"), "--bits", "4.25", "--effort", "fast", *data],
        "search, default": ["search", model, "-o", str(folder / "n.yaml"), "--bits", "4.25", *data],
        "search, --prune": ["search", model, "-o", str(folder / "p.yaml"), "--bits", "2.5", "--prune", *data],
    }
    for name, words in [job for job in jobs.items() if job[0] not in done]:
        process = subprocess.Popen(
            [sys.executable, "-m", "goldstick.cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        assert status == 0, f"{' '.join(words)} ended with {status}"
        seconds = used.ru_utime + used.ru_stime
        yield name, {"processor_seconds": round(seconds, 1), "peak_bytes": used.ru_maxrss * 1024}


MEASURES = {"sizes": sizes, "uniform": uniform, "channels": channels, "loss": loss, "scores": scores, "cost": cost}


def rows_of(what: str, model: str) -> frozenset[str]:
    """The rows that are in the file."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    return frozenset(results.get(what, {}).get(model, {}))


def save(what: str, model: str, row: str, found: dict[str, Any]) -> None:
    """Put a row into the file, in the place of an older one."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results.setdefault(what, {}).setdefault(model, {})[row] = found
    results["versions"] = environment()
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
