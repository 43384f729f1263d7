"""Exact match and F1 as MindFormers' ``EmF1Metric`` counts them, with which Golden Stick scores SQuAD.

Not SQuAD's own: punctuation inside ASCII text stays, articles stay, a space is a word, and F1 counts the longest run of
words that both have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_DROPPED = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
#: What jieba makes of text without Chinese words: words, numbers with their fraction and percent sign, runs of the
#: signs it takes for parts of words, and every other character alone, spaces included.
_WORD = re.compile(r"\r\n|[a-z0-9]+(?:\.[0-9]+)?%?|[#&.%]+|.", re.DOTALL)


def mindformers_exact_match(prediction: str, answer: str) -> float:
    """Return 1.0 where both are equal in lower case without the signs that are dropped, else 0.0."""
    return float(_plain(prediction) == _plain(answer))


def mindformers_f1(prediction: str, answer: str) -> float:
    """Return F1 = 2·l / (words of the prediction + words of the answer), l the longest run of words in both."""
    predicted, expected = (_WORD.findall(_plain(text)) for text in (prediction, answer))
    run = _longest_run(predicted, expected)
    return 2 * run / (len(predicted) + len(expected)) if run else 0.0


def _plain(text: str) -> str:
    return text.lower().strip().translate(_DROPPED)


def _longest_run(first: Sequence[str], second: Sequence[str]) -> int:
    """How many words the longest piece has that stands in both, without a gap."""
    longest, ending = 0, [0] * (len(second) + 1)  # ending[j]: the run that ends at the j-th word of the second
    for word in first:
        ending = [0] + [ending[j] + 1 if word == other else 0 for j, other in enumerate(second)]
        longest = max(longest, *ending)
    return longest
