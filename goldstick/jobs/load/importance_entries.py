"""What a GGUF file says of the importance matrix that its weights were rounded with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldstick.algorithms.column_importance import WITH_IMPORTANCE
from goldstick.checkpoint.gguf.importance import quantized_with, quantized_with_file
from goldstick.jobs.load.importance import GgufPlaces, importance_files
from goldstick.recipes.resolve import Resolution
from goldstick.structure.network import Network


def importance_entries(
    resolution: Resolution, network: Network, audit: Mapping[str, Any], saved_as: str = ""
) -> dict[str, str | int]:
    """The entries ``quantize.imatrix.…``; none where no search of ranges looks at inputs.

    Args:
        resolution: What a recipe means for the network.
        network: The network of a transformers model, with or without numbers.
        audit: Of the calibration data, where inputs were measured; empty before.
        saved_as: Name of the file in which they are kept; empty where they are not.
    """
    files = importance_files(resolution)
    if files:
        return dict(quantized_with_file(Path(files[0])))
    observed = [one for one in resolution.assignments.values() if one.stage.needs_inputs(one.scheme)]
    if not audit or not any(getattr(one.stage, "range_search", None) in WITH_IMPORTANCE for one in observed):
        return {}
    places = GgufPlaces(network)
    names = {name for one in observed for place in places.of_site(one.site) for name in place.names}
    return quantized_with(saved_as, str(audit.get("dataset", "")), len(names), int(audit.get("samples", 0)))
