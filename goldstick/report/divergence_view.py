"""How far a model's predictions are from its baseline's, token by token, in words with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from goldstick.core.counts import counted


def divergence_words(evaluation: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each text of an evaluation with a baseline, or the reason why there is none.

    Args:
        evaluation: what `goldstick evaluate --baseline` found, with ``divergence`` beside ``tasks`` and ``baseline``.
    """
    if "baseline" not in evaluation:
        return
    found = evaluation.get("divergence")
    if found is None:
        yield "What both models predict was not compared token by token: their tokenizers differ."
    elif not found:
        yield "What both models predict was not compared token by token: no task is on running text."
    for task, result in (found or {}).items():
        metrics, intervals = result["metrics"], result["details"]["interval_95"]
        tokens = result["details"]["tokens_predicted"]
        kl = f"{metrics['token_kl']:.3g} nats a token{_between(intervals['token_kl'], '.3g')}"
        same = f"{metrics['top1_agreement']:.2f} %{_between(intervals['top1_agreement'], '.2f')}"
        yield (
            f"{task}: the predictions are {kl} from the baseline's (mean KL), and the likeliest token is the same for "
            f"{same} of {counted(tokens, 'token')}."
        )


def _between(interval: Any, form: str) -> str:
    return "" if interval is None else f" (95 %: {interval[0]:{form}} … {interval[1]:{form}})"
