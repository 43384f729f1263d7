"""Search: which layer becomes what, for the least loss at a size, or the least size at a loss."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from torch import nn

from goldstick.core.agreement import require_same, sizes_of
from goldstick.core.versions import versions
from goldstick.errors import UsageError
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.save.result import apply_recipe
from goldstick.jobs.search.bound import MOST_LOOKS, upper_bound
from goldstick.jobs.search.exchange import exchange
from goldstick.jobs.search.in_place import choose_in_place
from goldstick.jobs.search.in_turn import SearchedModel
from goldstick.jobs.search.journal import Journal, states_of
from goldstick.jobs.search.knapsack import Choice
from goldstick.jobs.search.layer_inputs import inputs_as_calibrated
from goldstick.jobs.search.layers import FLOAT, Layers
from goldstick.jobs.search.losses import Metric, RowLosses
from goldstick.jobs.search.record import found_by
from goldstick.jobs.search.rounding import RoundedLayers
from goldstick.jobs.search.rows import Rows, digest_of_texts, draw_rows, in_batches
from goldstick.jobs.search.scores import Scores
from goldstick.jobs.search.settings import SearchSettings
from goldstick.jobs.search.shortage import recipe_data
from goldstick.jobs.search.target import Found, Target
from goldstick.jobs.search.weight_files import weight_file_bytes
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe
from goldstick.training import TrainingTask

#: Times that the choice is made anew after what it chose was measured.
_ROUNDS = {"fast": 0, "default": 6, "best": 0}
#: Exchanges that are tried.
_EXCHANGES = {"fast": 0, "default": 12, "best": 48}
#: Times that the choice is made anew by losses in place, and by what part losses alone must fail to add up for it.
_IN_PLACE = {"fast": (0, 0.0), "default": (2, 0.25), "best": (4, 0.0)}


class Search:
    """The state of a search: the model in memory, the rows, the scores.

    Args:
        layers: What is chosen among.
        target: What is asked for.
        settings: How it is looked for.
        model: The float model, where it is in memory already.
        whole: The search of the model before channels were cut out of it, which this one is judged beside.
        part: What tells this search's measurements from those of ``whole``, in whose journal they lie.

    Attributes:
        offset: What the float model loses beside that of ``whole``.
        texts: What tells the texts that are read from others.
    """

    def __init__(
        self,
        layers: Layers,
        target: Target,
        settings: SearchSettings,
        model: nn.Module | None = None,
        whole: Search | None = None,
        part: str = "",
    ) -> None:
        self.layers, self.target, self.settings = layers, target, settings
        self.rows: Rows
        self.tuning: RowLosses
        self.check: RowLosses
        self.journal: Journal
        self.texts: str
        self.effort, self.progress, self.text = settings.effort, settings.progress, settings.text
        ranks, text, data_dir = settings.ranks, settings.text, settings.data_dir
        self.searched = SearchedModel(layers.directory, layers.weights, model)
        model, network = self.searched.model, self.searched.network
        held_out = settings.held_out, settings.held_out_rows
        looks_at_data = layers.method != "rtn" or settings.prune
        given = text, settings.held_out, layers.calibration if looks_at_data else None
        self.texts = digest_of_texts(*given, data_dir) if whole is None else whole.texts
        self.rows = draw_rows(model, layers.directory, text, *held_out, data_dir) if whole is None else whole.rows
        rows = self.rows
        asked = {"target": repr(target), "effort": self.effort, "method": layers.method, "text": rows.fingerprint}
        require_same(ranks, asked | {"model": sizes_of(layers.directory)})
        inputs = inputs_as_calibrated(layers, self.searched, data_dir, self.progress, ranks)
        self.rounded = RoundedLayers(network, layers.runtime, self.searched.dtypes, inputs, self.searched)
        self.tuning = RowLosses(model, in_batches(rows.tuning), ranks, whole.tuning.right if whole else None)
        self.check = RowLosses(model, in_batches(rows.check), ranks, whole.check.right if whole else None)
        self.held_out = settings.held_out or f"{text.dataset}, rows that were not searched on"
        identity = {
            "source": states_of(layers.directory),
            "rows": rows.fingerprint,
            "groups": {group.name: dict(group.nbytes) for group in layers.groups},
            "seed": text.seed,
            "versions": versions(),
            "ranges": [layers.runtime.search, layers.runtime.data_search],
            "rounded": repr((layers.method, layers.calibration)) if inputs else "to nearest",
            "calibrated": self._data() if looks_at_data else "",
        }
        self.journal = Journal(settings.journal, identity, ranks) if whole is None else whole.journal.part(part)
        self.offset = 0.0 if whole is None else fmean(self.tuning.kl())
        self.scores = Scores(
            layers, network, self.rounded, RowLosses(model, in_batches(rows.searched)), self.journal,
            seed=text.seed, progress=self.progress, ranks=ranks, floats=self.searched,
        )  # fmt: skip

    def _data(self) -> str:
        """What tells the data that layers are calibrated, or channels scored, on from others."""
        layers = self.layers
        return recipe_data(layers, layers.calibration, self.searched.model, self.settings.data_dir).fingerprint

    def run(self) -> Found:
        """Search."""
        if self.effort == "best":
            self.scores.measure_all()
        if self.target.max_loss is None:
            chosen, nbytes = self._at(self.target.bytes_of(self.layers), exchanged=True)
            looks: list[dict[str, Any]] = []
        else:
            chosen, nbytes, looks = self._within_loss(self.target.max_loss)
        return found_by(self, chosen, nbytes, looks)

    def _at(self, size: int, *, exchanged: bool) -> tuple[dict[str, str], int]:
        """The best choice whose weight files have at most so many bytes: group → scheme, and the bytes."""
        choice, overhead = self._fitting(size)
        for _ in range(_ROUNDS[self.effort]):
            if not self.scores.measure_near(self.scores.chosen(choice)):
                break
            choice, overhead = self._fitting(size)
        chosen = self.scores.chosen(choice)
        if exchanged and _EXCHANGES[self.effort]:
            room, alone = size - overhead - self.layers.fixed, self.scores.losses()
            chosen = choose_in_place(
                self.layers, alone, chosen, room, self.scores.together,
                lambda tried: self._file_bytes(tried) <= size, *_IN_PLACE[self.effort],
            )  # fmt: skip
            better = exchange(self.layers, alone, chosen, room, self.whole, _EXCHANGES[self.effort], self.progress)
            chosen = better if self._file_bytes(better) <= size else chosen  # headers may have grown
        return chosen, self._file_bytes(chosen)

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
        sites = self.sites(chosen)
        if all(scheme == FLOAT for scheme in sites.values()):
            return self.layers.source
        return weight_file_bytes(make_plan(self.layers.directory, self.layers.recipe(sites)))

    def sites(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Site → scheme, of group → scheme."""
        return {site.name: chosen[group.name] for group in self.layers.groups for site in group.sites}

    def whole(self, chosen: Mapping[str, str]) -> float:
        """Mean KL of all changes together on the rows that exchanges are judged on, rounded to nearest."""
        return self._together(chosen)[0]

    def grown(self, chosen: Mapping[str, str]) -> float:
        """By what part perplexity grows on the same rows."""
        return self._together(chosen)[1]

    def _together(self, chosen: Mapping[str, str]) -> list[float]:
        sites = self.sites(chosen)
        key = "together " + " ".join(sites.values())
        known: list[float] | None = self.journal.get(key)
        if known is None:
            with self.rounded.become(sites):
                kl, larger = self.tuning.both()
            known = [float(f"{value:.6g}") for value in (fmean(kl), math.expm1(fmean(larger)))]
            self.journal.keep(key, known)
        return known

    def made(self, recipe: Recipe) -> nn.Module:
        """The model that a recipe makes, as a quantization would."""
        model, given = load_float(self.layers.directory), recipe.calibration
        if not needs_data(recipe.stages):
            return apply_recipe(model, recipe, inplace=True).model.eval()
        data = recipe_data(self.layers, given, model, self.settings.data_dir)
        training = TrainingTask(batches=data.training_batches(given.training_batch))
        return apply_recipe(model, recipe, inplace=True, batches=data.batches(), training=training).model.eval()

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
        sites = self.sites(chosen)
        if all(scheme == FLOAT for scheme in sites.values()):
            return [0.0] * sum(len(batch["input_ids"]) for batch in self.check.batches)
        return self.losses_made(self.layers.recipe(sites), self.check, self.target.metric)

    def losses_made(self, recipe: Recipe, rows: RowLosses, metric: Metric) -> list[float]:
        """What the model that a recipe makes loses on each of some rows of this search; kept in the journal."""
        where = "check" if rows is self.check else "tuning"
        key = f"made {where} {metric} {hashlib.sha256(recipe.model_dump_json().encode()).hexdigest()}"
        known: list[float] | None = self.journal.get(key)
        if known is None:
            known = [float(f"{loss:.6g}") for loss in rows.of(self.made(recipe), metric)]
            self.journal.keep(key, known)
        return known

    def _loss(self, losses: Sequence[float]) -> float:
        return math.expm1(fmean(losses)) if self.target.metric == "perplexity" else fmean(losses)
