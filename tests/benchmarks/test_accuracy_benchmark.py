"""Contract and meaning of the accuracy benchmark: its recipes are recipes, its verdicts follow from its figures."""

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy_cases import BITS, FLOAT, Row, rows, subjects
from benchmarks.accuracy_tables import tables
from benchmarks.accuracy_verdicts import Results, verdicts
from goldstick.algorithms import ALGORITHMS
from goldstick.recipes.recipe import Recipe

TOKENS = [10, 20, 30, 40]


def figures(perplexity: float) -> dict[str, Any]:
    """What a measurement gives whose every text has the same perplexity."""
    nll = [math.log(perplexity) * count for count in TOKENS]
    return {"perplexity": perplexity, "nll": nll, "tokens": TOKENS, "protocol": "documents@256", "seconds": 1.0}


def results_of(perplexities: dict[str, dict[str, float]]) -> Results:
    results = Results()
    for model, found in perplexities.items():
        for row, perplexity in found.items():
            method, _, scheme = row.rpartition(" ") if " " in row else (row, "", "")
            results.put(subjects()[model], Row(method=method, scheme=scheme, stages=()), figures(perplexity), {})
    return results


def verdict(results: Results, words: str) -> str:
    return next(line for line in verdicts(results) if words in line)


def test_every_row_whose_stages_exist_is_a_recipe_and_names_are_unique() -> None:
    for subject in subjects().values():
        found = list(rows(subject))
        assert len({row.name for row in found}) == len(found)
        assert sum(row.method == "gptq" for row in found) == len(BITS) * len(subject.grains)
        for row in found:
            if all(name in ALGORITHMS for stage in row.stages for name in stage):
                Recipe.load({"stages": row.stages})


def test_a_method_that_loses_anywhere_fails_and_the_place_is_named() -> None:
    good = {"float": 2.0, "rtn w4a16-g32": 2.2, "gptq w4a16-g32": 2.1}
    bad = {"float": 2.0, "rtn w2a16-g32": 2.2, "gptq w2a16-g32": 2.3}
    assert verdict(results_of({"reference": good}), "gptq better than rtn").startswith("**holds")
    line = verdict(results_of({"reference": good, "stories260k": bad}), "gptq better than rtn")
    assert line.startswith("**fails**")
    assert "stories260k w2a16-g32" in line
    assert "reference" not in line


def test_a_promise_holds_without_reserve_only_where_every_row_was_measured() -> None:
    found: dict[str, dict[str, float]] = {}
    for name, subject in subjects().items():
        schemes = [row.scheme for row in rows(subject) if row.method == "gptq"]
        found[name] = {"float": 2.0, **{f"{m} {s}": p for m, p in (("rtn", 2.2), ("gptq", 2.1)) for s in schemes}}
    assert verdict(results_of(found), "gptq better than rtn").startswith("**holds**: ")
    found.pop("planted")
    assert verdict(results_of(found), "gptq better than rtn").startswith("**holds where measured**: ")


def test_half_a_percent_is_the_limit_on_every_model() -> None:
    row = "smoothquant 0.5 w8a8-dynamic"
    near, far = {"float": 2.0, row: 2.0099}, {"float": 2.0, row: 2.0101}
    assert verdict(results_of({"reference": near}), "with SmoothQuant").startswith("**holds")
    assert verdict(results_of({"reference": near, "planted": far}), "with SmoothQuant").startswith("**fails**")


def test_outliers_are_recovered_where_the_model_without_them_is_reached() -> None:
    def found(smooth: float) -> Results:
        row = {"smoothquant 0.5 w8a8-static": smooth, "smoothquant search w8a8-static": 2.02}
        plain, planted = {"float": 2.0, "rtn w8a8-static": 2.02}, {"float": 2.0, "rtn w8a8-static": 3.0}
        return results_of({"reference": plain, "planted": planted | row})

    assert verdict(found(2.021), "planted outliers, w8a8-static").startswith("**holds**")
    assert verdict(found(2.2), "planted outliers, w8a8-static").startswith("**fails**")
    assert verdict(found(2.021), "planted outliers, w8a8-dynamic").startswith("**not measured**")


def test_results_are_read_back_as_written(tmp_path: Path) -> None:
    results = results_of({"reference": {"float": 2.0, "rtn w4a16-g32": 2.5}, "planted": {"float": 2.0}})
    results.write(tmp_path / "accuracy.json")
    again = Results.read(tmp_path / "accuracy.json")
    assert again == results
    ratio = again.ratio("reference", "rtn w4a16-g32")
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.25, 1.25, 1.25))
    assert again.ratio("planted", "rtn w4a16-g32") is None
    assert FLOAT.name == "float"


def test_tables_show_what_was_measured_and_a_dash_for_the_rest() -> None:
    found = {"float": 2.0, "rtn w4a16-g32": 2.2, "rtn w3a16-g32": 2.4, "gptq w4a16-g32": 2.1, "rtn w8a8-static": 2.0}
    text = tables(results_of({"reference": found}))
    assert "| gptq | 2.1000: 1.0500 (1.0500…1.0500) | – |" in text
    assert "| rtn w8a8-static | 2.0000: 1.0000" in text
