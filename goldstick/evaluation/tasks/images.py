"""Classification of images: CIFAR-10, and any folder with a folder of files for each class."""

from __future__ import annotations

import hashlib
import io
import itertools
import lzma
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource, evenly_spaced
from goldstick.evaluation.hub import HubDataset
from goldstick.evaluation.image_classifier import ImageClassifier
from goldstick.evaluation.image_preparation import IMAGES
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.protocol import Measurable, TaskResult

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10 = Dataset(
    name="cifar10",
    files=("cifar10/test.npz", "cifar10/test.npz.xz"),
    hub=(HubDataset(path="uoft-cs/cifar10", split="test"),),
)
TOP = 5


@dataclass(frozen=True, kw_only=True)
class LabelledImage:
    """An image file and its class.

    Attributes:
        where: What messages call it.
        label: The number of its class among the names.
        digest: SHA-256 of the file.
        encoded: Its bytes, where they do not lie in a file of their own.
        path: That file, else.
    """

    where: str
    label: int
    digest: str
    encoded: bytes | None = None
    path: Path | None = None

    def __repr__(self) -> str:
        """What tells two images apart, without their bytes."""
        return f"LabelledImage({self.where!r}, {self.label}, {self.digest})"

    def read(self) -> bytes:
        """Return the bytes of the file."""
        if self.encoded is not None:
            return self.encoded
        assert self.path is not None
        return self.path.read_bytes()


def rank_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Return how many classes come before the right one: those of higher scores, and equal ones of lower number.

    Args:
        scores: float [images, classes].
        labels: int64 [images].

    Returns:
        int64 [images]; 0 where the answer is right.
    """
    own = scores.gather(1, labels[:, None])
    before = torch.arange(scores.shape[1])[None, :] < labels[:, None]
    return ((scores > own) | ((scores == own) & before)).sum(dim=1)


def classify(
    name: str,
    protocol: str,
    model: ImageClassifier,
    images: Sequence[LabelledImage],
    names: Sequence[str],
    progress: Progress | None,
) -> TaskResult:
    """Score images: the share in percent whose class has the highest score, and is among the five highest.

    There is no ``top5`` for models of five classes or fewer. Raises DataError where the model has no score for a class,
    or names some of the classes and counts them otherwise.
    """
    numbers = model.classes(names)
    labels = torch.tensor([numbers[image.label] for image in images])
    advance = None if progress is None else lambda done, total: progress(name, done, total)
    scores = model.scores([(image.where, image.read) for image in images], advance)
    if int(labels.max()) >= scores.shape[1]:
        raise DataError(
            f"{name}: an image is of class {int(labels.max())} of {names}, and the model has {scores.shape[1]}"
        )
    ranks = rank_of(scores, labels)
    items = {"top1": Items(values=(ranks < 1).int().tolist())}
    if scores.shape[1] > TOP:
        items["top5"] = Items(values=(ranks < TOP).int().tolist())
    return TaskResult(
        protocol=protocol,
        n=len(images),
        metrics={metric: item.metric() for metric, item in items.items()},
        details={"classes": len(names), **uncertainty(items)},
    )


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """CIFAR-10's test images: arrays ``jpeg``, ``offsets`` and ``labels`` of an ``npz`` file, plain or ``.xz``; or the
    files ``img`` and their ``label`` of the hub.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (ImageClassifier,)
    name: str = "cifar10"
    protocol: str = "classification@1"
    dataset: Dataset = CIFAR10

    def load(self, data: DataSource) -> list[LabelledImage]:
        """Return the images as they are encoded."""
        path = data.find(self.dataset)
        files, labels = self._from_hub(data) if path is None else _read_arrays(path)
        origin = path or self.dataset.name
        if not 0 <= min(labels) <= max(labels) < len(CIFAR10_CLASSES):
            raise DataError(f"{origin}: labels must be from 0 to 9, not up to {max(labels)}")
        return [
            LabelledImage(
                where=f"{origin}, image {index}",
                label=label,
                digest=hashlib.sha256(encoded).hexdigest(),
                encoded=encoded,
            )
            for index, (encoded, label) in enumerate(zip(files, labels, strict=True))
        ]

    def class_names(self, data: DataSource) -> tuple[str, ...]:
        """Return the names of the classes."""
        return CIFAR10_CLASSES

    def _from_hub(self, data: DataSource) -> tuple[list[bytes], list[int]]:
        rows = data.rows(self.dataset, ["img", "label"])
        return [row["img"]["bytes"] for row in rows], [int(row["label"]) for row in rows]

    def run(self, model: ImageClassifier, data: DataSource, limit: int | None, progress: Progress | None) -> TaskResult:
        """Score ``limit`` images, evenly spaced."""
        images = evenly_spaced(self.load(data), limit)
        return classify(self.name, self.protocol, model, images, CIFAR10_CLASSES, progress)


def _read_arrays(path: Path) -> tuple[list[bytes], list[int]]:
    """The files and labels that an ``npz`` file holds."""
    try:
        raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            jpeg, offsets, labels = (arrays[key] for key in ("jpeg", "offsets", "labels"))
    except (OSError, lzma.LZMAError, zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path}: not an npz file with jpeg, offsets and labels ({error})") from error
    if len(offsets) != len(labels) + 1 or not len(labels) or int(offsets.max()) > len(jpeg):
        raise DataError(f"{path}: {len(offsets)} offsets do not cut {len(jpeg)} bytes into {len(labels)} images")
    ends = offsets.tolist()
    return [jpeg[start:stop].tobytes() for start, stop in itertools.pairwise(ends)], labels.tolist()


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """Files of images in a folder for each class, ``images/CLASS/FILE``; classes count in the order of their names.

    Files in folders of a class's folder are of that class, too; hidden ones are none.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (ImageClassifier,)
    name: str = "images"
    protocol: str = "classification@2"  # 1: images as they are stored, and none of folders in a class's

    def load(self, data: DataSource) -> list[LabelledImage]:
        """Return where the images lie; their bytes are read when their turn comes."""
        folders = self._folders(data)
        found = []
        for label, folder in enumerate(folders):
            inside = (path for path in folder.rglob("*") if _is_image(path.relative_to(folder)) and path.is_file())
            for path in sorted(inside):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found.append(LabelledImage(where=str(path), label=label, digest=digest, path=path))
        if not found:
            raise DataError(f"{folders[0].parent}: no folder holds a file that ends in {', '.join(IMAGES)}")
        return found

    def run(self, model: ImageClassifier, data: DataSource, limit: int | None, progress: Progress | None) -> TaskResult:
        """Score ``limit`` images, evenly spaced."""
        images = evenly_spaced(self.load(data), limit)
        return classify(self.name, self.protocol, model, images, self.class_names(data), progress)

    def class_names(self, data: DataSource) -> tuple[str, ...]:
        """Return the names of the folders."""
        return tuple(folder.name for folder in self._folders(data))

    def _folders(self, data: DataSource) -> list[Path]:
        root = None if data.data_dir is None else data.data_dir / "images"
        inside = [] if root is None or not root.is_dir() else sorted(root.iterdir())
        folders = [path for path in inside if path.is_dir() and not _is_hidden(path.name)]
        if not folders:
            raise DataError(f"{self.name}: give --data-dir DIR with a folder DIR/images/CLASS of files for each class")
        return folders


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGES and not any(map(_is_hidden, path.parts))
