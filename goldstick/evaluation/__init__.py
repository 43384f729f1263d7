"""Measuring what a language model can do, before and after compression.

The package sees a `LanguageModel` and nothing else of goldstick.
"""

from goldstick.evaluation.compare import ComparisonRow, compare
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.evaluate import Evaluation, evaluate
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.protocol import Progress, Task, TaskResult
from goldstick.evaluation.tasks import TASKS

__all__ = [
    "TASKS",
    "ComparisonRow",
    "DataSource",
    "Evaluation",
    "LanguageModel",
    "Progress",
    "Task",
    "TaskResult",
    "compare",
    "evaluate",
]
