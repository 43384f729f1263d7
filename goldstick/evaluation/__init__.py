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
from goldstick.evaluation.metrics import Items
from goldstick.evaluation.protocol import Measurable, Task, TaskResult
from goldstick.evaluation.span_model import SpanModel
from goldstick.evaluation.tasks import TASKS
from goldstick.evaluation.tasks.choice_file import ChoiceFile
from goldstick.evaluation.tasks.question_file import QuestionFile
from goldstick.evaluation.tasks.text_file import TextFile

__all__ = [
    "TASKS",
    "ChoiceFile",
    "ComparisonRow",
    "DataSource",
    "Evaluation",
    "ImageClassifier",
    "Items",
    "LanguageModel",
    "Measurable",
    "Preparation",
    "Progress",
    "QuestionFile",
    "SpanModel",
    "Task",
    "TaskResult",
    "TextFile",
    "compare",
    "evaluate",
    "measurable",
]
