"""What the page of a report shows, and that it loads nothing and runs nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from goldstick.errors import DataError
from goldstick.evaluation.compare import ComparisonRow
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.paired import Paired
from goldstick.report.heat_map import drawable
from goldstick.report.page import render_report, write_page
from goldstick.report.words import format_seconds, verdict
from tests.support.pages import Page, check_alone
from tests.support.report_content import LAYERS, SENSITIVITY, evaluation, ignored, layer, report

HOSTILE = "</title><script src=//evil.example>alert('x')</script><img onerror=\"a()\" src=x>{{ 7 * 7 }}&amp;"


def test_the_page_says_what_was_done_and_what_it_cost() -> None:
    page = check_alone(render_report(report(*LAYERS, warnings=("one fold was undone",))))
    for words in (
        "tiny: compressed with goldstick",
        "gptq: four bits",
        "12.00 KiB → 6.25 KiB (52.1 %)",
        "4.50, scales and zeros counted",
        "3.00 MiB",
        "1 min 5 s",
        "one fold was undone",
        "largest difference of outputs 0 (outputs reach 12.5)",
        "Not evaluated",
        "21.5 … inf",
        "model.norm.weight a norm 4.00 KiB",
        "model.layers.1.q_proj.weight gptq rounded to nearest too few inputs",
        "model.layers.[0-1].q_proj.weight 2 layers 7 2",  # the fewest tokens, the most dead inputs
        "share of unknown tokens 0.125",
        "damping: 0.01",
        "torch 2.13.0",
    ):
        assert words in page.text, words


def test_errors_of_outputs_are_percentages_of_roundings() -> None:
    page = Page(render_report(report(*LAYERS)))
    labels = [svg["aria-label"] for svg in page.all("svg")]
    assert "model.layers.[0-1].q_proj.weight: 25 % of rounding's error" in labels
    none = report(layer("a", notes={"output_error": 0.0, "rtn_output_error": 0.0}))
    assert "of rounding" not in render_report(none)


def test_the_worst_channels_of_all_layers_come_in_order() -> None:
    layers = [
        layer(
            f"layers.{number}.up.weight", worst_channels=((str(number), 10.0 + number), ("matrix 1, 7", 5.5 + number))
        )
        for number in range(8)
    ]
    text = check_alone(render_report(report(*layers))).text
    table = text[text.index("The output channels of the lowest SQNR") : text.index("Size by layer")]
    shown = [5.5, 6.5, 7.5, 8.5, 9.5, 10.0, 10.5, 11.0, 11.5, 12.0]
    places = [table.index(f" {value:.1f} 21.5") for value in shown]
    assert places == sorted(places)
    assert "layers.0.up.weight matrix 1, 7 5.5 21.5" in table
    assert "13.0 21.5" not in table
    assert "Worst channels" not in render_report(report(layer("a")))


def test_a_sensitivity_is_a_heat_map_of_its_layers_and_widths() -> None:
    found = SENSITIVITY.to_dict()
    html = render_report(report(*LAYERS, sensitivity=drawable(found)))
    text = check_alone(html).text
    assert html.count('class="cell"') == 6
    assert "layers.*.up 3 layers layers.0.up, 2 bits: 5.00e-01 nats" in text
    assert "over 16 predictions (2 samples of 8 tokens from text). Grid: groups of 32, symmetric, ranges by mse" in text
    assert "Sensitivity" not in render_report(report(*LAYERS))
    assert drawable({key: value for key, value in found.items() if key != "tokens"}) == {}
    assert drawable(found | {"grid": {}}) == {}
    with pytest.raises(DataError):
        render_report(report(*LAYERS, sensitivity={"layers": []}))


def test_the_page_begins_with_a_few_figures() -> None:
    sides = {"before": evaluation([1.0] * 90 + [0.0] * 10), "after": evaluation([1.0] * 60 + [0.0] * 40)}
    speed = {"speed": {"before": 40.0, "after": 50.0, "threads": 2}}
    page = check_alone(render_report(report(*LAYERS, evaluation=sides | speed)))
    figures = (
        "6.25 KiB of 12.00 KiB 4.50 bits per quantized weight fail 0 of 1 loss shown to be at most 1 point, at 95 % "
    )
    figures += "1 of 1 metric got worse, as far as the items show "
    assert figures + "1.25 × the speed of writing 3.00 MiB of memory at most, to make it In short" in page.text
    assert "Speed 40 → 50 tokens a second (1.25 ×), one text, 2 threads, measured here once" in page.text
    assert [item["class"] for item in page.all("li")] == ["", "", "bad", "bad", "", ""]
    page = check_alone(render_report(report(*LAYERS)))
    assert "6.25 KiB of 12.00 KiB 4.50 bits per quantized weight 3.00 MiB of memory" in page.text


def test_layers_that_saw_fewer_inputs_than_they_have_directions_for_are_marked() -> None:
    enough = {"tokens": 512, "effective_rank": 20.5, "tokens_needed": 205}
    few = {"tokens": 100, "effective_rank": 20.5, "tokens_needed": 205, "short_of_tokens": 1}
    page = check_alone(render_report(report(layer("a.weight", notes=enough), layer("b.weight", notes=few))))
    assert "a.weight 512 20.5 205" in page.text and "b.weight 100 20.5 205" in page.text
    assert "ten tokens for each are needed" in page.text
    assert [cell["class"] for cell in page.all("td") if cell.get("class") == "n bad"] == ["n bad"]
    assert "ten tokens" not in Page(render_report(report(*LAYERS))).text


def test_an_evaluation_names_its_models_and_shows_categories() -> None:
    before, after = evaluation([1.0] * 4), evaluation([1.0, 1.0, 1.0, 0.0])
    for side, share in ((before, 100.0), (after, 50.0)):
        found = {"STEM": {"accuracy": share, "interval_95": (0.0, 100.0), "n": 2}}
        side["tasks"]["boolq"]["details"]["categories"] = found
    before["model"] = {"name": "tiny", "bytes": 4096}
    after |= {"model": {"name": "smaller", "bytes": 2048, "recipe": "gptq", "bits_per_weight": 4.125}}
    page = check_alone(render_report(json.dumps(after | {"baseline": before})))
    for words in (
        "smaller: evaluated",
        "Model smaller Compared with tiny Recipe gptq Size of its files 4.00 KiB → 2.00 KiB",
        "Bits per quantized weight 4.12, scales and zeros counted",
        "boolq, accuracy +25 points (",
        "inconclusive loses ",
        "boolq by category",
        "STEM 2 100 50 0 … 100",
    ):
        assert words in page.text, words
    assert "Model" not in check_alone(render_report(json.dumps(evaluation([1.0, 0.0])))).text


def test_accuracy_comes_with_intervals_and_a_verdict_in_words() -> None:
    before = evaluation([1.0] * 90 + [0.0] * 10)
    worse = evaluation([1.0] * 60 + [0.0] * 40)
    same = evaluation([0.0, *[1.0] * 90, *[0.0] * 9])
    text = check_alone(render_report(report(*LAYERS, evaluation={"before": before, "after": worse}))).text
    assert "boolq, accuracy 90 → 60, difference -30 (95 %: " in text
    assert "loses 30.0 ± 9.7 points" in text
    assert "Of 1 metric compared, 1 worse, 0 better, 0 without a difference shown." in text
    text = Page(render_report(report(*LAYERS, evaluation={"before": before, "after": same}))).text
    assert "Of 1 metric compared, 0 worse, 0 better, 1 without a difference shown." in text
    assert "tokenizer f00d" in text


def test_predictions_token_by_token_are_in_the_table_and_at_the_top() -> None:
    kl = Items(values=[0.5, 1.5], weights=[100, 300], factor=1.0)
    same = Items(values=[90, 240], weights=[100, 300])
    both = {"token_kl": kl, "top1_agreement": same}
    apart = {
        "protocol": "gptq@2048, token by token",
        "n": 2,
        "metrics": {name: item.metric() for name, item in both.items()},
        "details": {"tokens_predicted": 400, **uncertainty(both)},
    }
    sides = {"before": evaluation([1.0, 0.0]), "after": evaluation([1.0, 0.0])}
    text = check_alone(render_report(report(*LAYERS, evaluation={**sides, "divergence": {"text": apart}}))).text
    assert "text, mean KL from before, nats a token 0.005 (95 %: 0.005 … 0.005): over 400 tokens" in text
    assert "text likeliest token the same as before, % (higher is better) 82.50 80.00 … 90.00 over 400 tokens 2" in text
    assert "Of 1 metric compared" in text
    alone = evaluation([1.0, 0.0]) | {"divergence": {"text": apart}}
    assert "mean KL" not in Page(render_report(json.dumps(alone))).text


def test_a_metric_without_an_interval_is_counted_as_neither_worse_nor_better() -> None:
    before, after = evaluation([1.0, 1.0, 0.0]), evaluation([1.0, 0.0, 0.0])
    for side in (before, after):
        del side["tasks"]["boolq"]["details"]["items"]
    text = Page(render_report(json.dumps(after | {"baseline": before}))).text
    assert "0 worse, 0 better, 0 without a difference shown, 1 without an interval to judge by." in text
    assert "by the figure alone" in text


def paired(low: float, high: float, *, changed: int = 3, p: float | None = None) -> Paired:
    return Paired(items=9, changed=changed, interval=(low, high), relative_interval=None, p_value=p)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"difference": 1.0, "relative": 0.2, "paired": paired(0.5, 1.5)}, "loses 20 ± 10 %"),
        ({"difference": -1.0, "relative": -0.2, "paired": paired(-1.2, -0.5)}, "gains 20 ± 10 %"),
        ({"difference": 1.0, "relative": 0.2, "paired": paired(-0.5, 1.01)}, "no loss larger than 21 % at 95 %"),
        ({"difference": -1.0, "direction": "higher", "paired": paired(-1.5, -0.5)}, "loses 1.00 ± 0.50 points"),
        (
            {"difference": 1.0, "direction": "higher", "paired": paired(-0.43, 2.0)},
            "no loss larger than 0.43 points at 95 %",
        ),
        (
            {"difference": 1.0, "direction": "higher", "paired": paired(0.1, 2.0, p=0.06)},
            "no loss larger than 0 points at 95 %",
        ),
        (
            {"difference": 0.0, "direction": "higher", "paired": paired(-2.0, 2.0, changed=0)},
            "equal on each of 9 items; no loss larger than 2 points at 95 %",
        ),
        ({"difference": 0.0, "relative": 0.0, "paired": paired(0.0, 0.0, changed=0)}, "equal on each of 9 items"),
        ({"difference": 1.0, "relative": 0.2}, "loses 20 % by the figure alone, without an interval to judge by"),
        ({"difference": 0.0, "relative": 0.0}, "equal by the figure alone, without an interval to judge by"),
        ({"note": "tokenizers differ"}, "not compared: tokenizers differ"),
    ],
)
def test_a_verdict_calls_nothing_worse_that_chance_explains(changes: dict[str, Any], words: str) -> None:
    row = ComparisonRow(task="text", metric="perplexity", before=5.0, after=6.0, direction="lower")
    assert verdict(replace(row, **changes)) == words


def test_hostile_names_are_text_and_nothing_else() -> None:
    hostile = report(
        layer(HOSTILE, notes={"fallback": HOSTILE, "tokens": 3}),
        ignored(f"{HOSTILE}.norm", reason=HOSTILE, dtype=HOSTILE),
        model=HOSTILE,
        recipe={"stages": [{HOSTILE: {}}], "description": HOSTILE},
        format=HOSTILE,
        warnings=(HOSTILE,),
        calibration={HOSTILE: HOSTILE},
        environment={HOSTILE: HOSTILE},
        proof={HOSTILE: HOSTILE},
        kv_cache={"scheme": HOSTILE},
        evaluation={"after": {"tasks": {HOSTILE: {**evaluation([1.0, 0.0])["tasks"]["boolq"], "protocol": HOSTILE}}}},
    )
    html = render_report(hostile)
    page = Page(html)
    assert page.scripts == []
    assert not [tag for tag, attributes in page.tags if tag in ("img", "script") or "onerror" in attributes]
    assert page.text.count("{{ 7 * 7 }}") > 10
    assert "&amp;amp;" in html
    benign = Page(render_report(hostile.replace(json.dumps(HOSTILE, ensure_ascii=False)[1:-1], "benign")))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in benign.tags]


def test_a_report_with_nothing_in_it_is_a_page() -> None:
    empty = report(calibration={}, timing={}, environment={}, proof={}, peak_memory=None, recipe={})
    text = check_alone(render_report(empty)).text
    for words in (
        "No layer was rounded",
        "every layer became what",
        "No data was looked at",
        "Nothing: every parameter",
    ):
        assert words in text


def test_equal_reports_are_equal_pages_that_name_the_report_by_its_hash() -> None:
    text = report(*LAYERS)
    assert render_report(text) == render_report(text)
    assert hashlib.sha256(text.encode()).hexdigest() in render_report(text)


def test_the_page_of_an_evaluation_has_its_baseline_beside_it() -> None:
    after, before = evaluation([1.0, 0.0, 1.0]), evaluation([1.0, 1.0, 1.0])
    alone = check_alone(render_report(json.dumps(after)))
    assert "boolq accuracy 66.67" in alone.text
    assert "Verdict" not in alone.text
    beside = check_alone(render_report(json.dumps(after | {"baseline": before})))
    assert "100 66.67" in beside.text
    assert "Verdict" in beside.text


@pytest.mark.parametrize(
    "text", ["", "[]", '{"tasks": {}}', '{"tasks": {"a": {}}}', '{"report_version": 2, "tasks": {}}']
)
def test_what_is_no_report_is_refused_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(DataError, match=r"report\.json: "):
        write_page(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_report_that_lacks_an_inner_field_is_refused_too() -> None:
    for damaged in (
        {"rotation": {"heads": {}}},
        {"evaluation": {"after": {"tasks": {"boolq": {}}}}},
        {"timing": {"a": "b"}},
    ):
        with pytest.raises(DataError, match="lacks a field or has a wrong one"):
            render_report(report(*LAYERS, **damaged))


def test_a_page_stands_beside_its_report(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report(*LAYERS))
    assert write_page(tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").read_text() == render_report(report(*LAYERS))
    with pytest.raises(DataError, match="cannot be read"):
        write_page(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4.54, "4.5 s"), (59.94, "59.9 s"), (65, "1 min 5 s"), (3599.6, "1 h 0 min"), (7530, "2 h 6 min")],
)
def test_a_duration_has_the_units_that_fit_it(seconds: float, words: str) -> None:
    assert format_seconds(seconds) == words
