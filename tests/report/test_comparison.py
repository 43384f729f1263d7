"""Two models side by side: where they part, the tree, and its page."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from goldstick.core.json_files import dump_json
from goldstick.report.comparison_page import render_comparison
from goldstick.report.comparison_tree import comparison_tree, print_model_comparison
from goldstick.report.model_comparison import severity
from tests.support.pages import Page, check_alone
from tests.support.report_content import MODULES, comparison, found

HOSTILE = "x\"><script>alert('x')</script>{{ 7 }}"


@pytest.mark.parametrize(
    ("sqnr_db", "band"),
    [
        (math.inf, "equal"),
        (300.0, "small"),
        (30.0, "small"),
        (29.9, "visible"),
        (19.9, "large"),
        (9.9, "severe"),
        (-math.inf, "severe"),
        (math.nan, "severe"),
    ],
)
def test_the_bands_of_severity_begin_at_their_decibels(sqnr_db: float, band: str) -> None:
    assert severity(sqnr_db) == band


def test_models_part_at_the_first_module_to_finish_below_the_threshold() -> None:
    parting = comparison(*MODULES).parting
    assert parting is not None and parting.name == "layers.0"
    assert comparison(*MODULES, threshold=3.0).parting is None
    later = comparison(found("a", 40.0), found("b", math.nan)).parting
    assert later is not None and later.name == "b"


def test_the_tree_has_containers_that_did_not_run_and_what_is_in_one_model_only() -> None:
    root = comparison_tree(
        comparison(*MODULES, only_first=("layers.0.extra",), not_compared=(("pooler", "shapes differ"),))
    )
    assert [child.path for child in root.children] == ["embed", "layers", "pooler"]
    layers = root.children[1]
    assert layers.found is None
    assert [child.label for child in layers.children] == ["0", "1"]
    assert [(child.label, child.note) for child in layers.children[0].children] == [
        ("q", None),
        ("extra", "in the first model only"),
    ]
    assert layers.worst == "severe"
    assert root.children[0].worst == "equal"
    assert root.children[2].note == "not compared: shapes differ"


def printed(depth: int) -> list[str]:
    output = io.StringIO()
    print_model_comparison(Console(file=output, width=20), comparison(*MODULES, only_second=("extra",)), depth)
    return output.getvalue().splitlines()


def test_a_terminal_shows_the_tree_to_a_depth_and_where_the_models_part() -> None:
    lines = printed(depth=3)
    assert lines[0] == "Compared on noise"
    (q, *_) = [line for line in lines if line.startswith("      q ")]
    assert q.split() == ["q", "Linear", "→", "QuantizedLinear", "25.0", "0.500000", "0.25"]
    assert [line.split()[0] for line in lines if line.endswith("parts here")] == ["0"]
    assert lines[-2] == "verdict: fail: the models part at layers.0: 9.5 dB, below 10 dB"
    assert lines[-1] == "in the second model only: extra"


def test_a_folded_node_says_what_it_hides() -> None:
    lines = printed(depth=1)
    assert not [line for line in lines if line.strip().startswith("q ")]
    (layers,) = [line for line in lines if line.strip().startswith("layers")]
    assert layers.endswith("parts in here")


def test_the_page_has_a_node_for_every_module_and_opens_the_way_to_the_parting() -> None:
    page = check_alone(render_comparison(comparison(*MODULES)), scripts=1)
    nodes = {attributes["data-path"]: (tag, attributes) for tag, attributes in page.tags if "data-path" in attributes}
    assert set(nodes) == {"", "embed", "layers", "layers.0", "layers.0.q", "layers.1", "layers.1.q"}
    assert [path for path, (_, attributes) in nodes.items() if "open" in attributes] == ["", "layers", "layers.0"]
    assert nodes["layers.0.q"][0] == "div" and nodes["layers.0.q"][1]["data-severity"] == "visible"
    assert "The models part at layers.0: 9.5 dB, below 10 dB" in page.text
    assert [box["value"] for box in page.all("input") if box["type"] == "checkbox"] == [
        "equal", "small", "visible", "large", "severe",
    ]  # fmt: skip
    assert "below 10 dB 2" in page.text


def test_hostile_names_are_text_on_the_page_too() -> None:
    hostile = comparison(
        found(HOSTILE, 5.0, first_kind=HOSTILE),
        first=HOSTILE,
        second=HOSTILE,
        inputs=HOSTILE,
        only_first=(f"{HOSTILE}1",),
        not_compared=((f"{HOSTILE}2", HOSTILE),),
    )
    page = Page(render_comparison(hostile))
    assert len(page.scripts) == 1
    assert "alert" not in page.scripts[0]
    assert HOSTILE in {attributes.get("data-path") for _, attributes in page.tags}
    assert "{{ 7 }}" in page.text


def test_a_comparison_is_plain_data() -> None:
    data = json.loads(dump_json(comparison(*MODULES, not_compared=(("pooler", "shapes differ"),)).to_dict()))
    assert data["parting"] == "layers.0"
    assert data["modules"][0]["sqnr_db"] == "Infinity"
    assert data["modules"][0]["severity"] == "equal"
    assert data["not_compared"] == {"pooler": "shapes differ"}
