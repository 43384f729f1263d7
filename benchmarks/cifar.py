"""CIFAR-10 as JPEG copies, the ResNets that come with it, and what measures them; needs Pillow."""

from __future__ import annotations

import argparse
import io
import json
import lzma
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from goldstick.core.json_files import write_atomically
from goldstick.core.training import TrainingOptions

ROOT = Path(__file__).resolve().parent.parent
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def data_directory() -> Path:
    """Where data sets and pretrained networks lie: $GOLDSTICK_SHARED/data, or ../shared/data beside the checkout."""
    return Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared") / "data"


def read_images(split: str, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images as uint8 [n, 3, 32, 32] and their classes [n], of ``train`` or ``test``; the first ``count`` of them."""
    from PIL import Image

    with lzma.open(data_directory() / "cifar10" / f"{split}.npz.xz") as file:
        data = np.load(io.BytesIO(file.read()))
    pixels, offsets, labels = data["jpeg"], data["offsets"], data["labels"][:count]
    images = np.empty((len(labels), 32, 32, 3), np.uint8)
    for index in range(len(labels)):
        with Image.open(io.BytesIO(pixels[offsets[index] : offsets[index + 1]].tobytes())) as image:
            images[index] = np.asarray(image.convert("RGB"))
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels.astype(np.int64))


def normalised(images: Tensor) -> Tensor:
    """uint8 images as the networks take them, channels last in memory, which convolutions here do sooner."""
    mean, deviation = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return ((images / 255 - mean) / deviation).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """Batches of an epoch, shuffled, shifted by up to 4 pixels and mirrored, drawn from torch's generator.

    Attributes:
        images: uint8 [n, 3, 32, 32].
        classes: [n].
        size: Images of a batch.
    """

    images: Tensor
    classes: Tensor
    size: int = 128

    def __len__(self) -> int:
        return len(self.images) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images))
        for index in range(len(self)):
            rows = order[index * self.size : (index + 1) * self.size]
            yield normalised(_shifted(self.images[rows])), self.classes[rows]


def _shifted(images: Tensor) -> Tensor:
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    shifts, mirrored = torch.randint(9, (len(images), 2)).tolist(), (torch.rand(len(images)) < 0.5).tolist()
    cut = [padded[i, :, top : top + 32, left : left + 32] for i, (top, left) in enumerate(shifts)]
    return torch.stack([image.flip(-1) if flip else image for image, flip in zip(cut, mirrored, strict=True)])


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut, which is sampled and padded with zeros where the width doubles."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.stride, self.padding = stride, (outer - inner) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.stride > 1:
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return (x + y).relu()


class ResNet(nn.Module):
    """The CIFAR-10 ResNet of 6n + 2 layers (arXiv 1512.03385, section 4.2), option A shortcuts."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = (16, 16, 32, 64)
        for stage in (1, 2, 3):
            inner, outer = widths[stage - 1], widths[stage]
            first = BasicBlock(inner, outer, 1 if stage == 1 else 2)
            rest = [BasicBlock(outer, outer, 1) for _ in range((depth - 2) // 6 - 1)]
            setattr(self, f"layer{stage}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.bn1(self.conv1(images)).relu()
        x = self.layer3(self.layer2(self.layer1(x)))
        scores: Tensor = self.linear(x.mean((2, 3)))
        return scores


def read_resnet(directory: Path, depth: int) -> ResNet:
    """The pretrained network of 20 or 56 layers in ``directory``."""
    model = ResNet(depth)
    model.load_state_dict(load_file(directory / f"resnet{depth}.safetensors"))
    return model.eval()


def pretrained(depth: int) -> ResNet:
    """The network of the data directory, 20 or 56 layers."""
    return read_resnet(data_directory() / "resnet_cifar10", depth)


def share_right(model: nn.Module, images: Tensor, classes: Tensor) -> float:
    """Share of images classified right."""
    right = 0
    with torch.no_grad():
        for part, wanted in zip(images.split(250), classes.split(250), strict=True):
            right += int((model(normalised(part)).argmax(1) == wanted).sum())
    return right / len(images)


def interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z = 1.959964
    middle, width = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    scale = 1 + z * z / count
    return (middle - width) / scale, (middle + width) / scale


class Table:
    """Networks and their accuracies on the test images, written after each.

    Args:
        out: The file of results.
        settings: How it is measured.
        train_images: How many were trained on.
        test_images: How many are measured on; all where ``None``.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], train_images: int, test_images: int | None) -> None:
        self.out, self.images = out, read_images("test", test_images)
        self._content: dict[str, Any] = {
            "settings": dict(settings),
            "train_images": train_images,
            "test_images": len(self.images[0]),
            "rows": [],
        }

    def note(self, name: str, model: nn.Module, **more: Any) -> None:
        """Measure a network and add its row."""
        share = share_right(model.eval(), *self.images)
        row = {"network": name, "accuracy": share, "interval_95": interval(share, len(self.images[0]))}
        self._content["rows"].append(row | more)
        write_atomically(self.out, (json.dumps(self._content, indent=1) + "\n").encode())
        print(f"{name:32} {share:.2%}", flush=True)


def argument_parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """What every benchmark on these networks asks; its checkpoints lie in ``build/name``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--depth", type=int, default=20, choices=(20, 56))
    parser.add_argument("--epochs", type=int, default=30, help="of every training but those named below")
    parser.add_argument("--float-epochs", type=int, help="of the float network; as many as the others where not given")
    parser.add_argument("--rate", type=float, default=1e-3, help="of every training but those of gates")
    parser.add_argument("--float-rate", type=float, help="of the float network; that of the others where not given")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="but of gates and floats")
    parser.add_argument("--weight-decay", type=float, default=0.0, help="but of gates and floats")
    parser.add_argument("--distill", type=float, default=0.0, help="share of the float network's teaching in the loss")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of every training")
    parser.add_argument("--images", type=int, help="train on the first so many images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--work", type=Path, default=ROOT / "build" / name, help="where checkpoints lie")
    parser.add_argument("--out", type=Path, help="the file of results")
    return parser


def float_training(arguments: argparse.Namespace) -> TrainingOptions:
    """How the float network is fine-tuned."""
    epochs = arguments.float_epochs or arguments.epochs
    return plain_training(arguments, epochs=epochs, rate=arguments.float_rate or arguments.rate)


def plain_training(arguments: argparse.Namespace, **given: Any) -> TrainingOptions:
    """Seed and precision of every training; of floats and gates, by AdamW and without a teacher, with what is given."""
    return TrainingOptions(seed=arguments.seed, precision=arguments.precision, **given)


def training_options(arguments: argparse.Namespace) -> TrainingOptions:
    """How everything else is trained."""
    names = ("epochs", "rate", "optimizer", "weight_decay", "distill")
    return plain_training(arguments, **{name: getattr(arguments, name) for name in names})
