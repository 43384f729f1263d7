"""`goldstick --help` and `recipes list` answer at once: nothing heavy is imported before a command needs it."""

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
HEAVY = ["torch", "transformers", "datasets", "numpy"]


def modules_after(statement: str) -> set[str]:
    """The top-level modules a fresh interpreter has loaded after ``statement``."""
    script = f"{statement}\nimport sys\nprint(*sorted(name for name in sys.modules if '.' not in name))"
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
    if (
        "cli" in statement
        and not (ROOT / "goldstick" / "cli.py").exists()
        and not (ROOT / "goldstick" / "cli").exists()
    ):
        pytest.skip("goldstick/cli.py does not exist yet")
    loaded = modules_after(statement) & set(HEAVY)
    assert not loaded, f"{statement} imports {sorted(loaded)}"
