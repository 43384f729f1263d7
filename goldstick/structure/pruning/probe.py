"""Which channels can be cut together: found by masking them and watching who notices; no table of layers.

Channels of a layer are *masked* by zeros in its rows, and in the gains and shifts of the batch norms right behind it.
Layers whose columns are then zero read these channels and nothing else, and lose the columns. Where the channels are
added to others, nobody may lose anything: the batch norm then goes on giving zeros in their place. Everything is
accepted on one condition: that the network, with channels cut, computes what it computed with them masked, and in
training mode, where other branches may run, still runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from goldstick.structure.pruning.channel_masking import CHANGE_EPS, MaskedModel
from goldstick.structure.pruning.cut import channel_count
from goldstick.structure.pruning.prunable import Member, Prunable, cut_of
from goldstick.structure.rotation.trial import distance

#: A cut is accepted when the output moves by no more than this part of it, in float64.
TOLERANCE = 1e-9
#: How often channels are disturbed, with other noise, until every channel is seen by those who read one.
ROUNDS = 2


def find_in(
    trial: MaskedModel, candidates: Sequence[str], every: Sequence[str]
) -> tuple[list[Prunable], dict[str, str]]:
    """The groups whose channels ``candidates`` make, and for the others, path → why not. See the module's docstring.

    Rows of ``every`` layer may be found to go with them.
    """
    found: list[Prunable] = []
    refused: dict[str, str] = {}
    taken: set[str] = set()
    for path in candidates:
        if path in taken:
            continue
        group = _Probe(trial, path).group(every)
        if isinstance(group, Prunable):
            found.append(group)
            taken |= {member.module for member in group.members if member.side == "output"}
        else:
            refused[path] = group
    return found, {path: reason for path, reason in refused.items() if path not in taken}


def holds_in(trial: MaskedModel, groups: Sequence[Prunable]) -> bool:
    """Whether groups that were found in a block of the same layers and shapes can be cut in this one, too."""
    return all(_Probe(trial, group.name).again(group) is not None for group in groups)


class _Probe:
    """What happens to the channels that one layer makes."""

    def __init__(self, trial: MaskedModel, path: str) -> None:
        self.trial, self.path = trial, path
        self.moved: dict[tuple[str, int], Tensor] = {}  # (layer, bit) → which of its inputs have moved so far
        self.width = channel_count(trial.module.get_submodule(path), "output") or 0
        self.training_differs = False  # whether a cut was right in evaluation mode alone

    def group(self, every: Sequence[str]) -> Prunable | str:
        """The group, or why there is none."""
        if self.path not in self.trial.before:
            return f"it is called {self.trial.calls.get(self.path, 0)} times"
        if channel_count(self.trial.module.get_submodule(self.path), "output") is None:
            return "its convolution is grouped, and channels of such cannot be cut one by one"
        if self.width < 2:
            return "it has one channel"
        half = torch.zeros(self.width, dtype=torch.bool)
        half[torch.randperm(self.width, generator=self.trial.generator)[: self.width // 2]] = True
        for _ in range(ROUNDS):
            # What reads mixtures hears some channels by chance more than others, and is no reader.
            mapped = {path: units for path, units in self._readers().items() if self._even(units)}
            norms, loud = self._mask(mapped, half)
            readers = [path for path in mapped if path not in norms]
            rows = [Member(module=self.path, side="output", units=tuple(range(self.width)))]
            rows += [Member(module=path, side="output", units=tuple(mapped[path].tolist())) for path in norms]
            last = norms[-1] if norms else None
            if loud:
                break
            columns = [Member(module=path, side="input", units=tuple(mapped[path].tolist())) for path in readers]
            for members, units in self._attempts(rows, columns, every) if columns else ():
                group = self._accepted(members, units, last, None)
                if group is not None:
                    return group
        scattered = None if last is None else self._accepted(rows, self.width, last, last)
        if scattered is not None:
            return scattered
        if self.training_differs:
            return "in training mode more reads its channels than in evaluation mode, and would miss them"
        if readers and not loud:
            return "cutting it, with all that was found to go with it, changes what the network computes"
        return "its channels are added to others or leave the network, and no batch norm stands behind it"

    def again(self, group: Prunable) -> Prunable | None:
        """A group that is known already, if it is one here."""
        return self._accepted(group.members, group.units, group.norm, group.scattered)

    def _readers(self) -> dict[str, Tensor]:
        """Path → for each input channel the one channel of this layer that moves it, or −1.

        Channels get binary numbers from 1 on; in run k all are disturbed whose number has bit k. What mixes channels is
        moved in every run, and no channel has that number. Each call adds a round of such runs to those before.
        """
        numbers = torch.arange(1, self.width + 1)
        for bit in range((self.width + 1).bit_length()):
            for path, found in self.trial.changed(self.trial.watch(self.path, (numbers >> bit) & 1)).items():
                self.moved[path, bit] = self.moved.get((path, bit), torch.zeros_like(found)) | found
        codes: dict[str, Tensor] = {}
        for (path, bit), found in self.moved.items():
            codes[path] = codes.get(path, torch.zeros_like(found, dtype=torch.long)) + (found.long() << bit)
        units = {path: (torch.where(code <= self.width, code, 0) - 1).cpu() for path, code in codes.items()}
        return {path: of for path, of in units.items() if bool((of >= 0).any()) and path != self.path}

    def _even(self, units: Tensor) -> bool:
        """Whether every channel has as many columns as any other, and some."""
        counts = torch.bincount(units[units >= 0], minlength=self.width)
        return bool((counts == counts[0]).all()) and bool(counts[0] > 0)

    def _mask(self, mapped: Mapping[str, Tensor], chosen: Tensor) -> tuple[list[str], set[str]]:
        """The batch norms behind the layer, in order; and who still hears channels when these are silent too."""
        norms: list[str] = []
        while True:
            with self.trial.masked(self._rows(mapped, norms, chosen)):
                found = self.trial.watch()
            loud = {path for path, units in mapped.items() if self._hears(found.get(path), units, chosen)}
            more = [path for path in mapped if path not in norms and path not in loud and self._is_norm(path)]
            if not more:
                return norms, loud
            norms += more

    def _rows(self, mapped: Mapping[str, Tensor], norms: Sequence[str], chosen: Tensor) -> dict[str, Tensor]:
        return {self.path: chosen} | {path: _chosen(mapped[path], chosen) for path in norms}

    def _is_norm(self, path: str) -> bool:
        return isinstance(self.trial.module.get_submodule(path), _BatchNorm)

    @staticmethod
    def _hears(values: Tensor | None, units: Tensor, chosen: Tensor) -> bool:
        return values is None or bool(values[:, _chosen(units, chosen)].any())

    def _attempts(
        self, rows: list[Member], columns: list[Member], every: Sequence[str]
    ) -> Iterator[tuple[list[Member], int]]:
        """These rows and columns; then also the other layers that matter only where this one's channels are read."""
        yield rows + columns, self.width
        found = self._partners(rows, columns, every)
        if found is not None:
            yield found

    def _partners(
        self, rows: list[Member], columns: list[Member], every: Sequence[str]
    ) -> tuple[list[Member], int] | None:
        """Such a layer moves, with its first row, what few of the channels become: they are one unit.

        A gate's rows are one unit each, a query's or key's those of a head. Rows are then taken as evenly shared among
        the units, in order, and that is tried.
        """
        units, partners = self.width, []
        for path in every:
            rows_there = channel_count(self.trial.module.get_submodule(path), "output") or 0
            if path == self.path or path not in self.trial.before or not rows_there:
                continue
            first = torch.arange(rows_there) == 0
            touched = self._touched(path, first, columns)
            if not 0 < len(touched) < self.width:
                continue
            count, rest = divmod(self.width, len(touched))
            if rest == 0 and rows_there % count == 0 and touched == set(range(len(touched))):
                units = min(units, count)
                partners.append((path, rows_there))
        shared = [(path, count) for path, count in partners if count % units == 0]
        if not shared or self.width % units or not all(self._shares(*one, units, columns) for one in shared):
            return None
        size = self.width // units
        coarse = [
            replace(member, units=tuple(unit // size if unit >= 0 else -1 for unit in member.units))
            for member in rows + columns
        ]
        return [
            *coarse[: len(rows)],
            *(
                Member(module=path, side="output", units=tuple(row * units // count for row in range(count)))
                for path, count in shared
            ),
            *coarse[len(rows) :],
        ], units

    def _touched(self, path: str, rows: Tensor, columns: Sequence[Member]) -> set[int]:
        """Which channels of this layer, as their readers see them, move with some rows of another."""
        changed = self.trial.changed(self.trial.watch(path, rows))
        return {
            unit
            for member in columns
            for unit, moved in zip(member.units, changed[member.module].tolist(), strict=True)
            if moved and unit >= 0
        }

    def _shares(self, path: str, rows: int, units: int, columns: Sequence[Member]) -> bool:
        """Whether the rows of a layer, shared evenly among the units, move their own unit's channels and no others."""
        of_row = torch.arange(rows) * units // rows
        size = self.width // units
        for bit in range(units.bit_length()):
            wanted = {unit for unit in range(self.width) if ((unit // size + 1) >> bit) & 1}
            if self._touched(path, ((of_row + 1) >> bit) & 1, columns) != wanted:
                return False
        return True

    def _accepted(
        self, members: Sequence[Member], units: int, norm: str | None, scattered: str | None
    ) -> Prunable | None:
        order = torch.randperm(units, generator=self.trial.generator).tolist()
        group = Prunable(
            name=self.path,
            units=units,
            heads=units < self.width,
            members=tuple(members),
            norm=norm,
            scattered=scattered,
            error=0.0,
        )
        dropped = order[: max(1, units // 3)]
        gone = torch.zeros(units, dtype=torch.bool)
        gone[dropped] = True
        rows = {
            member.module: _chosen(torch.tensor(member.units), gone)
            for member in members
            if member.side == "output" and (member.module == self.path or self._is_norm(member.module))
        }
        cut = cut_of({self.path: dropped}, [group])
        with self.trial.masked(rows):
            error = self.trial.error(cut)
            changed = distance(self.trial.output, self.trial.run()) > CHANGE_EPS
        if error > TOLERANCE or not changed:
            return None
        if not self.trial.trains(cut):
            self.training_differs = True
            return None
        return replace(group, error=error)


def _chosen(units: Tensor, chosen: Tensor) -> Tensor:
    return (units >= 0) & chosen[units.clamp_min(0)]
