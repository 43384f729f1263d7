"""From the bytes of an image file to what a classifier is given: the one file that imports Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldstick.errors import DataError, UsageError

BILINEAR = 2

#: Endings of files of images. One that Pillow, as it is installed, cannot read is an error, and not passed over.
IMAGES = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    ".avif", ".heic", ".heif", ".jp2", ".jxl",
)  # fmt: skip

_UNIDENTIFIED = "leave it out, or save it again as PNG or JPEG"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is done with an image: resized, cut in the middle, divided by 255, made of mean 0 and deviation 1.

    Args:
        mean: what is subtracted from each channel, of values from 0 to 1.
        std: what each channel is divided by then.
        resize: (height, width) to resize to, or None.
        shortest_edge: the length to resize the shorter edge to, proportions kept, or None.
        crop: (height, width) of the middle that is kept, or None for all.
        resample: Pillow's number of the interpolation, 2 bilinear and 3 bicubic.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: tuple[int, int] | None = None
    shortest_edge: int | None = None
    crop: tuple[int, int] | None = None
    resample: int = BILINEAR

    def __call__(self, encoded: bytes, where: str) -> Tensor:
        """Return float32 [channels, height, width] of an image file's bytes; ``where`` is what messages call it.

        Raises DataError where it is no image, UsageError without Pillow.
        """
        from PIL import Image

        image = decode_image(encoded, where)
        target = self._target(image.height, image.width)
        if target is not None:
            image = image.resize((target[1], target[0]), resample=Image.Resampling(self.resample))
        if self.crop is not None:
            top, left = ((have - keep) // 2 for have, keep in zip((image.height, image.width), self.crop, strict=True))
            image = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(each, dtype=torch.float32)[:, None, None] for each in (self.mean, self.std))
        return (pixels - mean) / std

    def _target(self, height: int, width: int) -> tuple[int, int] | None:
        if self.shortest_edge is None:
            return self.resize
        edge = self.shortest_edge
        # Multiplied before it is divided, as transformers does: a quotient first may fall short of a whole number.
        longer = int(edge * max(height, width) / min(height, width))
        return (edge, longer) if height <= width else (longer, edge)


def decode_image(encoded: bytes, where: str) -> Any:
    """The bytes of an image file as Pillow's image of three channels, upright as its camera says.

    Args:
        encoded: The bytes.
        where: What messages call it.

    Raises:
        DataError: It is none.
    """
    return _upright(io.BytesIO(encoded), where)


def require_pillow() -> None:
    """Raise UsageError where Pillow, which reads image files, is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "images are read with Pillow, which is not installed: pip install 'goldstick[eval]'"
        ) from error


def read_image(path: Path) -> Any:
    """An image file as Pillow's image of three channels, upright as its camera says. DataError where it is none."""
    require_pillow()
    return _upright(path, str(path))


def _upright(file: Path | io.BytesIO, where: str) -> Any:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            return _three_channels(ImageOps.exif_transpose(opened), opened.format)
    except UnidentifiedImageError as error:
        raise DataError(f"{where}: no image that can be read; {_UNIDENTIFIED}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: no image that can be read ({error}); leave it out, or save it again") from error


def _three_channels(image: Any, file_format: str | None) -> Any:
    """An image in three channels of 8 bits, at which Pillow alone would cut grey levels of more bits off.

    Raises:
        ValueError: It has a range of grey levels that nothing in the file tells.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and file_format == "PPM"):  # from 0 to 65535
        levels = np.asarray(image).astype(np.float64) * (255 / 65535)
        image = Image.fromarray(levels.round().astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its grey levels have 32 bits, and nothing says what black and white are among them")
    elif image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # Pillow warns of going to three channels at once
    return image.convert("RGB")
