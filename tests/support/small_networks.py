"""A small convolutional network with a residual, and data it can learn in seconds."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TinyResidual(nn.Module):
    """Stem, one residual block with batch norms, pooling and a linear classifier: 8 × 8 images, 4 classes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.hidden = nn.Linear(width, 16)
        self.classifier = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.norm(self.stem(images)).relu()
        inner = self.first_norm(self.first(x)).relu()
        x = (x + self.second_norm(self.second(inner))).relu()
        scores: Tensor = self.classifier(self.hidden(x.mean((2, 3))).relu())
        return scores


class TinyStages(nn.Module):
    """A network whose layers are called as those of a ResNet: 8 × 8 images, 4 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Conv2d(3, 64, 3, padding=1)
        self.layer2 = nn.Conv2d(64, 64, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(64)
        self.layer3 = nn.Conv2d(64, 64, 3, padding=1)
        self.norm3 = nn.BatchNorm2d(64)
        self.classifier = nn.Linear(64, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.norm2(self.layer2(self.layer1(images).relu())).relu()
        scores: Tensor = self.classifier(self.norm3(self.layer3(x)).relu().mean((2, 3)))
        return scores


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise around a class's own pattern: images [count, 3, 8, 8] and their classes [count]."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(4, (count,), generator=generator)
    ramp = torch.linspace(-1, 1, 8)
    patterns = torch.stack([ramp.reshape(1, 1, 8).expand(3, 8, 8), ramp.reshape(1, 8, 1).expand(3, 8, 8)])
    patterns = torch.cat([patterns, -patterns]).abs() + patterns.new_tensor([0.0, 0.3, 0.6, 0.9]).reshape(4, 1, 1, 1)
    return patterns[classes] + 0.4 * torch.randn(count, 3, 8, 8, generator=generator), classes


def batches(count: int = 8, size: int = 32, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Batches of :func:`images`."""
    return [images(size, seed * 1000 + index) for index in range(count)]


def accuracy(model: nn.Module) -> float:
    """Share of 256 images, others than the training's, that a model classifies right."""
    inputs, classes = images(256, 999_999)
    model.eval()
    with torch.no_grad():
        return (model(inputs).argmax(1) == classes).double().mean().item()


def trained(seed: int = 0) -> TinyResidual:
    """A :class:`TinyResidual` that has learned its data."""
    torch.manual_seed(seed)
    model = TinyResidual()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for inputs, classes in batches(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
    return model.eval()
