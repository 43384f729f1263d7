"""Find the attentions of a block whose heads can be turned between values and output projection (R2)."""

from __future__ import annotations

from functools import cache

from torch import Tensor, nn

from goldstick.core.edits import Rotate, RotateWeight
from goldstick.core.hadamard import Rotation
from goldstick.structure.rotation.plan import HeadRotation
from goldstick.structure.rotation.trial import CHANGE_EPS, EXACT, RotationTrial, distance

#: A list of more modules than this inside a block holds experts; no pair is looked for among them.
LONGEST_LIST = 4


def find_heads(trial: RotationTrial) -> tuple[HeadRotation, ...]:
    """At most one pair for each matrix that reads: the values it reads, in the largest blocks that can be turned.

    Any two matrices that lie in one part of the block are tried, and no name is asked: the rows of one are turned in
    blocks of n, the columns of the other turned back, and the output must stay. The largest such n is the size of
    a head; a divisor of it would do too, which is how a pair is told quickly from no pair.
    """
    before = trial.run()

    def turn_output(head: HeadRotation) -> RotateWeight:
        return RotateWeight(parameter=head.output, side="input", rotation=Rotation(size=head.size, seed=3))

    @cache
    def changed(output: RotateWeight) -> bool:
        return distance(before, trial.rotated(Rotate(turns=(output,)))) > CHANGE_EPS

    def holds(head: HeadRotation) -> bool:
        output = turn_output(head)
        value = RotateWeight(
            parameter=head.value, side="output", rotation=output.rotation, first_channel=head.first_channel
        )
        return changed(output) and distance(before, trial.rotated(Rotate(turns=(value, output)))) <= EXACT

    found = []
    matrices = _candidates(trial)
    for output, reading in matrices.items():
        for value, giving in matrices.items():
            if value == output or _part(trial, value) != _part(trial, output):
                continue
            pair = next((pair for pair in _by_size(value, giving, output, reading) if holds(pair[0])), None)
            if pair is not None:
                found.append(next(head for head in reversed(pair) if holds(head)))
                break
    return tuple(found)


def _candidates(trial: RotationTrial) -> dict[str, Tensor]:
    """Name → matrix [out, in] of everything outside lists of experts."""
    long_lists = tuple(
        trial.absolute(path) + "."
        for path, module in trial.module.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) > LONGEST_LIST
    )
    return {
        name: matrix for name, _, matrix, _ in trial.matrices() if matrix.ndim == 2 and not name.startswith(long_lists)
    }


def _part(trial: RotationTrial, name: str) -> str:
    """The part of the block that a parameter lies in: the first component of its path there."""
    return name.removeprefix(f"{trial.path}.").partition(".")[0]


def _by_size(value: str, giving: Tensor, output: str, reading: Tensor) -> list[list[HeadRotation]]:
    """What may be tried for one pair: for each place where the values may lie, the heads by growing size."""
    rows, columns = giving.shape[-2], reading.shape[-1]
    # All rows; or the last of a fusion of queries, keys and values that has as many keys as values.
    places = {rows, (rows - columns) // 2} if rows > columns + 1 else {rows}
    tried = [
        [
            HeadRotation(value=value, output=output, first_channel=rows - channels, size=size)
            for size in range(2, channels + 1)
            if channels % size == 0 and columns % size == 0
        ]
        for channels in sorted(places)
    ]
    return [heads for heads in tried if heads]
