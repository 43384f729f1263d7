"""What several processes measure or convert together; the first writes what it found as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import goldstick
from goldstick.cli import main
from goldstick.core.json_files import dump_json
from goldstick.core.ranks import Ranks
from goldstick.jobs.evaluate.divergence import compare_predictions
from goldstick.jobs.sensitivity.attribution import attribute as split_loss
from goldstick.jobs.sensitivity.sensitivity import measure_sensitivity
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe


def evaluate(job: Mapping[str, Any]) -> None:
    """Evaluate ``model`` on ``tasks``, and compare its predictions with those of ``baseline``."""
    tasks, cache = job["tasks"], Path(job["cache"]) if "cache" in job else None
    found = goldstick.evaluate(job["model"], tasks, limit=9, cache=cache).to_dict()
    apart = compare_predictions(Path(job["baseline"]), Path(job["model"]), tasks, limit=9, ranks=Ranks.joined())
    _write(job, {**found, "divergence": apart})


def sensitivity(job: Mapping[str, Any]) -> None:
    """The sensitivity of ``model`` on ``text``."""
    recipe, text = Recipe.load("rtn-w4a16-g32"), Calibration(**job["text"])
    _write(job, measure_sensitivity(Path(job["model"]), recipe, (3, 4), text, ranks=Ranks.joined()).to_dict())


def attribute(job: Mapping[str, Any]) -> None:
    """What ``compressed`` lost of ``model``, by its parts."""
    text = Calibration(**job["text"])
    _write(job, split_loss(Path(job["model"]), Path(job["compressed"]), text, ranks=Ranks.joined()).to_dict())


def search(job: Mapping[str, Any]) -> None:
    """A recipe for ``model`` at 5 bits a weight, and the record of the search."""
    found = goldstick.search(job["model"], **job["options"])
    _write(job, {"recipe": found.model_dump(mode="json"), "record": found.search})


def export(job: Mapping[str, Any]) -> None:
    """Store ``compressed`` in another format."""
    goldstick.export(job["compressed"], "native", output=job["output"], proof="tensors")


def command(job: Mapping[str, Any]) -> None:
    """A command line of goldstick; its proofs are taken for granted."""
    from goldstick.jobs.save import finish

    with patch.object(finish, "prove", lambda *_: {"passed": True}):
        main(job["arguments"], standalone_mode=False)


def _write(job: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    from goldstick.core.processes import rank

    path = Path(job["output"]).with_suffix(f".{rank()}.json")
    path.write_text(dump_json(found), encoding="utf-8")
