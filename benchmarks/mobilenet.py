"""A small MobileNetV2 for CIFAR-10, trained here: a real network with depthwise convolutions; needs Pillow.

python -m benchmarks.mobilenet --minutes 30 --threads 1     # trains, into build/mobilenet
python -m benchmarks.mobilenet --agree                      # compresses it, into benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import goldstick
from benchmarks.cifar import ROOT, Augmented, interval, normalised, pretrained, read_images, share_right
from goldstick.core.json_files import write_atomically
from goldstick.recipes import Recipe
from goldstick.recipes.needs_data import needs_data

CHECKPOINT = ROOT / "build" / "mobilenet" / "mobilenet.safetensors"
RECIPES: dict[str, Any] = {
    name: name for name in ("rtn-w8a16", "rtn-w8a8-dynamic", "fold-rtn-w8a8-static", "fold-rtn-w8a8-static-shifted")
} | {
    "fold-rtn-w8a8-static-shifted with correct_bias": {
        "stages": ["fold_batch_norm", {"rtn": {"scheme": "w8a8-static-shifted"}}, "correct_bias"]
    }
}
#: Of each block: channels that come out, stride, by how much it is wider inside.
BLOCKS = ((24, 2, 4), (24, 1, 4), (40, 2, 4), (40, 1, 4), (64, 1, 4), (64, 1, 4))


class InvertedResidual(nn.Module):
    """1 × 1, depthwise 3 × 3, 1 × 1 without an activation, beside a shortcut where shapes allow (arXiv 1801.04381)."""

    def __init__(self, inner: int, outer: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inner * expansion
        self.layers = nn.Sequential(
            nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.shortcut = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


class MobileNet(nn.Module):
    """MobileNetV2's blocks on images of 32 × 32."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        inner, blocks = 16, list[nn.Module]()
        for outer, stride, expansion in BLOCKS:
            blocks.append(InvertedResidual(inner, outer, stride, expansion))
            inner = outer
        head = nn.Sequential(nn.Conv2d(inner, 160, 1, bias=False), nn.BatchNorm2d(160), nn.ReLU6())
        self.features = nn.Sequential(stem, *blocks, head)
        self.linear = nn.Linear(160, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.features(images).mean((2, 3)))
        return scores


def trained(path: Path = CHECKPOINT) -> MobileNet:
    """The network that :func:`train` left at ``path``."""
    model = MobileNet()
    model.load_state_dict(load_file(path))
    return model.eval()


def train(minutes: float, rate: float, path: Path) -> None:
    """Train for so long, the rate following a cosine of the time, and keep the network at ``path``."""
    torch.manual_seed(0)
    model = MobileNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    batches, started, epoch = Augmented(images=read_images("train")[0], classes=read_images("train")[1]), time.time(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    while (passed := (time.time() - started) / (60 * minutes)) < 1:
        model.train()
        for images, classes in batches:
            passed = min((time.time() - started) / (60 * minutes), 1)
            optimizer.param_groups[0]["lr"] = rate * min(passed / 0.05, 0.5 + 0.5 * math.cos(math.pi * passed))
            loss = nn.functional.cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if passed == 1:
                break
        epoch += 1
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
        print(f"epoch {epoch}, {passed:.0%} of the time, loss {loss.item():.3f}", flush=True)
    print(f"right of the test images: {share_right(model.eval(), *read_images('test')):.2%}")


def agree(path: Path, out: Path) -> None:
    """How often the trained network and the ResNet-20 of the data directory choose the same class in 8 bits."""
    images, classes = read_images("test")
    calibration = normalised(read_images("train", 512)[0]).split(64)
    rows = []
    for name, model in (("MobileNetV2, small", trained(path)), ("ResNet-20", pretrained(20))):
        wanted = _classes(model, images)
        rows.append({"network": name, "accuracy": float((wanted == classes).float().mean())})
        for title, recipe in RECIPES.items():
            looks = needs_data(Recipe.load(recipe).stages)
            found = _classes(goldstick.apply(model, recipe, data=calibration if looks else None).model, images)
            same = float((found == wanted).float().mean())
            rows.append({
                "network": name, "recipe": title,
                "agreement": same, "interval_95": interval(same, len(images)),
                "accuracy": float((found == classes).float().mean()),
            })  # fmt: skip
            print(rows[-1], flush=True)
    content = {"images": len(images), "calibration_images": 512, "rows": rows}
    write_atomically(out, (json.dumps(content, indent=1) + "\n").encode())


def _classes(model: nn.Module, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([model(normalised(part)).argmax(1) for part in images.split(250)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=28)
    parser.add_argument("--rate", type=float, default=0.15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "convolutions-agreement.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.agree:
        agree(arguments.checkpoint, arguments.out)
    else:
        train(arguments.minutes, arguments.rate, arguments.checkpoint)
