"""Search: the recipe of the least loss at a size, or of the least size at a loss."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from torch import nn

from goldstick.core.progress import Progress, quiet
from goldstick.errors import RecipeError, UsageError
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.save.result import apply_recipe
from goldstick.jobs.search.bound import MOST_LOOKS, upper_bound
from goldstick.jobs.search.exchange import exchange
from goldstick.jobs.search.journal import Journal
from goldstick.jobs.search.knapsack import Choice
from goldstick.jobs.search.layers import FLOAT, Layers, Method, find_layers
from goldstick.jobs.search.losses import Metric, RowLosses
from goldstick.jobs.search.rounding import RoundedLayers
from goldstick.jobs.search.runtimes import RUNTIMES, RuntimeName
from goldstick.jobs.search.scores import Scores
from goldstick.jobs.search.weight_files import weight_file_bytes
from goldstick.recipes.recipe import Calibration, Recipe
from goldstick.structure.network import Network

Effort = Literal["fast", "normal", "thorough"]

#: Times that the choice is made anew after what it chose was measured.
_ROUNDS = {"fast": 0, "normal": 6, "thorough": 0}
#: Exchanges that are tried.
_EXCHANGES = {"fast": 0, "normal": 12, "thorough": 48}
#: Sizes of the front at which the whole model is measured, for the page.
_SHOWN = 9


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is asked for; exactly one of the first three.

    Attributes:
        size: Bytes of the weight files, at most.
        bits: Bits of those files for each weight of the model, at most.
        max_loss: The largest loss: a fraction by which perplexity grows, or KL per token in nats.
        share: Part of the bytes of the source's tensors, at most.
        metric: What ``max_loss`` is of.
    """

    size: int | None = None
    bits: float | None = None
    share: float | None = None
    max_loss: float | None = None
    metric: Metric = "perplexity"

    def __post_init__(self) -> None:
        given = [value for value in (self.size, self.bits, self.share, self.max_loss) if value is not None]
        if len(given) != 1:
            raise UsageError("Ask for one thing: a size, bits a weight, a part of the size, or a largest loss.")
        if not (math.isfinite(given[0]) and given[0] > 0):
            raise UsageError(f"What is asked for is a number above 0, not {given[0]!r}.")

    def bytes_of(self, layers: Layers) -> int:
        """Bytes of the weight files, where a size is asked for."""
        if self.size is not None:
            return self.size
        return int(self.bits * layers.weights / 8 if self.bits is not None else (self.share or 0) * layers.source)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        recipe: The recipe.
        nbytes: Bytes of its weight files.
        record: Everything that the page shows, as plain data.
    """

    recipe: Recipe
    nbytes: int
    record: dict[str, Any]


def search_recipe(
    directory: Path,
    target: Target,
    *,
    text: Calibration,
    runtime: RuntimeName = "goldstick",
    schemes: Sequence[str] = (),
    method: Method = "gptq",
    effort: Effort = "normal",
    calibration: Calibration | None = None,
    held_out: str | None = None,
    held_out_rows: int = 32,
    data_dir: Path | None = None,
    journal: Path | None = None,
    progress: Progress = quiet,
) -> Found:
    """Find which layer becomes what.

    Args:
        directory: A float checkpoint of a causal language model; it is in memory as a whole, in float32.
        target: What is asked for.
        text: The rows that changes are measured on, and their seed.
        runtime: What the result is for.
        schemes: What to choose among, instead of all that the runtime runs.
        method: How layers are rounded in the end; the search itself rounds to nearest.
        effort: ``fast`` takes gradients alone; ``normal`` measures what is near the decision and tries exchanges;
            ``thorough`` measures all.
        calibration: The data of the recipe that is found.
        held_out: Text of the rows that a choice is judged on; other rows of ``text`` where ``None``.
        held_out_rows: How many these are.
        data_dir: Where sets of text known by name lie.
        journal: The file that lets a search that was stopped go on.
        progress: Told what is done.

    Raises:
        UsageError: Nothing so small, or of so little loss, can be made; the message says what the best is.
        RecipeError: A scheme is unknown, or fits no layer.
        DataError: The text is missing, malformed or too short.
    """
    layers = find_layers(
        directory, RUNTIMES[runtime], method=method, calibration=calibration or Calibration(), schemes=schemes
    )
    if target.max_loss is None:
        refuse_size(layers, target.bytes_of(layers))
    search = _Search(layers, target, text, held_out, held_out_rows, data_dir, journal, effort, progress)
    return search.run()


def refuse_size(layers: Layers, size: int) -> None:
    """Refuse a size below the smallest that can be made; UsageError, which names that."""
    least = smallest(layers)
    if size < least:
        raise UsageError(
            f"{size:,} bytes are less than the smallest this model can be in the format {layers.runtime.format}: "
            f"{least:,} bytes ({8 * least / layers.weights:.3g} bits a weight). Ask for more, or give smaller schemes."
        )


def smallest(layers: Layers) -> int:
    """Bytes of the weight files where each layer is as small as it can be."""
    chosen = {site.name: next(iter(group.nbytes)) for group in layers.groups for site in group.sites}
    return weight_file_bytes(make_plan(layers.directory, layers.recipe(chosen)))


class _Search:
    """The state of a search: the model in memory, the rows, the scores."""

    def __init__(
        self,
        layers: Layers,
        target: Target,
        text: Calibration,
        held_out: str | None,
        held_out_rows: int,
        data_dir: Path | None,
        journal: Path | None,
        effort: Effort,
        progress: Progress,
    ) -> None:
        self.layers, self.target, self.effort, self.progress, self.text = layers, target, effort, progress, text
        self.data_dir = data_dir
        model = load_float(layers.directory)
        stored = Network(model)
        dtypes = {site.name: site.dtype for site in stored.sites}
        both = text.samples if held_out else text.samples + 2 * held_out_rows
        data = calibration_data(text.model_copy(update={"samples": both}), layers.directory, data_dir)(model)
        model = model.float().eval()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        ids = data.ids
        judged = ids[text.samples :]
        if held_out:
            other = text.model_copy(update={"dataset": held_out, "samples": 2 * held_out_rows})
            judged = calibration_data(other, layers.directory, data_dir)(model).ids
        network = Network(model)
        self.rounded = RoundedLayers(network, layers.runtime, dtypes)
        self.tuning = RowLosses(model, _batches(judged[:held_out_rows]))
        self.check = RowLosses(model, _batches(judged[held_out_rows:]))
        self.held_out = held_out or f"{text.dataset}, rows that were not searched on"
        identity = {
            "source": {str(path): list(state) for path, state in _states(layers.directory).items()},
            "data": data.fingerprint,
            "groups": {group.name: dict(group.nbytes) for group in layers.groups},
            "seed": text.seed,
            "judged": hashlib.sha256(repr(judged.tolist()).encode()).hexdigest(),
        }
        self.journal = Journal(journal, identity)
        self.scores = Scores(
            layers, network, self.rounded, RowLosses(model, _batches(ids[: text.samples])), self.journal,
            seed=text.seed, progress=progress,
        )  # fmt: skip

    def run(self) -> Found:
        if self.effort == "thorough":
            self.scores.measure_all()
        if self.target.max_loss is None:
            chosen, nbytes = self._at(self.target.bytes_of(self.layers), exchanged=True)
            looks: list[dict[str, Any]] = []
        else:
            chosen, nbytes, looks = self._within_loss(self.target.max_loss)
        found = self._found(chosen, nbytes, looks)
        self.journal.remove()
        return found

    def _at(self, size: int, *, exchanged: bool) -> tuple[dict[str, str], int]:
        """The best choice whose weight files have at most so many bytes: group → scheme, and the bytes."""
        choice, overhead = self._fitting(size)
        for _ in range(_ROUNDS[self.effort]):
            if not self.scores.measure_near(self.scores.chosen(choice)):
                break
            choice, overhead = self._fitting(size)
        chosen = self.scores.chosen(choice)
        if exchanged and _EXCHANGES[self.effort]:
            room = size - overhead - self.layers.fixed
            chosen = exchange(
                self.layers, self.scores.losses(), chosen, room, self._whole, _EXCHANGES[self.effort], self.progress
            )
        nbytes = self._file_bytes(chosen)
        return (chosen, nbytes) if nbytes <= size else (self.scores.chosen(choice), self._file_bytes_of(choice))

    def _fitting(self, size: int) -> tuple[Choice, int]:
        """The best choice whose files, headers and filling counted, fit; and the bytes that are no tensors."""
        front, overhead = self.scores.front(), 0
        best: tuple[Choice, int] | None = None
        for _ in range(12):
            choice = front.within(size - overhead - self.layers.fixed)
            if choice is None:
                break
            nbytes = self._file_bytes_of(choice)
            real = nbytes - choice.nbytes - self.layers.fixed
            if nbytes <= size:
                best = choice, real
                if real >= overhead:
                    break
            overhead = max(real, overhead + 8) if nbytes > size else real
        if best is not None:
            return best
        choice = front.at(0)
        return choice, self._file_bytes_of(choice) - choice.nbytes - self.layers.fixed

    def _file_bytes_of(self, choice: Choice) -> int:
        return self._file_bytes(self.scores.chosen(choice))

    def _file_bytes(self, chosen: Mapping[str, str]) -> int:
        sites = self._sites(chosen)
        if all(scheme == FLOAT for scheme in sites.values()):
            return self.layers.source
        return weight_file_bytes(make_plan(self.layers.directory, self.layers.recipe(sites)))

    def _sites(self, chosen: Mapping[str, str]) -> dict[str, str]:
        return {site.name: chosen[group.name] for group in self.layers.groups for site in group.sites}

    def _whole(self, chosen: Mapping[str, str]) -> float:
        """Mean KL of all changes together on the rows that exchanges are judged on, rounded to nearest."""
        sites = self._sites(chosen)
        key = "whole " + " ".join(sites.values())
        known: float | None = self.journal.get(key)
        if known is None:
            with self.rounded.become(sites):
                known = float(f"{fmean(self.tuning.kl()):.6g}")
            self.journal.keep(key, known)
        return known

    def _real(self, recipe: Recipe, rows: RowLosses, metric: Metric) -> list[float]:
        """What the model that a recipe makes loses on each row."""
        return rows.of(self._made(recipe), metric)

    def _made(self, recipe: Recipe) -> nn.Module:
        model = load_float(self.layers.directory)
        batches: list[Any] = []
        if self.layers.method == "gptq":
            batches = calibration_data(recipe.calibration, self.layers.directory, self.data_dir)(model).batches()
        return apply_recipe(model, recipe, inplace=True, batches=batches).model.eval()

    def _within_loss(self, most: float) -> tuple[dict[str, str], int, list[dict[str, Any]]]:
        """The smallest choice whose loss on rows not searched on is within the bound with 95 % confidence."""
        confidence = 1 - 0.05 / MOST_LOOKS
        front = self.scores.front()
        low, high = int(front.nbytes[0]), int(front.nbytes[-1])
        overhead = self._fitting(high + self.layers.fixed)[1] + self.layers.fixed
        looks: list[dict[str, Any]] = []
        best: tuple[dict[str, str], int] | None = None
        for look in range(MOST_LOOKS):
            # The largest first: where not even that is within the bound, nothing is.
            size = high if look == 0 else int(math.sqrt(low * high))
            chosen, nbytes = self._at(size + overhead, exchanged=False)
            self.progress("looking at sizes", look, MOST_LOOKS)
            losses = self._losses_of(chosen)
            bound = upper_bound(losses, confidence)
            if self.target.metric == "perplexity":
                bound = math.expm1(bound)
            looks.append(
                {
                    "bytes": nbytes,
                    "loss": self._loss(losses),
                    "bound": bound,
                    "kept": bound <= most,
                    "float": set(chosen.values()) == {FLOAT},
                }
            )
            if bound <= most:
                best, high = (chosen, nbytes), size
            elif look == 0:
                break
            else:
                low = size
            if high <= low * 1.005:
                break
        self.progress("looking at sizes", MOST_LOOKS, MOST_LOOKS)
        if best is None or set(best[0].values()) == {FLOAT}:
            tried = [look for look in looks if not look["float"]] or looks
            least = min(tried, key=lambda look: look["bound"])
            raise UsageError(
                f"No choice keeps the {self.target.metric} loss within {most:g} with 95 % confidence on {len(losses)} "
                f"held-out rows. The best has a loss of {least['loss']:.4g}, at most {least['bound']:.4g}, in "
                f"{least['bytes']:,} bytes. Allow more, give more --held-out-rows, or schemes of more bits."
            )
        return (*best, looks)

    def _losses_of(self, chosen: Mapping[str, str]) -> list[float]:
        sites = self._sites(chosen)
        if all(scheme == FLOAT for scheme in sites.values()):
            return [0.0] * sum(len(batch["input_ids"]) for batch in self.check.batches)
        key = f"real {self.layers.method} {self.target.metric} {self.layers.calibration!r} " + " ".join(sites.values())
        known: list[float] | None = self.journal.get(key)
        if known is None:
            known = self._real(self.layers.recipe(sites), self.check, self.target.metric)
            self.journal.keep(key, known)
        return known

    def _loss(self, losses: Sequence[float]) -> float:
        return math.expm1(fmean(losses)) if self.target.metric == "perplexity" else fmean(losses)

    def _found(self, chosen: Mapping[str, str], nbytes: int, looks: list[dict[str, Any]]) -> Found:
        sites = self._sites(chosen)
        if all(scheme == FLOAT for scheme in sites.values()):
            raise RecipeError("Everything stays float at this size; ask for less.")
        losses = self.scores.losses()
        front = self.scores.front()
        recipe = self.layers.recipe(sites)
        recipe = recipe.model_copy(update={"description": self._description(nbytes)})
        overhead = nbytes - self.layers.fixed - sum(
            group.nbytes[chosen[group.name]] for group in self.layers.groups
        )  # fmt: skip
        record = {
            "goldstick_search": 1,
            "model": str(self.layers.directory),
            "for": self.layers.runtime.format,
            "asked": {key: value for key, value in vars(self.target).items() if value is not None},
            "bytes": nbytes,
            "bits_per_weight": 8 * nbytes / self.layers.weights,
            "bytes_of_source": self.layers.source,
            "exact": front.exact,
            "text": f"{self.text.samples} rows of {self.text.seq_len} tokens from {self.text.dataset}",
            "held_out": self.held_out,
            "whole": self._judged(chosen),
            "looks": looks,
            "groups": [
                {
                    "name": group.name,
                    "weights": sum(site.shape.numel() for site in group.sites),
                    "chosen": chosen[group.name],
                    "candidates": [
                        {
                            "scheme": scheme,
                            "bytes": size,
                            "loss": losses[group.name, scheme],
                            **self._known(group.name, scheme),
                        }
                        for scheme, size in group.nbytes.items()
                    ],
                }
                for group in self.layers.groups
            ],
            "front": self._points(front, overhead),
            "uniform": self._uniform(overhead),
        }
        return Found(recipe=recipe, nbytes=nbytes, record=record)

    def _description(self, nbytes: int) -> str:
        asked = {
            "at most {:,} bytes": self.target.size,
            "at most {:g} bits a weight": self.target.bits,
            "at most {:.4g} of the size": self.target.share,
            f"a {self.target.metric} loss of at most {{:g}}": self.target.max_loss,
        }
        (words,) = (text.format(value) for text, value in asked.items() if value is not None)
        return f"found by a search for {words}; weight files of {nbytes:,} bytes"

    def _known(self, group: str, scheme: str) -> dict[str, float | None]:
        if scheme == FLOAT:
            return {"first": 0.0, "second": 0.0, "measured": 0.0}
        pair = self.scores.pairs[group, scheme]
        return {"first": pair.gradient.first, "second": pair.gradient.second, "measured": pair.measured}

    def _judged(self, chosen: Mapping[str, str]) -> dict[str, float]:
        with self.rounded.become(self._sites(chosen)):
            losses = self.check.kl()
        return {"kl": fmean(losses), "half_width": 1.96 * stdev(losses) / math.sqrt(len(losses)), "rows": len(losses)}

    def _points(self, front: Any, overhead: int) -> list[dict[str, Any]]:
        """Up to 120 choices of the front, evenly by bytes' logarithm; some of them measured as a whole."""
        count = min(120, len(front))
        low, high = math.log(front.nbytes[0]), math.log(front.nbytes[-1])
        sizes = [math.exp(low + (high - low) * step / max(1, count - 1)) for step in range(count)]
        found = []
        for number, size in enumerate(sizes):
            choice = front.within(size + 1)
            chosen = self.scores.chosen(choice)
            measured = None
            if self.effort != "fast" and number % max(1, count // _SHOWN) == 0:
                measured = self._whole(chosen)
            found.append(
                {
                    "bytes": choice.nbytes + self.layers.fixed + overhead,
                    "loss": choice.loss,
                    "measured": measured,
                    "picks": choice.picks,
                }
            )
        return found

    def _uniform(self, overhead: int) -> list[dict[str, Any]]:
        """Every scheme that all layers can become, measured as a whole."""
        schemes = [
            scheme
            for scheme in self.layers.groups[0].nbytes
            if scheme != FLOAT and all(scheme in group.nbytes for group in self.layers.groups)
        ]
        found = []
        for done, scheme in enumerate(schemes if self.effort != "fast" else ()):
            self.progress("uniform schemes", done, len(schemes))
            nbytes = self.layers.fixed + overhead + sum(group.nbytes[scheme] for group in self.layers.groups)
            chosen = {group.name: scheme for group in self.layers.groups}
            found.append({"scheme": scheme, "bytes": nbytes, "measured": self._whole(chosen)})
        return found


def _batches(ids: Any) -> list[dict[str, Any]]:
    size = max(1, 512 // ids.shape[1])
    return [{"input_ids": ids[start : start + size]} for start in range(0, len(ids), size)]


def _states(directory: Path) -> dict[Path, tuple[int, int]]:
    return {
        Path(path.name): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(directory.glob("*"))
        if path.suffix in (".safetensors", ".json", ".gguf")
    }
