"""generation_config.json: how a model writes by default, which transformers reads whenever it loads one that writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from goldstick.errors import SourceError


def read_generation_config(directory: Path, model: Any) -> Any:
    """What transformers makes of the file beside a model.

    Args:
        directory: The checkpoint.
        model: Its transformers model, possibly on the meta device.

    Returns:
        The generation config; ``None`` where there is no file, where it is no JSON, which transformers takes for none,
        or where the model does not write.

    Raises:
        SourceError: transformers refuses the file, and so the model.
    """
    file, own = directory / "generation_config.json", getattr(model, "generation_config", None)
    if own is None or not file.is_file():
        return None
    try:
        return type(own).from_pretrained(directory, local_files_only=True)
    except OSError:
        return None
    except Exception as error:  # a stranger's values meet code that expects none of them
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise SourceError(
            f"{file}: transformers refuses it, and would not load the model: {reason.rstrip('.')}. Correct the file, "
            "or remove it: the model then writes by transformers' own settings."
        ) from error
