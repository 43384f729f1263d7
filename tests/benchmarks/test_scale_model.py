"""The simulation of many GPUs: its record and the page that shows it are what it gives."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.scale_model import SHAPES, Rates, simulate, simulation, table

_ROOT = Path(__file__).parents[2]


def test_the_record_and_the_page_are_what_the_simulation_gives() -> None:
    found = simulation()
    assert json.loads((_ROOT / "benchmarks/results/scale_model.json").read_text()) == found
    assert table(found) in (_ROOT / "docs/scale.md").read_text()


def test_the_models_have_as_many_weights_as_their_names_say() -> None:
    for name, shape in SHAPES.items():
        blocks = sum(
            count * sum(group.count * group.columns * sum(group.rows) for group in groups)
            for count, groups in shape.blocks
        )
        assert abs((blocks + shape.outside) / 1e9 / float(name.partition(" ")[0]) - 1) < 0.02, name


def test_what_is_divided_takes_an_eighth_on_eight_and_a_layer_takes_as_long() -> None:
    one, eight = (simulate(SHAPES["70 B"], gpus, Rates()) for gpus in (1, 8))
    assert abs(one["seconds"]["forward"] / eight["seconds"]["forward"] - 8) < 0.1
    assert one["seconds"]["solve"] < 2 * eight["seconds"]["solve"]  # a group of a single layer is not divided
    assert one["sent_gb_by_a_gpu"] == 0
