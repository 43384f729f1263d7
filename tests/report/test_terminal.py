"""What a reader sees, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from goldstick.evaluation import Evaluation, TaskResult, compare
from goldstick.report import Report, SizeSummary
from goldstick.report.grouping import group_layers
from goldstick.report.terminal import (
    print_comparison,
    print_evaluation,
    print_layers,
    print_report,
    print_size,
)
from goldstick.report.words import format_bytes
from tests.support.report_records import record

BLOCKS = tuple(
    layer
    for block in range(4)
    for layer in (
        record(f"model.layers.{block}.q_proj.weight", weight_sqnr_db=20.0 + block, max_abs_error=0.01 * block),
        record(
            f"model.layers.{block}.norm.weight",
            shape=(32,),
            bytes_before=64,
            bytes_after=64,
            scheme=None,
            algorithm=None,
            reason="a norm [not a matrix]",
            weight_sqnr_db=None,
            max_abs_error=None,
        ),
    )
)


def plain(width: int = 20) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=False, width=width), output


def evaluation(value: float) -> Evaluation:
    result = TaskResult(
        protocol="gptq@2048",
        n=3,
        metrics={"perplexity": value},
        details={"interval_95": {"perplexity": [5.0, 7.0]}},
    )
    return Evaluation(results={"wikitext2": result}, tokenizer="t")


def test_equal_rows_of_repeated_blocks_become_one_with_their_number() -> None:
    groups = group_layers(BLOCKS)
    assert [(group.name, len(group.records)) for group in groups] == [
        ("model.layers.[0-3].q_proj.weight", 4),
        ("model.layers.[0-3].norm.weight", 4),
    ]
    assert groups[0].bytes_before == 4 * 4096
    assert groups[0].sqnr_range == (20.0, 23.0)
    assert groups[0].max_abs_error == pytest.approx(0.03)


def test_a_block_treated_differently_is_seen() -> None:
    layers = [record(f"h.{i}.mlp.{j}.weight", scheme="w8a16" if i == 2 else "w4a16") for i in range(5) for j in (0, 2)]
    names = [group.name for group in group_layers(layers)]
    assert names == ["h.[0-1,3-4].mlp.[0,2].weight", "h.2.mlp.[0,2].weight"]


def test_verbose_gives_every_parameter_its_line() -> None:
    assert [group.name for group in group_layers(BLOCKS, verbose=True)] == [layer.name for layer in BLOCKS]


def test_a_file_gets_plain_lines_in_columns_that_are_never_broken() -> None:
    console, output = plain()
    print_layers(console, BLOCKS)
    lines = output.getvalue().splitlines()
    assert lines[0] == "Layers"
    assert len(lines) == 4
    assert lines[2].index("bfloat16") == lines[3].index("bfloat16") == lines[1].index("dtype")
    assert "left alone: a norm [not a matrix]" in lines[3]
    assert "w4a16-g128 (gptq)" in lines[2] and "20.0 … 23.0" in lines[2] and "0.03" in lines[2]
    assert all(character not in output.getvalue() for character in "┃│\x1b")


def test_a_terminal_gets_a_table_and_no_colour_codes_under_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=200)
    print_layers(console, BLOCKS)
    print_size(console, SizeSummary.of(BLOCKS))
    assert "│" in output.getvalue()
    assert "a norm [not a matrix]" in output.getvalue()
    assert not any(f"\x1b[{code}m" in output.getvalue() for code in range(30, 38))


def test_the_size_says_how_much_is_left() -> None:
    console, output = plain()
    print_size(console, SizeSummary(bytes_before=4096, bytes_after=1024, bits_per_weight=4.25))
    assert output.getvalue() == "size: 4.00 KiB -> 1.00 KiB (25.0 %), 4.25 bits per quantized weight\n"


def test_the_comparison_shows_before_after_and_the_difference() -> None:
    console, output = plain()
    print_comparison(console, compare(evaluation(6.6), evaluation(6.0)))
    words = output.getvalue().splitlines()[2].split(maxsplit=7)
    assert words[:7] == ["wikitext2", "perplexity", "6", "6.6", "+0.6", "+10.00", "%"]
    assert words[7] == "loses 10 % by the figure alone, without an interval to judge by"


def test_one_evaluation_shows_its_interval_and_protocol() -> None:
    console, output = plain()
    print_evaluation(console, evaluation(6.0).to_dict())
    assert output.getvalue().splitlines()[2].split() == [
        "wikitext2",
        "perplexity",
        "6",
        "5",
        "…",
        "7",
        "3",
        "gptq@2048",
    ]


def test_a_whole_report_prints_its_warnings() -> None:
    report = Report(
        goldstick_version="0",
        model="m",
        recipe={},
        format="native",
        size=SizeSummary.of(BLOCKS),
        layers=BLOCKS,
        warnings=("[bold]three[/bold] experts saw no token",),
    )
    console, output = plain()
    print_report(console, report, compare(evaluation(6.0), evaluation(6.0)))
    assert output.getvalue().endswith("warning: [bold]three[/bold] experts saw no token\n")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**20, "3.00 MiB"),
        (1536 * 2**20, "1.50 GiB"),
        (2**42, "4096.00 GiB"),
    ],
)
def test_sizes_are_told_in_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert format_bytes(count) == text
