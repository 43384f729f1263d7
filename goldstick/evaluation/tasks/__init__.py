"""The evaluation tasks by name."""

from __future__ import annotations

from goldstick.core.registry import Registry
from goldstick.evaluation.protocol import Task, why_no_task
from goldstick.evaluation.tasks.boolq import BoolQ
from goldstick.evaluation.tasks.ceval import CEval
from goldstick.evaluation.tasks.goldenstick import FirstQuestions, GeneratedBoolQ
from goldstick.evaluation.tasks.images import Cifar10, ImageFolder
from goldstick.evaluation.tasks.pages import PagePerplexity
from goldstick.evaluation.tasks.squad import Squad
from goldstick.evaluation.tasks.text import TEXT, TINYSTORIES, WIKITEXT2

TASKS: Registry[Task] = Registry(
    "goldstick.tasks",
    "an evaluation task",
    lambda found: why_no_task(found) is None,
    {
        "wikitext2": WIKITEXT2,
        "wikitext2/lm-eval": PagePerplexity(),
        "tinystories": TINYSTORIES,
        "text": TEXT,
        "boolq": BoolQ(),
        "boolq/goldenstick": GeneratedBoolQ(),
        "squad": Squad(),
        "squad/goldenstick": FirstQuestions(),
        "ceval": CEval(),
        "ceval/5-shot": CEval(name="ceval/5-shot", protocol="loglik@1, 5 examples", shots=5),
        "cifar10": Cifar10(),
        "images": ImageFolder(),
    },
)
