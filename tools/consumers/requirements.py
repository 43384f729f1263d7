"""Print what an installed package asks for, less the packages named after it."""

from __future__ import annotations

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement


def main(package: str, *left_out: str) -> None:
    """A line for each requirement that holds here without extras."""
    for line in requires(package) or ():
        wanted = Requirement(line)
        if wanted.name not in left_out and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            print(line.partition(";")[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
