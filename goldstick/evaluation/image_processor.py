"""The image processor of a transformers model, as what makes a classifier's inputs of image files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldstick.errors import DataError, SourceError
from goldstick.evaluation.image_preparation import decode_image, require_pillow
from goldstick.evaluation.processors import read_processor

_LARGEST = 8192
_SIDE = 64


class ProcessorPreparation:
    """What transformers' own image processor of a model does with an image, every setting of it included.

    Args:
        processor: The image processor. It makes ``pixel_values`` [1, channels, height, width] of one image.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    @classmethod
    def from_directory(cls, directory: Path | str, config: Any = None) -> ProcessorPreparation:
        """Read ``preprocessor_config.json`` of a transformers model, and try it.

        Args:
            directory: The model's directory.
            config: The model's configuration, which says whose processor it is where the file does not.

        Raises:
            UsageError: A package is not installed that reads images.
            SourceError: There is no usable one.
        """
        require_pillow()
        found = cls(read_processor(Path(directory), "image", config))
        try:
            found._require_possible()
        except Exception as error:  # whatever transformers' classes raise on settings that are odd
            cause = "; ".join([" ".join(str(error).split())[:300], *found._nulls()])
            raise SourceError(
                f"{directory}: preprocessor_config.json cannot be followed ({cause}); images are prepared as it says. "
                "Copy the file of the model it was made from"
            ) from error
        return found

    def __call__(self, encoded: bytes, where: str) -> Tensor:
        """Return float32 [channels, height, width] of an image file's bytes; ``where`` is what messages call it.

        Raises:
            DataError: It is no image, or none that the processor takes.
        """
        image = decode_image(encoded, where)
        try:
            return self._prepared(image)
        except ValueError as error:
            raise DataError(f"{where}: the model's image processor does not take it ({error})") from error

    def __repr__(self) -> str:
        return repr(self._processor)

    def _prepared(self, image: Any) -> Tensor:
        made: Mapping[str, Any] = self._processor(image, return_tensors="pt")
        pixels = made.get("pixel_values")
        if set(made) != {"pixel_values"} or not isinstance(pixels, Tensor) or pixels.ndim != 4 or len(pixels) != 1:
            shapes = ", ".join(f"{name} {list(getattr(value, 'shape', ()))}" for name, value in made.items())
            raise ValueError(f"it makes {shapes or 'nothing'} of an image, and not pixel_values [1, channels, …] alone")
        return pixels[0].float()

    def _nulls(self) -> list[str]:
        """Settings without a value that processors of this class have one of."""
        usual, here = type(self._processor), vars(self._processor)
        return [f"{name} is null" for name in here if here[name] is None and getattr(usual, name, None) is not None]

    def _require_possible(self) -> None:
        """Raise ValueError for settings that would take all memory, or that make no numbers of an image."""
        settings = self._processor.to_dict()
        for name, number in _numbers(settings, ""):
            if not math.isfinite(number) or abs(number) > _LARGEST:
                raise ValueError(f"{name.strip('.')} is {number:.6g}, and numbers go to {_LARGEST:,} there")
        share = settings.get("crop_pct")
        if share is not None and not 0.1 <= share <= 1:
            raise ValueError(f"crop_pct is {share}, and goes from 0.1 to 1")
        with np.errstate(all="ignore"):
            pixels = self._prepared(np.full((_SIDE, _SIDE, 3), 100, dtype=np.uint8))
        if not bool(torch.isfinite(pixels).all()):
            raise ValueError("image_mean, image_std and rescale_factor make no finite numbers of an image")


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """The numbers among settings, each with its name."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _numbers(one, f"{name}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _numbers(one, name)
    elif isinstance(value, int | float):
        yield name, value
