"""Fetched: what lies beside the weights of a model on the hub, of which transformers fetches what it knows itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from goldstick.checkpoint.kv_cache import KV_SIDECAR
from goldstick.core.notices import LeftOutWarning


def fetch_cache_scales(directory: Path, model: Any, fetch: Callable[..., str | None]) -> None:
    """Bring the file of a quantized KV cache to the weights that transformers has fetched from the hub.

    Args:
        directory: Where the weights lie: of a hub's model, a folder of the hub's cache.
        model: What they are for; its name is a hub id or a directory.
        fetch: transformers' ``cached_file``, which asks once whether a commit has a file.

    Warns:
        LeftOutWarning: The hub refuses to say whether there is one.
    """
    name = str(model.name_or_path)
    folder = f"models--{name.replace('/', '--')}"
    snapshot = next((one for one in (directory, *directory.parents) if one.parent.name == "snapshots"), None)
    if snapshot is None or snapshot.parent.parent.name != folder or Path(name).is_dir():
        return  # a directory, in which it lies or does not
    try:
        fetch(
            name, KV_SIDECAR, revision=snapshot.name, cache_dir=str(snapshot.parents[2]),
            subfolder=directory.relative_to(snapshot).as_posix().removeprefix("."),
            _raise_exceptions_for_missing_entries=False,
        )  # fmt: skip
    except OSError as error:
        warnings.warn(
            f"Whether {name} has a quantized KV cache could not be asked ({' '.join(str(error).split())[:200]}); it "
            f"runs with a float one. Fetch its {KV_SIDECAR} ('hf download {name}'), or log in, and load it again.",
            LeftOutWarning,
            stacklevel=2,
        )
