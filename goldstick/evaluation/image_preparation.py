"""From the bytes of an image file to what a classifier is given: the one file that imports Pillow."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldstick.errors import DataError, SourceError, UsageError

BICUBIC = 3
BILINEAR = 2
_RESAMPLING = range(6)
_LARGEST_EDGE = 8192


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

    def _require_possible(self) -> None:
        """Raise ValueError for what no image is prepared by: it comes with a checkpoint."""
        edges = (*(self.resize or ()), *(self.crop or ()), 1 if self.shortest_edge is None else self.shortest_edge)
        if not all(type(edge) is int and 0 < edge <= _LARGEST_EDGE for edge in edges):
            raise ValueError(f"an edge of {shown(edges)} pixels, which go from 1 to {_LARGEST_EDGE:,}")
        numbers = (*self.mean, *self.std)
        if len(self.mean) != 3 or len(self.std) != 3 or not all(isinstance(one, int | float) for one in numbers):
            raise ValueError("image_mean and image_std are not three numbers each")
        if not all(math.isfinite(one) for one in numbers) or not all(self.std) or self.resample not in _RESAMPLING:
            raise ValueError("a mean, a deviation or a resampling that is none")

    @classmethod
    def from_directory(cls, directory: Path | str) -> Preparation:
        """Read ``preprocessor_config.json`` of a transformers model. Raises SourceError without a usable one."""
        path = Path(directory) / "preprocessor_config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            return cls.from_config(config)
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            cause = repr(error)[:300]
            raise SourceError(f"{path}: cannot be read ({cause}); images are prepared as it says") from error

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Preparation:
        """Return what the settings of one of transformers' image processors say.

        ``size`` and ``crop_size`` are numbers or mappings; with ``crop_pct`` (ConvNeXt and ResNet) and an edge below
        384 the shorter edge becomes size / crop_pct and the middle is kept. Raises ValueError for other rescaling than
        by 1/255.
        """
        if config.get("do_rescale", True) and abs(255 * config.get("rescale_factor", 1 / 255) - 1) > 1e-6:
            raise ValueError(f"rescale_factor={config['rescale_factor']} is not 1/255")
        normalized = config.get("do_normalize", True)
        found: dict[str, Any] = {
            "mean": tuple(config["image_mean"]) if normalized else (0.0,) * 3,
            "std": tuple(config["image_std"]) if normalized else (1.0,) * 3,
            "resample": int(config.get("resample", BILINEAR)),
        }
        size = config.get("size")
        edge = size if isinstance(size, int) else (size or {}).get("shortest_edge")
        if config.get("do_resize", True) and size is not None:
            if "crop_pct" in config and edge is not None:
                found |= {"shortest_edge": int(edge / config["crop_pct"])} if edge < 384 else {"resize": (edge, edge)}
                found |= {"crop": (edge, edge)} if edge < 384 else {}
            elif isinstance(size, int) or edge is None:
                found["resize"] = _height_and_width(size)
            else:
                found["shortest_edge"] = edge
        if config.get("do_center_crop"):
            found["crop"] = _height_and_width(config["crop_size"])
        prepared = cls(**found)
        prepared._require_possible()
        return prepared

    def __call__(self, encoded: bytes, where: str) -> Tensor:
        """Return float32 [channels, height, width] of an image file's bytes; ``where`` is what messages call it.

        Raises DataError where it is no image, UsageError without Pillow.
        """
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(encoded)) as opened:
                image = opened.convert("RGB")
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{where}: no image that can be read ({error})") from error
        target = self._target(image.height, image.width)
        if target is not None:
            image = image.resize((target[1], target[0]), resample=Image.Resampling(self.resample))
        if self.crop is not None:
            top, left = ((have - keep) // 2 for have, keep in zip((image.height, image.width), self.crop, strict=True))
            image = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]

    def _target(self, height: int, width: int) -> tuple[int, int] | None:
        if self.shortest_edge is None:
            return self.resize
        edge = self.shortest_edge
        # Multiplied before it is divided, as transformers does: a quotient first may fall short of a whole number.
        longer = int(edge * max(height, width) / min(height, width))
        return (edge, longer) if height <= width else (longer, edge)


def _height_and_width(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size["height"]), int(size["width"]))


def require_pillow() -> None:
    """Raise UsageError where Pillow, which reads image files, is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "images are read with Pillow, which is not installed: pip install 'goldstick[eval]'"
        ) from error


def read_image(path: Path) -> Any:
    """An image file as Pillow's image of three channels. Raises DataError where it is none."""
    require_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            return opened.convert("RGB")
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: no image that can be read; leave it out, or save it again as PNG or JPEG") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: no image that can be read ({error}); leave it out, or save it again") from error
