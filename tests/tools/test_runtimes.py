"""docs/runtimes.md says what the rules say."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldstick.jobs.doctor.runtimes import RUNTIMES
from tools.runtimes import section, support_table

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "runtimes.md"


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_page_holds_the_tables_that_the_rules_give(name: str) -> None:
    assert section(RUNTIMES[name]) in PAGE.read_text(encoding="utf-8"), "run python -m tools.runtimes, and paste"


def test_rows_of_the_table_say_what_the_sources_say() -> None:
    """Some of the facts, written out once more by hand."""
    rows = support_table(RUNTIMES["vllm"]).splitlines()
    (hopper,) = [row for row in rows if "`w4afp8`" in row]
    assert "9.0 alone (Hopper)" in hopper
    assert any("`w4a8-static-g128`" in row and row.endswith("| – | – | – |") for row in rows)
    (blocks,) = [row for row in support_table(RUNTIMES["sglang"]).splitlines() if "`fp8a16-block`" in row]
    assert blocks.endswith("| – | – | – |")
