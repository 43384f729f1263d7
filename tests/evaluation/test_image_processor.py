"""Images of a transformers model are prepared as its own image processor does it, to the bit, or not at all."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor

from goldstick.errors import DataError, SourceError
from goldstick.evaluation.image_processor import ProcessorPreparation

VIT = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 24},
    "resample": 2,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
}


def noise(height: int, width: int) -> tuple[Image.Image, bytes]:
    generator = np.random.default_rng(height * width)
    image = Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    return image, file.getvalue()


def read(directory: Path, settings: dict[str, Any] | str) -> ProcessorPreparation:
    text = settings if isinstance(settings, str) else json.dumps(settings)
    (directory / "preprocessor_config.json").write_text(text)
    return ProcessorPreparation.from_directory(directory)


def small(image: Image.Image, height: int, width: int, resample: int = 3) -> Tensor:
    """Resized numbers from 0 to 255, [3, height, width]."""
    resized = image.resize((width, height), resample=Image.Resampling(resample))
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).float()


def middle(pixels: Tensor, height: int, width: int) -> Tensor:
    top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    return pixels[:, top : top + height, left : left + width]


def column(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers)[:, None, None]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ViT", {"size": {"height": 32, "width": 24}, "image_std": [0.2, 0.3, 0.4]}),
        ("ViT", {"size": 32, "do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3}),
        ("ConvNext", {"size": {"shortest_edge": 28}, "crop_pct": 0.875}),
        ("ConvNext", {"size": {"shortest_edge": 384}}),
        ("PoolFormer", {"size": {"shortest_edge": 28}, "crop_pct": None, "crop_size": 24}),
        ("MobileViT", {"size": {"shortest_edge": 36}, "crop_size": 32}),
        ("MobileViT", {"size": {"shortest_edge": 36}, "crop_size": 32, "do_flip_channel_order": False}),
        ("EfficientNet", {"size": 32}),
        ("EfficientNet", {"size": 32, "include_top": False, "rescale_offset": True, "rescale_factor": 1 / 127.5}),
        ("Levit", {"size": {"shortest_edge": 28}, "crop_size": 28}),
        ("DPT", {"size": 30, "keep_aspect_ratio": True, "ensure_multiple_of": 8}),
        ("DPT", {"size": 30, "do_pad": True, "size_divisor": 16}),
        ("Segformer", {"size": 32, "do_pad": True, "pad_size": {"height": 40, "width": 48}}),
        ("TextNet", {"size": {"shortest_edge": 30}, "size_divisor": 16}),
        ("MobileNetV1", {"size": {"shortest_edge": 28}, "crop_size": {"height": 20, "width": 24}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_images_are_prepared_as_the_processor_of_the_directory_does_it(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    processor = getattr(transformers, f"{name}ImageProcessorPil")(**settings)
    prepared = read(tmp_path, {"image_processor_type": f"{name}ImageProcessor", **settings})
    for size in ((40, 61), (61, 40), (36, 36)):
        image, file = noise(*size)
        expected = processor(image, return_tensors="pt")["pixel_values"][0]
        assert torch.equal(prepared(file, "noise"), expected.float())


def test_settings_that_few_processors_have_are_followed(tmp_path: Path) -> None:
    """By hand, so that a file whose settings nobody reads does not pass."""
    image, file = noise(40, 61)
    half = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    normal = (small(image, 32, 24, 2) / 255 - column(half["image_mean"])) / column(half["image_std"])
    torch.testing.assert_close(read(tmp_path, VIT)(file, "noise"), normal)
    unscaled = read(tmp_path, {**VIT, "do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3})
    torch.testing.assert_close(unscaled(file, "noise"), small(image, 32, 24, 2) / 127.5 - 1)
    mobile = {"image_processor_type": "MobileViTImageProcessor", "size": {"shortest_edge": 36}, "crop_size": 32}
    blue_first = middle(small(image, 36, 54) / 255, 32, 32).flip(0)
    torch.testing.assert_close(read(tmp_path, mobile)(file, "noise"), blue_first)
    efficient = {"image_processor_type": "EfficientNetImageProcessor", "size": 32, **half}
    twice = (small(image, 32, 32) / 255 - column(half["image_mean"])) / column(half["image_std"]).square()
    torch.testing.assert_close(read(tmp_path, efficient)(file, "noise"), twice)
    levit = {"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 28}, "crop_size": 28, **half}
    wider = middle(small(image, 32, 48) / 255, 28, 28)  # int(28 · 256 / 224) = 32
    expected = (wider - column(half["image_mean"])) / column(half["image_std"])
    torch.testing.assert_close(read(tmp_path, levit)(file, "noise"), expected)


def test_the_model_says_whose_processor_it_is_where_the_file_does_not(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"size": 32}')
    with pytest.raises(SourceError, match="image_processor_type"):
        ProcessorPreparation.from_directory(tmp_path)
    config = transformers.EfficientNetConfig()
    assert "include_top" in repr(ProcessorPreparation.from_directory(tmp_path, config))


def test_equal_settings_have_equal_names(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert repr(read(tmp_path, VIT)) == repr(read(tmp_path / "other", VIT))
    assert repr(read(tmp_path, VIT)) != repr(read(tmp_path, {**VIT, "resample": 3}))


def test_a_processor_that_makes_more_than_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"pixel_attention_mask .*and not pixel_values \[1, channels"):
        read(tmp_path, {"image_processor_type": "Siglip2ImageProcessor"})


def test_an_image_that_the_processor_does_not_take_is_named(tmp_path: Path) -> None:
    prepared = read(tmp_path, {**VIT, "do_resize": False, "do_pad": True, "pad_size": {"height": 64, "width": 64}})
    assert prepared(noise(40, 61)[1], "cat 7").shape == (3, 64, 64)
    with pytest.raises(DataError, match="cat 8: the model's image processor does not take it"):
        prepared(noise(65, 64)[1], "cat 8")
    with pytest.raises(DataError, match="cat 9: no image that can be read"):
        prepared(b"not an image", "cat 9")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[]",
        '{"size": ' + "9" * 5000 + "}",
        json.dumps({**VIT, "size": 100_000}),
        json.dumps({**VIT, "size": {"height": 0, "width": 5}}),
        json.dumps({**VIT, "size": [1]}),
        json.dumps({**VIT, "image_std": [0.5, 0.0, 0.5]}),
        json.dumps({**VIT, "image_std": [0.5, float("nan"), 0.5]}),
        json.dumps({**VIT, "image_mean": ["a", "b", "c"]}),
        json.dumps({**VIT, "image_mean": [0.5]}),
        json.dumps({**VIT, "resample": 77}),
        json.dumps({**VIT, "rescale_factor": "x" * 100_000}),
        json.dumps({**VIT, "image_processor_type": "ConvNextImageProcessor", "size": 224, "crop_pct": 1e-6}),
        json.dumps({**VIT, "image_processor_type": "NoneSuchImageProcessor"}),
    ],
    ids=lambda text: text[:20],
)
def test_a_preparation_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"preprocessor_config\.json") as refused:
        read(tmp_path, text)
    assert len(str(refused.value)) < 1000


def test_a_setting_without_a_value_is_named_where_it_is_needed(tmp_path: Path) -> None:
    settings = {"image_processor_type": "ConvNextImageProcessor", "crop_pct": None}
    assert read(tmp_path, {**settings, "size": 384})(noise(40, 61)[1], "noise").shape == (3, 384, 384)
    with pytest.raises(SourceError, match="crop_pct is null"):
        read(tmp_path, {**settings, "size": 224})


def test_a_directory_without_a_processor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"preprocessor_config\.json"):
        ProcessorPreparation.from_directory(tmp_path)
