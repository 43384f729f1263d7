"""WikiText-2 page by page: the perplexity of words that lm-evaluation-harness's ``wikitext`` gives."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from goldstick.core.progress import Progress
from goldstick.evaluation.data import Dataset, DataSource
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.tasks.text import WIKITEXT2

_TITLE = re.compile(r" = (?!=).* (?<!= )= \n?")

#: What WikiText's tokenizer did to the text, undone, in this order; plain strings.
_NUMBERS_AND_SPACES = (
    ("s '", "s'"),
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
#: The same for what encloses words: what is inside loses the spaces at its ends.
_ENCLOSED = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))
_HEADINGS_AND_ENDS = (
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


def split_pages(lines: Sequence[str]) -> list[str]:
    """Return the pages of WikiText's raw lines; each begins at its title, a line `` = Title = ``.

    Two lines in the test split look like titles and stand inside a paragraph; they begin a page too, so that there are
    62, as in the copy by pages that lm-evaluation-harness reads. What comes before the first title is a page of its
    own where it is not blank.
    """
    starts = [place for place, line in enumerate(lines) if _TITLE.fullmatch(line)]
    bounds = [*([0] if 0 not in starts else []), *starts, len(lines)]
    pages = ["".join(lines[start:end]) for start, end in itertools.pairwise(bounds)]
    return [page for page in pages if page.strip()]


def detokenize(page: str) -> str:
    """Return a page as it was before WikiText's tokenizer put spaces around marks.

    The rules are those of lm-evaluation-harness's ``wikitext`` (version 2), so that figures compare.
    """
    for tokenized, plain in _NUMBERS_AND_SPACES:
        page = page.replace(tokenized, plain)
    for opening, closing in _ENCLOSED:
        page = _tightened(page, opening, closing)
    for tokenized, plain in _HEADINGS_AND_ENDS:
        page = page.replace(tokenized, plain)
    return page


def _tightened(page: str, opening: str, closing: str) -> str:
    """A page in which what is enclosed has no spaces at its ends; what is opened reaches to the next that closes."""
    parts, place = [], 0
    while (start := page.find(opening, place)) >= 0 and (end := page.find(closing, start + 1)) >= 0:
        parts.append(f"{page[place:start]}{opening}{page[start + 1 : end].strip()}{closing}")
        place = end + 1
    return "".join(parts) + page[place:]


@dataclass(frozen=True, kw_only=True)
class PagePerplexity:
    """exp(−Σ log p / Σ words): the likelihood is that of the detokenised pages, words are counted before.

    Every token of a page is predicted, the first from the beginning (or end) token. A page longer than the model's
    context is read in windows of it, each beginning with the last token before it, the last one reaching back.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    name: str = "wikitext2/lm-eval"
    protocol: str = "pages@1"
    dataset: Dataset = WIKITEXT2.dataset

    def load(self, data: DataSource) -> list[str]:
        """Return the pages."""
        return split_pages(data.lines(self.dataset))

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` pages."""
        pages = self.load(data)[:limit]

        def advance(done: int, total: int) -> None:  # told in windows, of which a page may have several
            if progress is not None:
                progress(self.name, done * len(pages) // total, len(pages))

        scores = language_model.text_log_likelihood([detokenize(page) for page in pages], advance)
        nll = [-score for score in scores]
        words = [len(re.split(r"\s+", page)) for page in pages]
        size = [len(page.encode()) for page in pages]
        items = {
            "word_perplexity": Items(values=nll, weights=words, exponential=True),
            "bits_per_byte": Items(values=nll, weights=size, factor=1 / math.log(2.0)),
        }
        return TaskResult(
            protocol=self.protocol,
            n=len(pages),
            metrics={name: item.metric() for name, item in items.items()},
            details={"words": sum(words), **uncertainty(items)},
        )
