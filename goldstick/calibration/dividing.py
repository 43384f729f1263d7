"""Dividing the layers of a block over ranks: in which groups they come, and what solving each of them takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from torch import Tensor

from goldstick.calibration.groups import input_groups
from goldstick.calibration.task import Assignment, Work
from goldstick.core.edits import Quantize
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.ranks import Ranks
from goldstick.core.shared_rows import SharedRows
from goldstick.structure.network import Network


def groups_of_ranks(
    network: Network, tasks: Mapping[str, Assignment], ranks: Ranks, look: Callable[[], Tensor] | None
) -> tuple[list[list[Assignment]], set[int]]:
    """The input groups as the first rank sees them, since others are shown other batches."""
    if ranks.alone:
        assert look is not None
        return input_groups(network, tasks, look)
    found: tuple[list[list[str]], set[int]] = [], set()
    if ranks.first:
        assert look is not None  # the first rank has a batch if anybody has
        groups, again = input_groups(network, tasks, look)
        found = [[task.site.name for task in group] for group in groups], again
    names, called_again = ranks.of(found)
    return [[tasks[name] for name in group] for group in names], called_again


def owners_of(ranks: Ranks, tasks: Sequence[Assignment]) -> list[int]:
    """Which rank solves which of some tasks."""
    return ranks.owners([*map(_kind, tasks)], [*map(_cost, tasks)])


def by_all_ranks(
    task: Assignment, group: Sequence[Assignment], state: InputObserver | OutputGroups, ranks: Ranks
) -> bool:
    """Whether a layer is solved by all ranks, each some rows or some parts of its outputs, and not by one.

    A processor takes as long as there are rows. A GPU takes as long for a few as for many, one layer after the other,
    so there layers are divided where several read one tensor and are solved by the same inputs.
    """
    few = ranks.device.type == "cpu" or len(group) == 1
    return ranks.alone or isinstance(state, OutputGroups) or (task.stage.shares_rows and few)


def share_rows(state: InputObserver | OutputGroups, statistics: Collection[str], ranks: Ranks) -> None:
    """Let all ranks solve a layer together, each its rows: they all have what it asks for of its inputs."""
    together = () if isinstance(state, InputObserver) else [part for _, part in state.across]
    for observer in [state] if isinstance(state, InputObserver) else [part for _, part in state.parts]:
        observer.settle(statistics)
        observer.shared = None if ranks.alone or together else SharedRows(ranks)
    for observer in together:  # rows wait for each other, so that each rank solves all
        observer.settle(("hessian",))


def decided(
    work: Work,
    network: Network,
    tasks: Sequence[Assignment],
    solve: Callable[[Assignment], Quantize | None],
    owners: Sequence[int] | None = None,
) -> list[Quantize | None]:
    """What is decided on some tasks, each solved by one rank; told to all.

    Args:
        work: Whose tasks they are, and whose ranks.
        network: The network.
        tasks: The tasks.
        solve: Solves one.
        owners: The rank that solves each; from :func:`owners_of` where ``None``.
    """
    owners = owners_of(work.ranks, tasks) if owners is None else owners
    edits = work.ranks.divided(owners, lambda number: solve(tasks[number]), [*map(_kind, tasks)])
    for task, owner, edit in zip(tasks, owners, edits, strict=True):
        if owner != work.ranks.rank and edit is not None:
            work.revise(task, network.weight(task.site), edit)
    return edits


def _kind(task: Assignment) -> object:
    """Tasks that are alike, and take as long."""
    return task.stage.name, tuple(task.site.matrix_shape), task.scheme.label


def _cost(task: Assignment) -> float:
    """What a task takes, in products: every row for each pair of columns, and the factor of the Hessian."""
    *experts, rows, columns = task.site.matrix_shape
    return math.prod(experts) * columns**2 * (rows + columns / 3)
