"""How a search is done, beside what is asked for and what is chosen among."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.effort import Effort


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The rows, the effort, and who does it.

    Attributes:
        text: The rows that changes are measured on, and their seed.
        held_out: Text of the rows that a choice is judged on; other rows of ``text`` where ``None``.
        held_out_rows: How many these are.
        data_dir: Where sets of text known by name lie.
        effort: ``fast`` takes gradients alone; ``default`` measures what is near the decision and tries exchanges;
            ``best`` measures all.
        prune: Whether layers may lose channels, which are scored on the recipe's calibration data.
        journal: The file that lets a search that was stopped go on.
        progress: Told what is done.
        ranks: Who does it together; all of them find the same.
    """

    text: Calibration
    held_out: str | None = None
    held_out_rows: int = 32
    data_dir: Path | None = None
    effort: Effort = "default"
    prune: bool = False
    journal: Path | None = None
    progress: Progress = quiet
    ranks: Ranks = field(default_factory=Ranks)
