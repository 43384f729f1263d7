"""Convolutions that write the codes which the next one reads, and read them: the bits of what floats give."""

from __future__ import annotations

import copy
import io
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from goldstick.core.notices import RoundedImagesWarning
from goldstick.errors import KernelError
from goldstick.kernels.coded_images import CodedImages, InputRange
from goldstick.kernels.prepared_convolution import UNBOUNDED
from tests.support.quantized_convolutions import (
    LARGE,
    SHAPES,
    Case,
    every_activation,
    every_isa,
    needs_extension,
    take_isa,
)

pytestmark = pytest.mark.filterwarnings("ignore::goldstick.core.notices.RoundedImagesWarning")
every_order = pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
IMAGES = [shape for shape in SHAPES if len(shape[3]) == 2 and not shape[0] == shape[2] != shape[1]]
RANGE = InputRange(0.25, 7)


def codes_of(x: Tensor, range: InputRange) -> Tensor:
    """What torch rounds to, 128 more, channels last."""
    quotient = x / torch.tensor(range.scale) + range.zero
    return (quotient.clamp(-128, 127).round() + 128).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def range_of(case: Case) -> InputRange:
    assert case.input_scale is not None
    return InputRange(float(case.input_scale), 0 if case.input_zero is None else int(case.input_zero))


@needs_extension
@pytest.mark.parametrize("shape", IMAGES, ids=str)
@every_activation
@every_isa
@every_order
def test_codes_are_those_of_floats(
    shape: tuple[Any, ...], activation: str, isa: str, order: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_isa(isa, monkeypatch)
    case = Case(shape, activation)
    layer, weight = case.prepared()
    x = case.x.contiguous(memory_format=order)
    y = layer.run(x, weight)
    assert y is not None
    by = InputRange(float((y.abs().max() / 100).item()), -9)
    bounds = (-0.5 * float(y.abs().max()), math.inf)
    handed = layer(x, weight, UNBOUNDED, by)
    assert isinstance(handed, CodedImages) and torch.equal(handed.codes, codes_of(y, by))
    assert handed.stride() == y.stride()
    bounded, within = layer(x, weight, bounds, by), layer(x, weight, bounds)
    assert isinstance(bounded, CodedImages) and within is not None
    assert torch.equal(bounded.codes, codes_of(within, by))
    if case.activation == "int8-tensor":
        given = CodedImages(codes_of(x, range_of(case)), range_of(case), order)
        read = layer(given, weight)
        assert read is not None and torch.equal(read, y) and read.stride() == y.stride()
        both = layer(given, weight, UNBOUNDED, by)
        assert isinstance(both, CodedImages) and torch.equal(both.codes, handed.codes)
        assert given.floats is None


@needs_extension
@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_large_images_give_the_same_codes_on_several_threads(shape: tuple[Any, ...], threads: int) -> None:
    case = Case(shape, "shifted", batch=3)
    layer, weight = case.prepared()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = layer.run(case.x, weight)
        handed = layer(
            CodedImages(codes_of(case.x, range_of(case)), range_of(case), torch.channels_last), weight, UNBOUNDED, RANGE
        )
    finally:
        torch.set_num_threads(before)
    assert y is not None and isinstance(handed, CodedImages)
    assert torch.equal(handed.codes, codes_of(y, RANGE))


@needs_extension
@pytest.mark.parametrize("groups", [1, 16])
@every_isa
def test_what_is_no_number_has_no_code_and_stays_a_float(
    groups: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_isa(isa, monkeypatch)
    case = Case((16, 16, groups, (3, 3), (1, 1), (1, 1), (1, 1), (9, 9)), "int8-tensor")
    layer, weight = case.prepared()
    case.x[1, 3, 4, 4] = math.nan
    found = layer(case.x, weight, UNBOUNDED, RANGE)
    assert type(found) is Tensor and found[1].isnan().all() and not found[0].isnan().any()
    case.x[1, 3, 4, 4] = math.inf
    found, floats = layer(case.x, weight, UNBOUNDED, RANGE), layer(case.x, weight)
    assert isinstance(found, CodedImages) and floats is not None and torch.equal(found.codes, codes_of(floats, RANGE))


@needs_extension
def test_another_range_another_backend_and_gradients_are_given_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((8, 8, 1, (3, 3), (1, 1), (1, 1), (1, 1), (9, 9)), "int8-tensor")
    layer, weight = case.prepared()
    other = CodedImages(codes_of(case.x, RANGE), RANGE, torch.contiguous_format)
    plain = torch.fake_quantize_per_tensor_affine(case.x, RANGE.scale, RANGE.zero, -128, 127)
    found, wanted = layer(other, weight), layer(plain, weight)
    assert found is not None and wanted is not None and torch.equal(found, wanted)
    own = CodedImages(codes_of(case.x, range_of(case)), range_of(case), torch.contiguous_format)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert layer(own, weight) is None and layer(case.x, weight, UNBOUNDED, RANGE) is None


@every_order
def test_operators_are_given_what_the_codes_stand_for(order: torch.memory_format) -> None:
    x = torch.randn(2, 5, 4, 6)
    images = CodedImages(codes_of(x, RANGE), RANGE, order)
    plain = torch.fake_quantize_per_tensor_affine(x, RANGE.scale, RANGE.zero, -128, 127)
    assert images.shape == x.shape and images.dtype == torch.float32 and images.device == x.device
    assert images.stride() == x.contiguous(memory_format=order).stride() and images.floats is None
    assert torch.equal(images + 1, plain + 1) and torch.equal(torch.cat([plain, images]), torch.cat([plain, plain]))
    assert images.floats is not None and images.floats.stride() == images.stride()
    images.mul_(2)  # in place: these images are others then
    assert torch.equal(images + 0, 2 * plain) and repr(images)


def test_what_reads_memory_copies_or_stores_is_given_floats() -> None:
    images = CodedImages(codes_of(torch.randn(2, 5, 4, 6), RANGE), RANGE, torch.channels_last)
    plain = images + 0
    stored = io.BytesIO()
    torch.save(images, stored)
    stored.seek(0)
    for found in (
        torch.from_numpy(images.numpy()),
        torch.from_numpy(np.asarray(images)),
        torch.tensor(images.tolist()),
        torch.from_dlpack(images),
        torch.load(stored, weights_only=True),
        copy.deepcopy(images),
    ):
        assert type(found) is Tensor and torch.equal(found, plain)
    assert images.data_ptr() == images.as_floats().data_ptr() != 0
    assert torch.equal(images.share_memory_(), plain)


@pytest.mark.parametrize("change", ["t_", "squeeze_", "unsqueeze_", "resize_"])
def test_a_change_of_shape_in_place_is_refused(change: str) -> None:
    images = CodedImages(codes_of(torch.randn(1, 5, 4, 6), RANGE), RANGE, torch.contiguous_format)
    changes: dict[str, Any] = {
        "t_": lambda: images.transpose_(2, 3),
        "squeeze_": lambda: images.squeeze_(0),
        "unsqueeze_": lambda: images.unsqueeze_(0),
        "resize_": lambda: images.resize_(1, 2, 4, 6),
    }
    with pytest.raises(KernelError, match="in place"):
        changes[change]()
    assert images.detach_().shape == (1, 5, 4, 6)


def test_who_reads_them_first_is_told_that_they_are_rounded() -> None:
    images = CodedImages(codes_of(torch.randn(1, 5, 4, 6), RANGE), RANGE, torch.contiguous_format)
    F.pad(images, (1, 1, 1, 1)).as_floats()
    with pytest.warns(RoundedImagesWarning, match="aten.mul.Tensor reads .* rounded to 8 bits"):
        images * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images * 2  # once is enough
    with pytest.warns(RoundedImagesWarning, match="numpy reads"):
        CodedImages(images.codes, RANGE, torch.contiguous_format).numpy()


@needs_extension
def test_images_that_were_changed_in_place_are_read_as_they_are() -> None:
    case = Case((8, 8, 1, (3, 3), (1, 1), (1, 1), (1, 1), (9, 9)), "int8-tensor")
    layer, weight = case.prepared()
    images = CodedImages(codes_of(case.x, range_of(case)), range_of(case), torch.contiguous_format)
    changed = images.as_floats().clone().mul_(0.5)
    images.mul_(0.5)
    found, wanted = layer(images, weight), layer(changed, weight)
    assert found is not None and wanted is not None and torch.equal(found, wanted)


@pytest.mark.parametrize("inference", [False, True])
def test_zeros_around_images_stay_codes(inference: bool) -> None:
    images = CodedImages(codes_of(torch.randn(2, 5, 4, 6), RANGE), RANGE, torch.channels_last)
    with torch.inference_mode(inference):
        padded: Any = F.pad(images, (0, 1, 2, 3))
        assert isinstance(padded, CodedImages) and images.floats is None and padded.stride()[1] == 1
        as_given: Any = F.pad(images, (0, 0, 0, 0), "constant", 0.0)
        assert isinstance(as_given, CodedImages) and as_given.codes is images.codes
        for sides, mode, value in [
            ((1, 1), "constant", 0.5),
            ((1, 1, 1, 1), "reflect", None),
            ((-1, 0), "constant", None),
        ]:
            assert type(F.pad(images, sides, mode, value)) is Tensor
        assert torch.equal(padded + 0, F.pad(images.as_floats(), (0, 1, 2, 3)))


@every_order
def test_zeros_around_single_pixels_keep_the_order(order: torch.memory_format) -> None:
    images = CodedImages(codes_of(torch.randn(2, 5, 1, 1), RANGE), RANGE, order)
    padded = F.pad(images, (1, 1, 1, 1))
    assert padded.stride() == F.pad(images.as_floats(), (1, 1, 1, 1)).stride()
