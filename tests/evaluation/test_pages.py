"""WikiText page by page: where pages begin, what detokenising does, and the windows of a long page."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from goldstick.evaluation import DataSource, LanguageModel
from goldstick.evaluation.language_model import _rolling_windows
from goldstick.evaluation.tasks.pages import PagePerplexity, _tightened, detokenize, split_pages
from tests.support.time_limit import within

LINES = [
    " \n",
    " = Du Fu = \n",
    " \n",
    ' Du Fu ( 712 – 770 ) wrote " poems " . They had 1 @,@ 400 lines . \n',
    " \n",
    " = = Life = = \n",
    " \n",
    " It 's well @-@ known . \n",
    " \n",
    " = Nerva = \n",
    " \n",
    " An emperor . \n",
]


def test_a_page_begins_at_a_title() -> None:
    pages = split_pages(LINES)
    assert [page.split("\n")[0] for page in pages] == [" = Du Fu = ", " = Nerva = "]
    assert " \n" + "".join(pages) == "".join(LINES)
    assert split_pages(["first\n", *LINES])[0] == "first\n \n"
    assert split_pages([" \n"]) == []


def test_detokenising_takes_the_spaces_away_that_wikitext_put_in() -> None:
    page = split_pages(LINES)[0]
    text = ' = Du Fu =\n\nDu Fu (712 – 770) wrote "poems". They had 1,400 lines.\n\n== Life ==\n\n'
    assert detokenize(page) == text + "It's well-known.\n\n"


@pytest.mark.parametrize(("length", "context"), [(0, 4), (1, 4), (4, 4), (5, 4), (11, 4), (12, 4), (3, 100)])
def test_windows_predict_every_token_once_from_as_much_before_it_as_fits(length: int, context: int) -> None:
    ids = list(range(100, 100 + length))
    windows = _rolling_windows(ids, 7, context)
    assert [token for _, target in windows for token in target] == ids
    known = [7, *ids]
    for number, (shown, target) in enumerate(windows):
        end = known.index(target[-1])
        last = number == len(windows) - 1
        assert len(shown) == min(context, end) if last else len(shown) == len(target) == context
        assert shown == known[end - len(shown) : end]


def test_word_perplexity_is_a_double_precision_loop_over_windows(language_model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2/wiki.test.raw").write_text("".join(LINES))
    found = PagePerplexity().run(language_model, DataSource(tmp_path), None, None)
    model = language_model.model.double()
    total, words, size = 0.0, 0, 0
    for page in split_pages(LINES):
        known = [1, *language_model.encode(detokenize(page))]
        context = language_model.context_length
        for place in range(1, len(known)):
            window = (place - 1) // context  # the window that predicts this token, and where it ends
            end = min((window + 1) * context, len(known) - 1)
            given = known[max(0, end - context) : place]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([given])).logits[0, -1]  # type: ignore[operator]
            total += float(logits.log_softmax(-1)[known[place]])
        words += len(re.split(r"\s+", page))
        size += len(page.encode())
    assert found.metrics["word_perplexity"] == pytest.approx(math.exp(-total / words), rel=1e-4)
    assert found.metrics["bits_per_byte"] == pytest.approx(-total / size / math.log(2), rel=1e-5)
    assert found.n == 2


@pytest.mark.data
def test_the_test_split_has_sixty_two_pages_as_on_the_hub(data_dir: Path) -> None:
    assert len(PagePerplexity().load(DataSource(data_dir))) == 62


@pytest.mark.parametrize("page", ["(" + " " * 200_000, "(" * 200_000, "( a" * 50_000, '"' * 200_001], ids=str.__len__)
def test_a_page_of_brackets_takes_no_time_to_speak_of(page: str) -> None:
    with within(seconds=2):
        found = detokenize(page)
    assert 0 < len(found) <= len(page)


@given(page=st.text("() []{}\"' a\n\u00a0", max_size=30))
@pytest.mark.parametrize(("opening", "closing"), ["()", "[]", "{}", '""', "''"])
def test_what_is_enclosed_loses_its_spaces_as_by_the_harness(page: str, opening: str, closing: str) -> None:
    left, right = re.escape(opening), re.escape(closing)
    expected = re.sub(rf"{left}\s*([^{right}]*?)\s*{right}", rf"{opening}\1{closing}", page)
    assert _tightened(page, opening, closing) == expected
