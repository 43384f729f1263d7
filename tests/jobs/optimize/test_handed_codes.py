"""goldstick.optimize: quantized convolutions write the codes that the next one reads."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import goldstick
from goldstick.core.notices import RoundedImagesWarning
from goldstick.kernels.coded_images import CodedImages
from goldstick.kernels.cpu import _C

HANDED = "one convolution and rounding"
STATIC = "rtn-w8a8-static"
pytestmark = pytest.mark.skipif(_C is None, reason="no compiled kernels")


class Network(nn.Module):
    """Of what may lie between two convolutions each thing once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        self.depthwise, self.relu6 = nn.Conv2d(16, 16, 3, groups=16), nn.ReLU6()
        self.point, self.next = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 40, 3, padding=1)
        self.silu, self.smooth = nn.SiLU(), nn.Conv2d(40, 8, 1)
        self.residual, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1, padding=(1, 0), padding_mode="circular")

    def forward(self, x: Tensor, whole: bool = False) -> Tensor:
        x = F.pad(self.relu(self.norm(self.first(x))), (0, 1, 1, 0))
        x = self.relu6(self.depthwise(x))
        y = self.point(x)
        x = self.smooth(self.silu(self.next(y)))
        x = self.last(x + self.residual(x))
        return x + y.mean() if whole else x


def quantized(recipe: str = STATIC, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = Network().eval().to(dtype)
    data = [images(4, dtype)] if "static" in recipe else None
    return goldstick.apply(model, recipe, data=data).model.requires_grad_(False)


def images(count: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, 3, 33, 29, generator=torch.Generator().manual_seed(count)).to(dtype)


def handed(model: nn.Module, x: Tensor) -> list[tuple[str, ...]]:
    return [change.modules for change in goldstick.optimize(model, {"x": x}).done if change.what == HANDED]


def both(recipe: str = STATIC) -> tuple[Any, Any]:
    """An optimized network, and one that is optimized but for what is handed over."""
    model = quantized(recipe)
    apart = copy.deepcopy(model)
    assert handed(model, images()) and handed(apart, images())
    for module in apart.modules():
        if getattr(module, "epilogue", None) is not None:
            module.epilogue.reader = None
    return model, apart


@pytest.mark.parametrize("recipe", [STATIC, "fold-rtn-w8a8-static-shifted"])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_outputs_are_the_same_bits(recipe: str, order: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    model, apart = both(recipe)
    asked: list[object] = []
    monkeypatch.setattr(CodedImages, "as_floats", lambda images: asked.append(images))
    for count in (1, 3):
        x = images(count).contiguous(memory_format=order)
        for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
            with mode:
                found, wanted = model(x), apart(x)
                assert torch.equal(found, wanted) and found.stride() == wanted.stride() and type(found) is Tensor
    assert not asked  # nothing read floats of what was handed over


def test_pairs_are_those_that_nothing_else_reads() -> None:
    model = quantized()
    assert handed(model, images()) == [("first", "depthwise"), ("depthwise", "point"), ("point", "next")]
    assert handed(model, images()) == []  # once is enough
    assert isinstance(model.point(torch.rand(1, 16, 5, 5)), CodedImages)


@pytest.mark.parametrize("recipe", ["rtn-w8a8-dynamic", "rtn-w8a16"])
def test_inputs_without_a_static_range_are_floats(recipe: str) -> None:
    assert handed(quantized(recipe), images()) == []


def test_other_dtypes_are_floats() -> None:
    assert handed(quantized(dtype=torch.bfloat16), images(dtype=torch.bfloat16)) == []
    model, apart = both()
    x = images(2, torch.bfloat16)
    assert torch.equal(model.bfloat16()(x), apart.bfloat16()(x))


def test_copies_hand_over_among_themselves() -> None:
    model, apart = both()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.point.epilogue.reader[2] is twin.next
        assert torch.equal(twin(images()), apart(images()))


def test_who_else_reads_is_given_what_the_codes_stand_for() -> None:
    model, apart = both()
    with pytest.warns(RoundedImagesWarning, match="aten.mean"):
        found = model(images(), whole=True)
    wanted = apart(images(), whole=True)
    assert not torch.equal(found, wanted)
    torch.testing.assert_close(found, wanted, atol=float(model.next.input_scale), rtol=0)


def test_a_reader_that_is_looked_at_replaced_or_given_another_range_is_followed() -> None:
    model, apart = both()
    seen: list[Tensor] = []
    handle = model.next.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    assert torch.equal(model(images()), apart(images())) and type(seen[0]) is Tensor
    handle.remove()
    for one in (model, apart):
        one.next.input_scale.mul_(1.5)
    assert torch.equal(model(images()), apart(images()))
    for scale in (0.0, math.inf, math.nan, -0.5):  # by which nothing can be rounded
        for one in (model, apart):
            one.next.input_scale.fill_(scale)
        assert type(model.point(torch.rand(1, 16, 5, 5))) is Tensor
        torch.testing.assert_close(model(images()), apart(images()), rtol=0, atol=0, equal_nan=True)
    for one in (model, apart):
        torch.manual_seed(1)
        one.next = nn.Conv2d(24, 40, 3, padding=1)
    assert torch.equal(model(images()), apart(images()))


@dataclass
class Found:
    features: Tensor


class Keeping(nn.Module):
    """Keeps what a convolution gives: in itself, or in an object of its own."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside, self.first, self.next = inside, nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Found | None]:
        x = self.first(x)
        if self.inside:
            self.features = x
        return self.next(x), None if self.inside else Found(x)


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_kept_for_later_is_not_handed_over(inside: bool) -> None:
    torch.manual_seed(0)
    model = goldstick.apply(Keeping(inside).eval(), STATIC, data=[images()]).model
    assert handed(model, images()) == []


def test_who_looks_at_or_replaces_what_lies_around_a_reader_is_given_floats() -> None:
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(8, 8, 1), nn.Sequential(nn.ReLU()))]
    model: Any = nn.Sequential(*parts, nn.Sequential(nn.Conv2d(8, 4, 1))).eval()
    model = goldstick.apply(model, STATIC, data=[images()]).model.requires_grad_(False)
    plain = copy.deepcopy(model)
    optimization = goldstick.optimize(model, {"input": images()})
    assert [change.modules for change in optimization.done if change.what == HANDED] == [("0.0", "1.0"), ("1.0", "2.0")]
    seen: list[Tensor] = []
    for path in ("0", "1", "1.1"):
        found = []
        for one in (plain, model):
            handle = one.get_submodule(path).register_forward_hook(lambda _, args, output: seen.append(output))
            found.append(one(images()))
            handle.remove()
        assert torch.equal(*found) and torch.equal(seen[-1], seen[-2]) and type(seen[-1]) is Tensor
    assert isinstance(model[1](model[0](images())), CodedImages)
    model[2] = nn.Sequential(nn.Flatten())
    assert torch.equal(model(images()), plain[:2](images()).flatten(1))


class Padded(nn.Module):
    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding, self.inner = padding, nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(F.pad(x, (self.padding,) * 4) if self.padding else x)
        return out


@pytest.mark.parametrize("padding", [0, 1])
def test_readers_may_be_compiled(padding: int) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), Padded(padding)).eval()
    model = goldstick.apply(model, STATIC, data=[images()]).model.requires_grad_(False)
    wanted = model(images())
    assert goldstick.optimize(model, {"input": images()}).done[-1].modules == ("0", "1.inner")
    model[1].compile(backend="aot_eager")
    assert torch.equal(model(images()), wanted)


def test_a_reader_with_another_forward_is_given_floats() -> None:
    model, apart = both()
    seen: list[Tensor] = []
    forward = model.next.forward
    model.next.forward = lambda x: (seen.append(x), forward(x))[1]
    assert torch.equal(model(images()), apart(images())) and type(seen[0]) is Tensor


def test_the_compiler_reads_what_codes_stand_for() -> None:
    model, apart = both()
    codes = model.point(torch.rand(1, 16, 5, 5))
    found = torch.compile(model.next, backend="aot_eager")(codes)
    assert isinstance(codes, CodedImages) and torch.equal(found, apart.next(codes + 0))


def test_images_of_another_dtype_are_rounded_before_they_are_codes() -> None:
    model, apart = both()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(images().half()), apart(images().half()))


def test_what_is_no_number_stays_none_and_other_backends_read_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    model, apart = both()
    x = images()
    x[1, 0, 3, 3] = torch.nan
    found = model(x)
    assert found[1].isnan().all() and torch.equal(found[0], apart(x)[0]) and not found[0].isnan().any()
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert torch.equal(model(images()), apart(images()))


def test_readers_are_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)).eval()
    model = goldstick.apply(model, STATIC, data=[images()]).model.requires_grad_(False)
    assert [change.modules for change in goldstick.optimize(model, {"input": images()}).done][-1] == ("0", "2")
    model(images())
    layer = model[2].convolution._layer
    monkeypatch.setattr(_C, "PreparedConvolution", None)
    model(images())
    assert model[2].convolution._layer is layer is not None


def test_gradients_are_those_of_floats() -> None:
    found = []
    for one in both():
        x = images().requires_grad_()
        one(x).square().sum().backward()
        found.append(x.grad)
    assert found[0].abs().sum() > 0 and torch.equal(*found)
