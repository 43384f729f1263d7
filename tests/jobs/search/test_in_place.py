"""The choice made again by what changes cost in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from goldstick.jobs.search.in_place import choose_in_place

NBYTES = {"w2": 20, "w4": 40, "float": 160}
#: What 2 bits of each layer lose alone; 4 bits lose a tenth of it.
ALONE = {"early": 0.9, "middle": 1.0, "late": 1.1, "last": 1.2}


def layers() -> Any:
    return SimpleNamespace(groups=tuple(SimpleNamespace(name=name, nbytes=NBYTES) for name in ALONE))


def alone() -> dict[tuple[str, str], float]:
    parts = {"w2": 1.0, "w4": 0.1, "float": 0.0}
    return {(name, scheme): loss * part for name, loss in ALONE.items() for scheme, part in parts.items()}


class Model:
    """Errors grow on their way: each is multiplied by one more for every later layer that has errors of its own."""

    def __init__(self) -> None:
        self.asked = 0

    def loss(self, chosen: Mapping[str, str]) -> float:
        losses = [alone()[one] for one in chosen.items()]
        return sum(loss * (1 + sum(losses[place + 1 :])) for place, loss in enumerate(losses))

    def together(self, choices: Sequence[Mapping[str, str]]) -> list[float]:
        self.asked += len(choices)
        return [self.loss(chosen) for chosen in choices]


def within(room: int, chosen: Mapping[str, str]) -> bool:
    return sum(NBYTES[scheme] for scheme in chosen.values()) <= room


def fitting(room: int) -> list[dict[str, str]]:
    every = (dict(zip(ALONE, schemes, strict=True)) for schemes in product(NBYTES, repeat=len(ALONE)))
    return [chosen for chosen in every if within(room, chosen)]


@pytest.mark.parametrize("room", [100, 120, 140, 300])
def test_from_the_best_sum_it_comes_to_the_best_whole(room: int) -> None:
    model = Model()
    start = min(fitting(room), key=lambda chosen: sum(alone()[one] for one in chosen.items()))

    found = choose_in_place(layers(), alone(), start, room, model.together, lambda chosen: within(room, chosen), 4)

    assert within(room, found)
    assert model.loss(found) == pytest.approx(min(map(model.loss, fitting(room))), rel=0.01)


def test_it_never_loses_more_than_before() -> None:
    for start in fitting(140):
        model = Model()
        found = choose_in_place(layers(), alone(), start, 140, model.together, lambda chosen: within(140, chosen), 1)
        assert within(140, found)
        assert model.loss(found) <= model.loss(start)


def test_what_does_not_fit_the_files_is_not_taken() -> None:
    start = dict.fromkeys(ALONE, "w2")
    assert choose_in_place(layers(), alone(), start, 120, Model().together, lambda _: False, 2) == start


def test_where_losses_add_up_one_measurement_is_enough() -> None:
    model = Model()
    start = dict.fromkeys(ALONE, "w4")  # 0.42 alone, 0.485 together

    assert choose_in_place(layers(), alone(), start, 200, model.together, lambda _: True, 2, 0.25) == start
    assert model.asked == 1
    assert choose_in_place(layers(), alone(), start, 300, model.together, lambda _: True, 2, 0.1) != start
