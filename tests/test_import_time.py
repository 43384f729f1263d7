"""`goldstick --help` and `recipes list` answer at once, and `plan` soon: nothing is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HELP = """
import goldstick.cli
try:
    goldstick.cli.main(["--help"])
except SystemExit as end:
    assert not end.code
"""
PLAN = HELP.replace('["--help"]', '["plan", "reference"WORDS]')
RECIPES = [f', "--recipe", "{name}"' for name in ("rtn-w8a8-dynamic", "gptq-w4a16-g128")]
HEAVY = ["torch", "transformers", "datasets", "numpy"]


#: What runs, measures, judges or stores what a plan only foretells.
NOT_FOR_A_PLAN = {
    "goldstick.api",
    "goldstick.surgery",
    "goldstick.nn",
    "goldstick.kernels",
    "goldstick.training",
    "goldstick.calibration.sweep",
    "goldstick.calibration.block",
    "goldstick.recipes.run",
    "goldstick.recipes.train",
    "goldstick.jobs.search",
    "goldstick.jobs.doctor.examine",
    "goldstick.jobs.optimize",
    "goldstick.jobs.evaluate",
    "goldstick.jobs.bench",
    "goldstick.jobs.quantize",
    "goldstick.jobs.export",
    "goldstick.jobs.save",
    "goldstick.jobs.proof",
    "goldstick.jobs.load.plain_module",
    "goldstick.jobs.load.accelerate",
    "goldstick.report.page",
    "goldstick.report.search_page",
    "datasets",
    "lm_eval",
    "plotly",
    "soundfile",
    "pyarrow",
}


def modules_after(statement: str) -> set[str]:
    """The modules a fresh interpreter has loaded after ``statement``."""
    script = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement",
    [
        "import goldstick",
        "import goldstick.cli",
        HELP,
        HELP.replace('["--help"]', '["quantize", "--help"]'),
        HELP.replace('["--help"]', '["recipes", "list"]'),
    ],
    ids=["package", "cli", "help", "help-of-quantize", "recipes-list"],
)
def test_the_command_line_starts_without_heavy_libraries(statement: str) -> None:
    loaded = modules_after(statement) & set(HEAVY)
    assert not loaded, f"{statement} imports {sorted(loaded)}"


def test_a_plan_imports_nothing_that_only_a_run_needs() -> None:
    loaded = modules_after("".join(PLAN.replace("WORDS", words) for words in ("", *RECIPES)))
    assert "goldstick.jobs.plan.plan" in loaded
    assert sorted(loaded & NOT_FOR_A_PLAN) == []
