"""The scores of (layers, candidate) pairs: from gradients for all, measured for those near the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

from goldstick.calibration.end_gradients import FloatBlocks
from goldstick.core.division import windows
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.jobs.search.gradient_scores import GradientScore, gradient_scores
from goldstick.jobs.search.journal import Journal
from goldstick.jobs.search.knapsack import Choice, Front, Option
from goldstick.jobs.search.layers import FLOAT, Group, Layers
from goldstick.jobs.search.losses import RowLosses
from goldstick.jobs.search.rounding import RoundedLayers
from goldstick.structure.network import Network

#: Candidates that each of several ranks measures before what all found is told to all, and kept.
_AT_A_TIME = 4


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What is known of one candidate of a group.

    Attributes:
        gradient: By gradients.
        measured: Mean KL per token in nats with that change alone; ``None`` where it was not measured.
    """

    gradient: GradientScore
    measured: float | None


class Scores:
    """What every candidate of every group costs, as far as it is known, and the best choices by it.

    Args:
        layers: The groups.
        network: The model, in float32.
        rounded: Rounds its layers.
        rows: What changes cost on the rows of the search.
        journal: Where measurements are kept.
        seed: Of the labels that gradients are taken of.
        progress: Told what is done.
        ranks: Who measures together: the rows of gradients, and the candidates, are divided over them.
        floats: Loads the model's blocks, where they are not in memory.
    """

    def __init__(
        self,
        layers: Layers,
        network: Network,
        rounded: RoundedLayers,
        rows: RowLosses,
        journal: Journal,
        *,
        seed: int = 0,
        progress: Progress = quiet,
        ranks: Ranks | None = None,
        floats: FloatBlocks | None = None,
    ) -> None:
        self._floats = floats
        self._ranks = ranks or Ranks()
        self.layers, self._network, self._rounded, self.rows = layers, network, rounded, rows
        self._journal, self._progress = journal, progress
        self.gradients = self._gradients(seed)

    @property
    def pairs(self) -> dict[tuple[str, str], Pair]:
        """What is known now."""
        return {
            (group, scheme): Pair(gradient=score, measured=self._measured(group, scheme))
            for (group, scheme), score in self.gradients.items()
        }

    def losses(self) -> dict[tuple[str, str], float]:
        """The loss of each pair: measured, or the second order times what measuring its group gave beside it."""
        found = {}
        for group in self.layers.groups:
            ratio = self._ratio(group)
            for scheme in group.nbytes:
                measured = self._measured(group.name, scheme)
                second = 0.0 if scheme == FLOAT else self.gradients[group.name, scheme].second
                found[group.name, scheme] = ratio * second if measured is None else measured
        return found

    def front(self) -> Front:
        """The best choices for every size."""
        losses = self.losses()
        return Front(
            [
                [Option(nbytes=size, loss=losses[group.name, scheme]) for scheme, size in group.nbytes.items()]
                for group in self.layers.groups
            ]
        )

    def chosen(self, choice: Choice) -> dict[str, str]:
        """Group → scheme."""
        pairs = zip(self.layers.groups, choice.picks, strict=True)
        return {group.name: list(group.nbytes)[pick] for group, pick in pairs}

    def measure_near(self, chosen: Mapping[str, str], width: int = 1) -> bool:
        """Measure what was chosen, and the next ``width`` smaller and larger ones that lose less than those smaller.

        Returns:
            Whether anything was measured that was not known.
        """
        wanted = []
        losses = self.losses()
        for group in self.layers.groups:
            good = unbeaten(group, losses, chosen[group.name])
            place = good.index(chosen[group.name])
            near = good[max(0, place - width) : place + width + 1]
            wanted += [(group, scheme) for scheme in near if self._measured(group.name, scheme) is None]
        self.measure(wanted)
        return bool(wanted)

    def measure_all(self) -> None:
        """Measure every candidate."""
        self.measure(
            [
                (group, scheme)
                for group in self.layers.groups
                for scheme in group.nbytes
                if self._measured(group.name, scheme) is None
            ]
        )

    def measure(self, pairs: Sequence[tuple[Group, str]]) -> None:
        """Measure the mean KL with each change alone, runs beginning at the changed block."""
        self._measure({_alone(group.name, scheme): {group.name: scheme} for group, scheme in pairs})

    def together(self, choices: Sequence[Mapping[str, str]]) -> list[float]:
        """Mean KL on the same rows of whole choices, group → scheme each."""
        asked = {"searched " + " ".join(choice.values()): choice for choice in choices}
        self._measure({key: choice for key, choice in asked.items() if self._journal.get(key) is None})
        return [self._journal.get("searched " + " ".join(choice.values())) for choice in choices]

    def _measure(self, asked: Mapping[str, Mapping[str, str]]) -> None:
        """Measure the mean KL with some groups changed, for each key of the journal."""
        keys = list(asked)
        sites = {group.name: group.sites for group in self.layers.groups}

        def measured(number: int) -> float:
            self._progress("measuring layers", number, len(keys))
            chosen = asked[keys[number]]
            with self._rounded.become({site.name: scheme for name, scheme in chosen.items() for site in sites[name]}):
                return _rounded_number(fmean(self.rows.kl()))

        for part in windows([1] * len(keys), self._ranks.count * (1 if self._ranks.alone else _AT_A_TIME)):
            found = self._ranks.each([1] * len(part), partial(_in, part, measured))
            for number, value in zip(part, found, strict=True):
                self._journal.keep(keys[number], value)
        if keys:
            self._progress("measuring layers", len(keys), len(keys))

    def _measured(self, group: str, scheme: str) -> float | None:
        known: float | None = 0.0 if scheme == FLOAT else self._journal.get(_alone(group, scheme))
        return known

    def _ratio(self, group: Group) -> float:
        """What measuring gave over the second order: the median of a group, or of all where none of it was measured."""
        return median(self._ratios([group]) or self._ratios(self.layers.groups) or [1.0])

    def _ratios(self, groups: Sequence[Group]) -> list[float]:
        found = []
        for group in groups:
            for scheme in group.nbytes:
                measured = self._measured(group.name, scheme)
                if scheme != FLOAT and measured is not None and self.gradients[group.name, scheme].second > 0:
                    found.append(measured / self.gradients[group.name, scheme].second)
        return found

    def _gradients(self, seed: int) -> dict[tuple[str, str], GradientScore]:
        keys = [(group.name, scheme) for group in self.layers.groups for scheme in group.nbytes if scheme != FLOAT]
        known = [self._journal.get(f"gradient {group} {scheme}") for group, scheme in keys]
        if None not in known:
            return {key: GradientScore(first=one[0], second=one[1]) for key, one in zip(keys, known, strict=True)}
        candidates = {group.name: [s for s in group.nbytes if s != FLOAT] for group in self.layers.groups}
        found = gradient_scores(
            self._network,
            self.rows.batches,
            {group.name: group.sites for group in self.layers.groups if candidates[group.name]},
            candidates,
            self._rounded,
            seed=seed,
            progress=self._progress,
            ranks=self._ranks,
            floats=self._floats,
        )
        kept = {
            key: GradientScore(first=_rounded_number(one.first), second=_rounded_number(one.second))
            for key, one in found.items()
        }
        self._journal.keep_all({f"gradient {g} {s}": [one.first, one.second] for (g, s), one in kept.items()})
        return kept


def _in(part: range, measured: Callable[[int], float], place: int) -> float:
    return measured(part[place])


def _alone(group: str, scheme: str) -> str:
    """The key of a change alone."""
    return f"kl {group} {scheme}"


def unbeaten(group: Group, losses: Mapping[tuple[str, str], float], kept: str) -> list[str]:
    """Candidates in the order of their bytes, each losing less than all smaller ones; and one more."""
    found: list[str] = []
    least = float("inf")
    for scheme in group.nbytes:
        if losses[group.name, scheme] < least or scheme == kept:
            found.append(scheme)
            least = min(least, losses[group.name, scheme])
    return found


def _rounded_number(value: float) -> float:
    """Six digits: what comes behind them may depend on the number of threads."""
    return float(f"{value:.6g}")
