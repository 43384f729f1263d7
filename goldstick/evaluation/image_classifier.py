"""A classifier of images as the evaluation tasks see it: files of images in, a score for each class out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from goldstick.core.ranks import Ranks
from goldstick.errors import DataError, UsageError
from goldstick.evaluation.batching import Advance
from goldstick.evaluation.forward import device_of, evaluating, require_numbers
from goldstick.evaluation.image_preparation import Preparation, require_pillow
from goldstick.evaluation.image_processor import ProcessorPreparation

IMAGES_PER_BATCH = 64
_NAMED = 12


class ImageClassifier:
    """Any module from images to scores, and what is done with an image first.

    Args:
        model: a module whose forward takes float32 [images, channels, height, width] and returns scores [images,
            classes], as they are or as ``.logits``.
        preparation: from the bytes of a file, and what messages call it, to a tensor.
        images_per_batch: images of a forward pass.
    """

    kind: ClassVar[str] = "an image classifier"

    def __init__(
        self,
        model: nn.Module,
        preparation: Preparation | ProcessorPreparation,
        *,
        images_per_batch: int = IMAGES_PER_BATCH,
    ) -> None:
        require_pillow()
        if images_per_batch < 1:
            raise UsageError(f"images_per_batch={images_per_batch} must be 1 or more")
        self.model, self.preparation, self.images_per_batch = model, preparation, images_per_batch
        self.ranks = Ranks()

    @classmethod
    def from_directory(cls, model: nn.Module, directory: Path | str) -> ImageClassifier:
        """Pair ``model`` with its image processor, read from ``directory``. Raises SourceError without a usable one."""
        return cls(model, ProcessorPreparation.from_directory(directory, getattr(model, "config", None)))

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the preparation, which makes an image's input as a tokenizer makes a text's."""
        return hashlib.sha256(repr(self.preparation).encode()).hexdigest()

    def classes(self, names: Sequence[str]) -> list[int]:
        """Return the model's number of each class: by its ``label2id``, where that has all the names, else in order.

        Raises DataError where it has some of the names, under other numbers than their order gives them.
        """
        known = getattr(getattr(self.model, "config", None), "label2id", None) or {}
        lower = {str(name).lower(): int(number) for name, number in known.items()}
        if all(name.lower() in lower for name in names):
            return [lower[name.lower()] for name in names]
        if any(lower.get(name.lower(), place) != place for place, name in enumerate(names)):
            unknown = ", ".join(repr(name) for name in names if name.lower() not in lower)
            own = ", ".join(map(str, [*known][:_NAMED])) + (", …" if len(known) > _NAMED else "")
            raise DataError(
                f"the model's label2id knows no class called {unknown}, and counts others in another order than their "
                f"names; call the classes as the model does: {own}"
            )
        return list(range(len(names)))

    def scores(self, images: Sequence[tuple[str, Callable[[], bytes]]], advance: Advance | None = None) -> Tensor:
        """Return float32 [images, classes] on the CPU for (what messages call it, what reads its file) of each image.

        A batch of files is in memory at a time. Raises DataError where one is no image, UsageError where images of
        several sizes come together, QuantizationError for NaN.
        """
        starts, done = range(0, len(images), self.images_per_batch), 0
        with evaluating(self.model):

            def scored(number: int) -> Tensor:
                nonlocal done
                part = images[starts[number] : starts[number] + self.images_per_batch]
                pixels = [self.preparation(read(), where) for where, read in part]
                sizes = {tuple(one.shape) for one in pixels}
                if len(sizes) > 1:
                    raise UsageError(f"images of the sizes {sorted(sizes)} come together; resize or crop them to one")
                inputs = torch.stack(pixels).to(device_of(self.model), _dtype_of(self.model))
                output = self.model(inputs)
                done += len(part)
                if advance is not None:
                    advance(done, len(images))
                return require_numbers(getattr(output, "logits", output)).float().cpu()

            return torch.cat(self.ranks.each([1] * len(starts), scored))


def _dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of what the model is given: that of its first float parameter, float32 where there is none."""
    return next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.float32)
