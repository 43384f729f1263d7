"""The numbers in a drawing, worked out by hand."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from goldstick.report.svg import Mark, bars, cells, height_of, lines, marks


def rectangles(drawing: str, kind: str) -> list[dict[str, float]]:
    found = re.findall(rf'<rect class="{kind}" ([^>]*)/>', drawing)
    return [{name: float(value) for name, value in re.findall(r'([\w-]+)="([^"]*)"', one)} for one in found]


def test_a_value_stands_at_its_share_of_the_height() -> None:
    assert height_of(10.0, 10.0, 30.0) == 40.0
    assert height_of(30.0, 10.0, 30.0) == 0.0
    assert height_of(15.0, 10.0, 30.0) == 30.0
    assert height_of(math.inf, 10.0, 30.0) == 0.0
    assert height_of(-math.inf, 10.0, 30.0) == 40.0
    assert height_of(5.0, 5.0, 5.0) == 20.0


def test_marks_stand_side_by_side_centred_on_their_values() -> None:
    values = [Mark(label="a", value=20.0), Mark(label="b", value=25.0), Mark(label="c", value=math.nan)]
    drawing = marks(values, 10.0, 30.0, "three layers", line=20.0)
    assert rectangles(drawing, "mark") == [
        {"x": 0.0, "y": 19.0, "width": 30.0, "height": 2.0},
        {"x": 33.333, "y": 9.0, "width": 30.0, "height": 2.0},
    ]
    assert '<line class="limit" x1="0" x2="100.0" y1="20.0" y2="20.0"/>' in drawing
    assert drawing.count("<title>") == 2


@pytest.mark.parametrize(("value", "top"), [(30.0, 0.0), (math.inf, 0.0), (10.0, 38.0)])
def test_a_mark_at_the_edge_is_wholly_inside(value: float, top: float) -> None:
    assert rectangles(marks([Mark(label="a", value=value)], 10.0, 30.0, "one"), "mark")[0]["y"] == top


def test_bars_are_as_long_as_their_bytes() -> None:
    drawing = bars(2048, 512, 4096, "2 KiB before, 512 B after")
    assert [one["width"] for one in rectangles(drawing, "before")] == [50.0]
    assert [one["width"] for one in rectangles(drawing, "after")] == [12.5]
    assert rectangles(bars(0, 0, 0, "nothing"), "before")[0]["width"] == 0.0


def test_names_in_a_drawing_are_escaped() -> None:
    hostile = '"><script>alert(1)</script>&'
    drawing = marks([Mark(label=hostile, value=1.0)], 0.0, 2.0, hostile)
    assert "<script" not in drawing

    class Reader(HTMLParser):
        titles: list[str]
        labels: list[str]
        inside = False

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.inside = tag == "title"
            self.labels += [value or "" for name, value in attrs if name == "aria-label"]

        def handle_data(self, data: str) -> None:
            self.titles += [data] if self.inside else []

    reader = Reader()
    reader.titles, reader.labels = [], []
    reader.feed(drawing)
    reader.close()
    assert "".join(reader.titles) == hostile
    assert reader.labels == [hostile]


def test_a_cell_is_the_stronger_the_larger_its_value_on_a_logarithmic_scale() -> None:
    values = [Mark(label=str(value), value=value) for value in (1e-4, 1e-3, 1e-2, 0.0, 5.0, math.nan)]
    found = rectangles(cells(values, 1e-4, 1e-2, "six layers"), "cell")
    assert [one["fill-opacity"] for one in found] == [0.06, 0.53, 1.0, 0.06, 1.0, 1.0]
    assert [one["x"] for one in found] == [0.0, 16.667, 33.333, 50.0, 66.667, 83.333]


def test_a_line_goes_from_edge_to_edge_at_the_height_of_its_values() -> None:
    drawing = lines([("most", [0.0, 2.0, 4.0]), ("mean", [1.0])], 4.0, "two lines")
    points = re.findall(r'<polyline class="(\w+)" points="([^"]*)"/>', drawing)
    assert points == [("most", "0.000,40.0 50.000,20.0 100.000,0.0"), ("mean", "0.000,30.0 100.000,30.0")]
    assert "0.000,40" in lines([("mean", [0.0])], 0.0, "nothing")
