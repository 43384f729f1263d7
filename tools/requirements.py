"""What goldstick needs, one requirement a line, as pip takes them: ``python tools/requirements.py dev docs``.

Only the standard library is used: this runs in an environment that has nothing else yet.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(extras: list[str]) -> list[str]:
    """Those of the project itself, then those of some extras."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
