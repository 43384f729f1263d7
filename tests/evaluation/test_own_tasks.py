"""Tasks of the user's own: objects, files of code, packages; and what is said of those that are none or fail."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch

from goldstick.errors import DataError, UsageError
from goldstick.evaluation import Items, LanguageModel, TaskResult, compare, evaluate
from goldstick.evaluation.compare import ComparisonRow
from goldstick.evaluation.find_tasks import find_tasks, from_folder
from goldstick.evaluation.plain_result import plain_result
from goldstick.report.words import verdict


@dataclass(frozen=True, kw_only=True)
class Guess:
    """Gives the values that it is made of."""

    models: ClassVar[tuple[type, ...]] = (LanguageModel,)
    values: tuple[float, ...] = (1.0, 0.0)
    name: str = "guess"
    protocol: str = "guess@1"

    def load(self, data: Any) -> list[float]:
        return list(self.values)

    def run(self, model: Any, data: Any, limit: int | None, progress: Any) -> TaskResult:
        values = self.values[:limit]
        items = {"hits": Items(values=values), "misses": Items(values=[1 - value for value in values])}
        return TaskResult.from_items(self.protocol, items, lower_is_better=["misses"], seen=len(values))


FILE = """
from __future__ import annotations
from dataclasses import dataclass
from goldstick.evaluation import Items, LanguageModel, TaskResult

@dataclass(frozen=True, kw_only=True)
class Mine:
    models = (LanguageModel,)
    name: str = "mine"
    protocol: str = "mine@1"

    def load(self, data):
        return []

    def run(self, model, data, limit, progress):
        return TaskResult.from_items(self.protocol, {"score": Items(values=[1.0, 0.0])})
"""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_task_object_is_measured_beside_named_ones_with_intervals(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    text = written(tmp_path / "mine.txt", "some words")
    found = evaluate(language_model, [Guess(values=(1.0, 0.0, 1.0, 1.0)), f"text:{text}"], limit=4)
    assert list(found.results) == ["guess", f"text:{text}"]
    result = found.results["guess"]
    assert (result.n, dict(result.metrics)) == (4, {"hits": 75.0, "misses": 25.0})
    assert result.details["seen"] == 4 and result.details["interval_95"]["hits"][0] < 75.0


def test_a_metric_of_which_less_is_better_is_judged_so(language_model: LanguageModel) -> None:
    def row(values: tuple[float, ...]) -> ComparisonRow:
        before = evaluate(language_model, [Guess(values=(1.0,) * 60)])
        return compare(evaluate(language_model, [Guess(values=values)]), before)[1]

    worse = row((0.0,) * 40 + (1.0,) * 20)
    assert (worse.metric, worse.direction, worse.worse, worse.shown) == ("misses", "lower", True, True)
    assert verdict(worse).startswith("loses")


def test_a_file_gives_its_only_task_its_only_class_or_the_one_that_is_named(tmp_path: Path) -> None:
    one = written(tmp_path / "one.py", FILE)
    assert list(find_tasks([one])) == ["mine"]
    assert list(find_tasks([f"{one}:Mine"])) == ["mine"]
    two = written(tmp_path / "two.py", FILE + '\nfirst = Mine()\nsecond = again = Mine(name="other")\n')
    assert list(find_tasks([f"{two}:first", f"{two}:second"])) == ["mine", "other"]
    assert list(find_tasks([f"{two}:other"])) == ["other"]
    with pytest.raises(UsageError, match=r"two\.py holds 2 tasks \(first, second\); name one: .*two\.py:NAME"):
        find_tasks([two])
    with pytest.raises(UsageError, match=r"nothing in it is called 'third'; the tasks in it are first, second"):
        find_tasks([f"{two}:third"])
    with pytest.raises(UsageError, match=r"nothing in it is called 'third'; the tasks in it are Mine$"):
        find_tasks([f"{one}:third"])
    with pytest.raises(UsageError, match=r"asked for twice"):
        find_tasks([one, f"{two}:first"])


def test_a_file_that_changed_is_run_again(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", FILE)
    (first,) = find_tasks([path]).values()
    written(tmp_path / "mine.py", FILE.replace("mine@1", "mine@2"))
    (second,) = find_tasks([path]).values()
    assert (first.protocol, second.protocol) == ("mine@1", "mine@2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name\n", r"mine\.py cannot be run, line 1 \(ModuleNotFoundError"),
        ("x = 1\nraise SystemExit(0)\n", r"mine\.py cannot be run, line 2 \(SystemExit: 0\)"),
        ("x = 1\ny = (\n", r"mine\.py cannot be run, line 2 \(SyntaxError"),
        ("x = 1\n", r"mine\.py holds no task: an object with name, protocol, models, load and run"),
        (FILE.replace('name: str = "mine"', "name: str"), r"Mine\(\) makes no task.*give it defaults"),
        (FILE.replace('"mine"', '"boolq"'), r"calls itself 'boolq', which is goldstick's own"),
    ],
)
def test_a_file_that_gives_no_task_is_named_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_tasks([written(tmp_path / "mine.py", text)])


def test_a_file_of_code_that_is_not_there_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none\.py"):
        find_tasks([str(tmp_path / "none.py")])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": 3}, "it has no text 'name'"),
        ({"protocol": None}, "no text 'protocol'"),
        ({"models": ()}, None),
        ({"models": [LanguageModel]}, "'models' is no tuple"),
        ({"run": None}, "no method 'run"),
        ({"load": None}, "no method 'load"),
    ],
)
def test_an_object_that_is_no_task_is_told_what_it_lacks(changes: dict[str, Any], said: str | None) -> None:
    made = type("Odd", (Guess,), changes)()
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    if said is None:
        assert find_tasks([made])
        return
    with pytest.raises(UsageError, match=said):
        find_tasks([made])
    with pytest.raises(UsageError, match=r"Guess is a class; give an object of it"):
        find_tasks([Guess])  # type: ignore[list-item]


def test_code_of_the_user_that_fails_is_named_with_its_file_and_line(
    language_model: LanguageModel, tmp_path: Path
) -> None:
    path = written(tmp_path / "mine.py", FILE.replace("return []", "return 1 / 0"))
    with pytest.raises(UsageError, match=r"'mine' of .*mine\.py fails in load, line 13 \(ZeroDivisionError") as caught:
        evaluate(language_model, [path])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    path = written(tmp_path / "other.py", FILE.replace("return TaskResult", "return str"))
    with pytest.raises(UsageError, match=r"fails in run, line 16 \(AttributeError"):
        evaluate(language_model, [path])
    path = written(tmp_path / "third.py", FILE.replace("return TaskResult.from_items(", "return dict(x=(") + ")")
    with pytest.raises(UsageError, match=r"its run must return a TaskResult, not dict"):
        evaluate(language_model, [path])


def test_an_exit_is_a_failure_where_the_file_asks_for_it_and_the_end_where_a_signal_does(
    language_model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "mine.py", FILE.replace("return []", "raise SystemExit(0)"))
    with pytest.raises(UsageError, match=r"fails in load, line 13 \(SystemExit: 0\)"):
        evaluate(language_model, ["mine.py"])

    def terminated(_: Any) -> None:
        raise SystemExit(143)

    written(tmp_path / "other.py", FILE.replace("return []", "return self.seen(data)"))
    (task,) = find_tasks(["other.py"]).values()
    object.__setattr__(task, "seen", terminated)
    with pytest.raises(SystemExit, match="143"):
        evaluate(language_model, [task])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Items(values=[]), r"a number for each item, and not of shape \[0\]"),
        (lambda: Items(values=torch.ones(3, 2)), r"not of shape \[3, 2\]"),  # type: ignore[arg-type]
        (lambda: Items(values=["1", "0"]), "a number for each item"),  # type: ignore[list-item]
        (lambda: Items(values=[1.0, 2.0], weights=[1]), "weights is a list with a number for each of 2 values"),
        (lambda: Items(values=[1.0, 2.0], weights=[0, 0]), "one of them is above 0"),
        (lambda: Items(values=[1.0, 2.0], weights=[2, -1]), "are 0 or more"),
        (
            lambda: TaskResult.from_items("a@1", {"hits": Items(values=[1.0])}, lower_is_better=["hit"]),
            "a@1: lower_is_better names 'hit', and the metrics are hits",
        ),
        (
            lambda: TaskResult.from_items("a@1", {"a": Items(values=[1.0]), "b": Items(values=[1.0, 0.0])}),
            r"a@1: all metrics are of the same items, .*\{'a': 1, 'b': 2\}",
        ),
    ],
)
def test_items_that_say_nothing_are_refused(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"metrics": {"a": None}}, r"metrics are numbers by name, and its result has \"\{'a': None\}\""),
        ({"metrics": {"a": "0.5"}}, "metrics are numbers by name"),
        ({"metrics": [0.5]}, "metrics are numbers by name"),
        ({"metrics": {1: 0.5}}, "metrics of its result: the key 1 must be a string"),
        ({"metrics": {"a": torch.ones(2)}}, "metrics are numbers by name"),
        ({"n": "3"}, "n is a whole number of 0 or more, and its result has '3'"),
        ({"n": -1}, "n is a whole number"),
        ({"protocol": None}, "protocol is a text"),
        ({"details": {"a": {"b": {1, 2}}}}, r"details of its result\.a\.b: set is no plain data"),
        ({"details": [1]}, "details are plain data by name"),
    ],
)
def test_a_result_that_no_report_holds_is_refused_with_the_place(result: dict[str, Any], said: str) -> None:
    made = TaskResult(**{"protocol": "a@1", "n": 1, "metrics": {}} | result)
    with pytest.raises(UsageError, match=rf"^the task 'mine': {said}"):
        plain_result("mine", made)


def test_numbers_of_numpy_and_torch_are_taken_in_results(language_model: LanguageModel, tmp_path: Path) -> None:
    made = (
        "TaskResult(protocol=self.protocol, n=np.int64(3), metrics={'a': torch.tensor(0.5), 'b': np.float32(2)},"
        " details={'c': (np.ones(2), torch.ones(1, dtype=torch.bfloat16))})\n"
    )
    file = FILE.replace("from __future__ import annotations", "import numpy as np, torch")
    path = written(tmp_path / "mine.py", file[: file.rindex("TaskResult")] + made)
    found = evaluate(language_model, [path]).to_dict()["tasks"]["mine"]
    assert json.loads(json.dumps(found)) == found
    assert (found["n"], found["metrics"], found["details"]) == (3, {"a": 0.5, "b": 2.0}, {"c": [[1.0, 1.0], [1.0]]})


def test_items_may_be_arrays_and_infinite_and_become_plain_numbers() -> None:
    result = TaskResult.from_items("a@1", {"hits": Items(values=torch.tensor([1, 0, 1]), weights=numpy.ones(3))})  # type: ignore[arg-type]
    assert json.loads(json.dumps(result.details["items"]["hits"]["values"])) == [1, 0, 1]
    assert math.isinf(TaskResult.from_items("a@1", {"loss": Items(values=[math.inf, 1.0])}).metrics["loss"])


def test_paths_of_a_recipe_s_tasks_count_from_its_folder() -> None:
    asked = ["boolq", "text:a.jsonl", "qa:/b.jsonl", "c.py", "c.py:NAME", "lm_eval:x", "wikitext2/lm-eval"]
    placed = ["boolq", "text:dir/a.jsonl", "qa:/b.jsonl", "dir/c.py", "dir/c.py:NAME", "lm_eval:x", "wikitext2/lm-eval"]
    assert from_folder(asked, Path("dir")) == tuple(placed)
