"""How far a model's next-token distributions are from those of the model it was made from, on running text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from goldstick.core.progress import Progress
from goldstick.errors import UsageError
from goldstick.evaluation.batching import batches_by_length, pad
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.evaluation.forward import evaluating, forward, require_numbers
from goldstick.evaluation.kl import token_kl
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.protocol import Task, TaskResult


@runtime_checkable
class TextTask(Protocol):
    """A task on running text, which it cuts into documents."""

    def documents(
        self, language_model: LanguageModel, data: DataSource, limit: int | None
    ) -> tuple[Sequence[Sequence[int]], str]:
        """Token sequences within the model's context, and the protocol that made them."""


def text_tasks(asked: Sequence[str | Task]) -> dict[str, TextTask]:
    """Return those of these tasks that are on running text."""
    return {name: task for name, task in find_tasks(asked).items() if isinstance(task, TextTask)}


def divergence(
    first: LanguageModel,
    second: LanguageModel,
    tasks: Sequence[str | Task],
    data: DataSource,
    limit: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run two models on the documents of the text tasks among ``tasks`` and compare what they predict, token by token.

    ``token_kl`` is the mean of KL(p ‖ q) over all predicted tokens, in nats, p the first and q the second model's
    distribution; ``top1_agreement`` the share of tokens, in percent, that both find likeliest. Documents are drawn
    again for their 95 % intervals. Both models are in memory.

    Args:
        first: the model that counts as right.
        second: the other, with the same tokenizer.
        tasks: tasks or their names; those on anything but running text are passed over.
        data: where their texts are.
        limit: the most documents of each, or None for each task's own number.
        progress: told after each batch.

    Returns:
        ``{task: {"protocol", "n", "metrics", "details"}}``, plain data.

    Raises UsageError where the models do not share a tokenizer, QuantizationError for NaN.
    """
    chosen = text_tasks(tasks)
    if chosen and first.tokenizer_hash != second.tokenizer_hash:
        raise UsageError(
            "the two models have different tokenizers, so their distributions are not over the same tokens"
        )
    found = {}
    for name, task in chosen.items():
        documents, protocol = task.documents(first, data, limit)
        result = _compare(first, second, documents, f"{protocol}, token by token", name, progress)
        found[name] = {
            "protocol": result.protocol,
            "n": result.n,
            "metrics": dict(result.metrics),
            "details": dict(result.details),
        }
    return found


def _compare(
    first: LanguageModel,
    second: LanguageModel,
    documents: Sequence[Sequence[int]],
    protocol: str,
    name: str,
    progress: Progress | None,
) -> TaskResult:
    sums, agreed, tokens = [0.0] * len(documents), [0] * len(documents), [len(ids) - 1 for ids in documents]
    done = 0
    with evaluating(first.model), evaluating(second.model):
        batches = list(batches_by_length([len(ids) for ids in documents], first.tokens_per_batch))

        def compared(number: int) -> list[tuple[float, int]]:
            nonlocal done
            batch = batches[number]
            ids, mask = pad([documents[index] for index in batch], 0)
            right = require_numbers(forward(first.model, ids, mask, use_cache=False).logits)
            tried = require_numbers(forward(second.model, ids, mask, use_cache=False).logits)
            kl = token_kl(right, tried)  # [rows, longest]
            same = (right.argmax(dim=-1) == tried.argmax(dim=-1)).cpu()
            done += len(batch)
            if progress is not None:
                progress(f"{name}: token by token", done, len(documents))
            # What follows the last token is not there to be predicted.
            ends = [(row, tokens[index]) for row, index in enumerate(batch)]
            return [(math.fsum(kl[row, :end].tolist()), int(same[row, :end].sum())) for row, end in ends]

        for batch, found in zip(batches, first.ranks.each([*map(len, batches)], compared), strict=True):
            for index, (total, equal) in zip(batch, found, strict=True):
                sums[index], agreed[index] = total, equal
    items = {
        "token_kl": Items(values=sums, weights=tokens, factor=1.0),
        "top1_agreement": Items(values=agreed, weights=tokens),
    }
    return TaskResult(
        protocol=protocol,
        n=len(documents),
        metrics={key: item.metric() for key, item in items.items()},
        details={"tokens_predicted": sum(tokens), **uncertainty(items)},
    )
