"""What to say of a directory in which no weights lie under the names that every reader looks for."""

from __future__ import annotations

import re
from pathlib import Path

_VARIANT = re.compile(r"model\.(?:(safetensors\.index)\.[\w-]+\.json|(?!.*-of-)[\w-]+\.safetensors)")


def no_weights(directory: Path, single: str, index: str, pickled: tuple[str, ...]) -> str:
    """What hinders, and the remedy: only pickles are there, or only a variant, as transformers names it, or nothing.

    Args:
        directory: The checkpoint.
        single: The name that one weight file has.
        index: The name that the index of several has.
        pickled: Suffixes of pickles.
    """
    names = sorted(path.name for path in directory.iterdir())
    pickles = [name for name in names if name.endswith(pickled)]
    variants = {name: index if match[1] else single for name in names if (match := _VARIANT.fullmatch(name))}
    if pickles and not variants:
        return (
            f"{directory} holds its weights as pickles ({', '.join(pickles[:3])}), which can run code when opened. "
            "Convert them to safetensors first: load the model with transformers and call save_pretrained."
        )
    remedies = ", or ".join(f"{name} to {usual}" for name, usual in list(variants.items())[:3])
    remedy = f" Rename the variant that is meant: {remedies}." if variants else ""
    return f"{directory} holds no weights: neither {single} nor {index} is there.{remedy}"
