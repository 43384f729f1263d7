"""Tables of schemes and tasks: a cell is measured once, a stopped run goes on, and what is shown was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cells, encoder, tasks
from benchmarks.cells import FLOAT, Measurement, Scheme, Table, markdown, read_results, write_behind
from goldstick.evaluation import TASKS, Evaluation, TaskResult
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.recipes.recipe import Recipe


class Runs:
    """Pretends to quantize and to evaluate, and remembers what it was asked."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.measured: list[tuple[str, str, int | None]] = []

    def quantize(self, model: Path, recipe: Any, *, output: Path, evaluate: Any, data_dir: Path) -> None:
        assert evaluate == () and recipe["stages"]
        self.made.append(output.name)
        output.mkdir(parents=True)

    def evaluate(
        self, model: Path, names: Sequence[str], *, data_dir: Path, limit: int | None, cache: Path
    ) -> Evaluation:
        (name,) = names
        self.measured.append((model.name, name, limit))
        values = [1.0, 1.0, 1.0, 0.0] * 10 if model.name == "model" else [1.0, 0.0] * 20
        items = {"accuracy": Items(values=values)}
        result = TaskResult(
            protocol="p", n=40, metrics={"accuracy": items["accuracy"].metric()}, details=uncertainty(items)
        )
        return Evaluation(results={name: result}, tokenizer="t")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(cells, "quantize", runs.quantize)
    monkeypatch.setattr(cells, "evaluate", runs.evaluate)
    return runs


def table(folder: Path, limit: int | None = None) -> Table:
    return Table(
        model=folder / "model",
        schemes=[Scheme(name=FLOAT), Scheme(name="w4 rtn", recipe={"stages": [{"rtn": {"scheme": "w4a16-g32"}}]})],
        measurements=[Measurement(name=f"{task}!", task=task, data=folder, limit=limit) for task in ("boolq", "ceval")],
        calibration=folder,
        build=folder / "build",
        results=folder / "results.json",
    )


def test_each_cell_is_measured_once_and_paired_with_float(runs: Runs, tmp_path: Path) -> None:
    table(tmp_path).run()
    found = read_results(tmp_path / "results.json")
    assert list(found["cells"]) == ["float/boolq!", "w4 rtn/boolq!", "float/ceval!", "w4 rtn/ceval!"]
    figures = found["cells"]["w4 rtn/ceval!"]["metrics"]["accuracy"]
    assert (figures["value"], figures["difference"], figures["items_changed"]) == (50.0, -25.0, 10)
    assert figures["verdict"].startswith("loses 25")
    assert "verdict" not in found["cells"]["float/ceval!"]["metrics"]["accuracy"]
    assert runs.made == ["w4-rtn"]
    asked = len(runs.measured)
    table(tmp_path).run()
    assert len(runs.measured) == asked


def test_a_pattern_measures_some_cells_and_another_limit_all_again(runs: Runs, tmp_path: Path) -> None:
    table(tmp_path).run("w4*/boolq*", {"training": {"steps": 3}})
    assert list(read_results(tmp_path / "results.json")["cells"]) == ["w4 rtn/boolq!"]
    table(tmp_path, limit=7).run()
    found = read_results(tmp_path / "results.json")
    assert {cell["limit"] for cell in found["cells"].values()} == {7}
    other = replace(table(tmp_path), measurements=[Measurement(name="more", task="squad", data=tmp_path)])
    other.run()
    assert list(read_results(tmp_path / "results.json")["cells"]) == ["float/more", "w4 rtn/more", *found["cells"]]
    assert found["training"] == {"steps": 3}


def test_the_table_shows_float_with_its_interval_and_others_with_a_verdict(runs: Runs, tmp_path: Path) -> None:
    table(tmp_path).run("*/boolq!")
    shown = markdown(
        read_results(tmp_path / "results.json"),
        [FLOAT, "w4 rtn", "w3"],
        [("boolq!", "accuracy"), ("ceval!", "accuracy")],
    )
    head, rule, first, second = shown.splitlines()
    assert head == "| task | float | w4 rtn | w3 |"
    assert rule.count("---") == 4
    assert first.startswith("| boolq!: accuracy (40) | 75 (") and "| 50: loses 25" in first and first.endswith("| – |")
    assert second == "| ceval!: accuracy | – | – | – |"


def test_a_table_replaces_what_stands_behind_its_mark(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    document.write_text("# A\n\n<!-- m -->\n\nold\n\n## B\n\nkept\n")
    for text in ("new", "newer"):
        write_behind(document, "<!-- m -->\n", text)
    assert document.read_text() == "# A\n\n<!-- m -->\n\nnewer\n\n## B\n\nkept\n"
    document.write_text("<!-- m -->\nold")
    write_behind(document, "<!-- m -->\n", "new")
    assert document.read_text() == "<!-- m -->\n\nnew\n"


def test_recipes_tasks_and_marks_of_both_tables_are_there(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    for made in (tasks.table(), encoder.table(tmp_path, None)):
        assert made.schemes[0] == Scheme(name=FLOAT)
        for scheme in made.schemes[1:]:
            assert Recipe.load(scheme.recipe).stages
        assert {one.task for one in made.measurements} <= set(TASKS)
        assert len({one.name for one in made.measurements}) == len(made.measurements)
    assert tasks.DOCUMENT.read_text().count(tasks.MARK) == encoder.DOCUMENT.read_text().count(encoder.MARK) == 1
