"""A loss against what is allowed: decided where the whole interval is on one side, else by so many more items."""

from __future__ import annotations

import json

import numpy as np
import pytest

from goldstick.errors import DataError
from goldstick.evaluation import Evaluation, TaskResult, compare
from goldstick.evaluation.compare import ComparisonRow, losses
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.threshold import judge, overall
from goldstick.report.page import render_report
from tests.support.commands import run


def answers(right: np.ndarray) -> Evaluation:
    items = {"accuracy": Items(values=[float(one) for one in right], factor=100.0)}
    metrics = {"accuracy": items["accuracy"].metric()}
    result = TaskResult(protocol="p", n=len(right), metrics=metrics, details=uncertainty(items))
    return Evaluation(results={"boolq": result}, tokenizer="t")


def losing(items: int, share: float, seed: int = 0) -> tuple[Evaluation, Evaluation]:
    """A model right in four of five items, and one that is wrong in a further share of them."""
    generator = np.random.default_rng(seed)
    before = generator.random(items) < 0.8
    return answers(before & (generator.random(items) >= share / 0.8)), answers(before)


def rows(items: int, share: float, seed: int = 0) -> list[ComparisonRow]:
    after, before = losing(items, share, seed)
    return compare(after, before)


def test_a_loss_passes_fails_or_is_left_open() -> None:
    outcomes = {share: judge(rows(4000, share), 2.0)[0] for share in (0.005, 0.02, 0.06)}
    assert [one.outcome for one in outcomes.values()] == ["pass", "inconclusive", "fail"]
    for one in outcomes.values():
        assert one.loss.interval is not None and one.loss.unit == "points"
        low, high = one.loss.interval
        assert low <= one.loss.value <= high
        assert (one.outcome == "pass") == (high <= 2.0) and (one.outcome == "fail") == (low > 2.0)
    assert overall([*outcomes.values()]) == "fail"
    assert overall([outcomes[0.005]]) == "pass" and overall([outcomes[0.005], outcomes[0.02]]) == "inconclusive"


def test_about_as_many_items_as_it_says_decide() -> None:
    few = judge(rows(300, 0.02), 3.5)[0]
    assert few.outcome == "inconclusive" and few.items_needed is not None
    share = few.loss.value / 100
    decided = [judge(rows(few.items_needed, share, seed), 3.5)[0].outcome != "inconclusive" for seed in range(20)]
    assert 12 <= sum(decided) <= 19  # four of five
    open_ones = [judge(rows(few.items_needed // 8, share, seed), 3.5)[0].outcome for seed in range(10)]
    assert open_ones.count("inconclusive") >= 5


def test_perplexity_is_judged_in_percent() -> None:
    def text(growth: float) -> Evaluation:
        generator = np.random.default_rng(1)
        losses = generator.normal(2.0, 0.2, size=60) + growth + generator.normal(0, 0.002, size=60)
        items = {"perplexity": Items(values=losses.tolist(), exponential=True)}
        metrics = {"perplexity": items["perplexity"].metric()}
        result = TaskResult(protocol="p", n=60, metrics=metrics, details=uncertainty(items))
        return Evaluation(results={"text": result}, tokenizer="t")

    (judged,) = judge(compare(text(0.01), text(0.0)), 2.0)
    assert judged.outcome == "pass" and judged.loss.unit == "%"
    assert judged.loss.value == pytest.approx(100 * (np.exp(0.01) - 1), rel=0.01)
    assert judge(compare(text(0.05), text(0.0)), 2.0)[0].words.startswith("fail: loses at least")


def test_the_page_opens_with_the_verdict() -> None:
    after, before = losing(4000, 0.06)
    data = {**after.to_dict(), "baseline": before.to_dict(), "max_loss": 2.0}
    page = render_report(json.dumps(data))
    assert page.index("<strong>fail</strong>") < page.index("In short")
    assert 'class="interval"' in page and "2 allowed" in page
    assert "1 allowed" in render_report(json.dumps({**after.to_dict(), "baseline": before.to_dict()}))
    assert "allowed" not in render_report(json.dumps(after.to_dict()))
    with pytest.raises(DataError):
        render_report(json.dumps(data | {"max_loss": "none"}))


def test_a_loss_counts_once() -> None:
    """Perplexity and bits per byte of a text are one loss; where tokenizers differ, bits per byte alone compare."""
    items = {
        "perplexity": Items(values=[2.0, 2.1, 1.9], exponential=True),
        "bits_per_byte": Items(values=[1.0, 1.1, 0.9]),
    }
    metrics = {name: item.metric() for name, item in items.items()}
    result = TaskResult(protocol="p", n=3, metrics=metrics, details=uncertainty(items))
    one, other = (Evaluation(results={"text": result}, tokenizer=name) for name in ("t", "u"))
    assert [row.metric for row in losses(compare(one, one))] == ["perplexity"]
    assert [row.metric for row in losses(compare(one, other))] == ["bits_per_byte"]
    assert [found.metric for found in judge(compare(one, one))] == ["perplexity"]


def test_the_command_prints_it() -> None:
    measure = ("evaluate", "reference", "--tasks", "boolq", "--limit", "4")
    assert run(*measure, "--max-loss", "1").exit_code == 2
    done = run(*measure, "--baseline", "reference", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["verdict"] == said["judged"][0]["outcome"] == "inconclusive"
    assert said["judged"][0]["items_needed"] > 4
