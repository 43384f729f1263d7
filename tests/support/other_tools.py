"""Files that other tools wrote."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "data" / "other_tools"
