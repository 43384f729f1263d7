"""Measuring what a model can do, before and after compression.

The package sees a `LanguageModel`, a `SpanModel` or an `ImageClassifier` and nothing else of goldstick.
"""

from goldstick.core.progress import Progress
from goldstick.evaluation.compare import ComparisonRow, compare
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.evaluate import Evaluation, evaluate
from goldstick.evaluation.image_classifier import ImageClassifier
from goldstick.evaluation.image_preparation import Preparation
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.measurable import measurable
from goldstick.evaluation.protocol import Measurable, Task, TaskResult
from goldstick.evaluation.span_model import SpanModel
from goldstick.evaluation.tasks import TASKS

__all__ = [
    "TASKS",
    "ComparisonRow",
    "DataSource",
    "Evaluation",
    "ImageClassifier",
    "LanguageModel",
    "Measurable",
    "Preparation",
    "Progress",
    "SpanModel",
    "Task",
    "TaskResult",
    "compare",
    "evaluate",
    "measurable",
]
