"""From what the user writes to tasks: registered names, the harness's, files of data, files of code, and objects."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from goldstick.errors import UsageError
from goldstick.evaluation.data import require_file
from goldstick.evaluation.protocol import Task, why_no_task
from goldstick.evaluation.task_module import task_of_file
from goldstick.evaluation.tasks import TASKS
from goldstick.evaluation.tasks.choice_file import ChoiceFile
from goldstick.evaluation.tasks.harness import PREFIX, HarnessTask
from goldstick.evaluation.tasks.question_file import QuestionFile
from goldstick.evaluation.tasks.text_file import TextFile

#: What a file of data is for → the task on it.
FILE_TASKS: dict[str, Callable[..., Task]] = {"text": TextFile, "qa": QuestionFile, "choice": ChoiceFile}

_DATA_FILE = re.compile(rf"({'|'.join(FILE_TASKS)}):(.*)", re.DOTALL)
_CODE_FILE = re.compile(r"(.+\.py)(?::(.+))?", re.DOTALL)


def find_tasks(asked: Sequence[str | Task]) -> dict[str, Task]:
    """Return the tasks by their names, in the order asked for.

    Args:
        asked: each a name in `goldstick.evaluation.tasks.TASKS`; ``lm_eval:`` and a task of lm-evaluation-harness;
            ``text:``, ``qa:`` or ``choice:`` and a file of data; a Python file, with ``:NAME`` where it holds several
            tasks; or a task itself.

    Raises UsageError for what is no task, naming the nearest candidate, for no task, and for one asked for twice;
    DataError for a file that is not there.
    """
    if isinstance(asked, str):
        raise UsageError(f"tasks must be a list of names, not the string {asked!r}")
    if not asked:
        raise UsageError(f"no task to evaluate; there are {', '.join(TASKS)}")
    found: dict[str, Task] = {}
    for one in asked:
        task = _named(one) if isinstance(one, str) else _given(one)
        if task.name in found:
            raise UsageError(f"the task {task.name!r} is asked for twice")
        found[task.name] = task
    return found


def from_folder(asked: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Tasks as a recipe in ``folder`` names them, with the paths of files from there."""

    def placed(one: str) -> str:
        if one in TASKS.own_names:
            return one
        if match := _DATA_FILE.fullmatch(one):
            return f"{match[1]}:{folder / match[2]}" if match[2] else one
        if match := _CODE_FILE.fullmatch(one):
            return f"{folder / match[1]}" + (f":{match[2]}" if match[2] else "")
        return one

    return tuple(map(placed, asked))


def _named(name: str) -> Task:
    if name.startswith(PREFIX) and name != PREFIX:
        return HarnessTask(task=name.removeprefix(PREFIX))
    if name in TASKS:
        return TASKS[name]
    if match := _DATA_FILE.fullmatch(name):
        if not match[2]:
            raise UsageError(f"{name}: name the file behind the colon, such as {name}FILE")
        require_file(Path(match[2]), name)
        return FILE_TASKS[match[1]](path=Path(match[2]))
    if match := _CODE_FILE.fullmatch(name):
        task = task_of_file(Path(match[1]), match[2] or "")
        if task.name in TASKS.own_names and type(task) is not type(TASKS[task.name]):
            raise UsageError(f"{name}: it calls itself {task.name!r}, which is goldstick's own; give it another name")
        return task
    raise UsageError(_unknown(name))


def _given(one: Any) -> Task:
    reason = why_no_task(one)
    if reason:
        raise UsageError(f"{one!r} is no task: {reason}; see docs/evaluation.md")
    task: Task = one
    return task


def _unknown(name: str) -> str:
    known = (
        f"The tasks are {', '.join(TASKS)}, {PREFIX}TASK for lm-evaluation-harness's, "
        f"{', '.join(f'{kind}:FILE' for kind in FILE_TASKS)} for data of one's own, and FILE.py"
    )
    if Path(name).is_file():
        kinds = ", ".join(f"{kind}:{name}" for kind in FILE_TASKS)
        return f"{name!r} is a file; say what it is for: {kinds}. {known}"
    near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no task {name!r}; {hint}{known}"
