"""Modules and dtypes that users have, and that are not those a checkpoint was made of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.checkpoint.source import open_tensors
from goldstick.core.notices import UnrecognisedWarning
from goldstick.errors import CheckpointError, FormatError, RecipeError, StructureError, UsageError

pytestmark = pytest.mark.usefixtures("proof_here")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    goldstick.apply(network(), "rtn-w8a16").save(tmp_path / "made")
    return tmp_path / "made"


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "torch.bfloat16"])
def test_a_plain_module_is_loaded_in_the_dtype_that_is_asked_for(saved: Path, dtype: str | torch.dtype) -> None:
    loaded = goldstick.load(saved, model=network(), dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    x = torch.randn(3, 64)
    assert torch.allclose(loaded(x.bfloat16()).float(), goldstick.load(saved, model=network())(x), atol=0.05)


@pytest.mark.parametrize("dtype", ["no such dtype", "int8", torch.int32])
def test_a_dtype_that_is_none_is_named(saved: Path, dtype: str | torch.dtype) -> None:
    for options in ({"model": network()}, {}):
        with pytest.raises(UsageError, match="dtype is 'auto' or a float dtype such as 'bfloat16', not"):
            goldstick.load(saved, dtype=dtype, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("built", [lambda: network().half(), lambda: network().to("meta")], ids=["half", "meta"])
def test_a_module_of_another_dtype_or_without_memory_becomes_what_was_stored(saved: Path, built: Any) -> None:
    x = torch.randn(3, 64)
    assert torch.equal(goldstick.load(saved, model=built())(x), goldstick.load(saved, model=network())(x))


def test_what_is_shared_stays_shared_in_a_module_without_memory(tmp_path: Path) -> None:
    def shared() -> nn.Module:
        norm = nn.LayerNorm(64)
        return nn.Sequential(nn.Linear(64, 64), norm, norm)

    goldstick.apply(shared(), "rtn-w8a16").save(tmp_path / "made")
    loaded: Any = goldstick.load(tmp_path / "made", model=shared().to("meta"))
    assert loaded[1].weight is loaded[2].weight and not loaded[1].weight.is_meta


def test_a_buffer_on_the_meta_device_that_nobody_stored_is_named(tmp_path: Path) -> None:
    def buffered() -> nn.Module:
        module = network()
        module.register_buffer("angles", torch.ones(3), persistent=False)
        return module

    goldstick.apply(buffered(), "rtn-w8a16").save(tmp_path / "made")
    with pytest.raises(CheckpointError, match=r"angles of this Sequential is on the meta device.*Build the module on"):
        goldstick.load(tmp_path / "made", model=buffered().to("meta"))


def test_arguments_of_the_wrong_kind_are_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="model is the float module that the checkpoint was made from, not str"):
        goldstick.load(saved, model="network")  # type: ignore[arg-type]
    for call in (goldstick.plan, goldstick.quantize):
        options = {"output": tmp_path / "other"} if call is goldstick.quantize else {}
        with pytest.raises(UsageError, match=r"Sequential is one in memory: goldstick.apply\(model, recipe\)"):
            call(network(), "rtn-w8a16", **options)  # type: ignore[operator]


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4a16", "q4_k", "q6_k"])
def test_scales_that_files_hold_as_codes_are_proven_and_read_back(scheme: str, tmp_path: Path) -> None:
    def wide() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(256, 64)).eval()

    result = goldstick.apply(wide(), f"rtn-{scheme}")
    result.save(tmp_path / "made")
    x = torch.randn(2, 256)
    assert torch.equal(goldstick.load(tmp_path / "made", model=wide())(x), result.model(x))


@pytest.mark.parametrize("recipe", ["rtn-nvfp4", "gptq-nvfp4"])
def test_a_plain_module_is_stored_with_the_scales_of_its_nvfp4_inputs(recipe: str, tmp_path: Path) -> None:
    x = torch.randn(64, 64)
    result = goldstick.apply(network(), recipe, data=[x])
    result.save(tmp_path / "made")
    assert "0.input_global_scale" in open_tensors(tmp_path / "made")
    assert torch.equal(goldstick.load(tmp_path / "made", model=network())(x), result.model(x))


def test_an_lstm_is_stored_with_the_scales_of_its_scales(tmp_path: Path) -> None:
    result = goldstick.apply(nn.Sequential(nn.LSTM(64, 64)), "rtn-nvfp4a16")
    result.save(tmp_path / "made")
    x = torch.randn(2, 64)
    loaded = goldstick.load(tmp_path / "made", model=nn.Sequential(nn.LSTM(64, 64)))
    assert torch.equal(loaded(x)[0], result.model(x)[0])


class Counting(nn.Module):
    """Its forward changes its state, by a new tensor and in place."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("mean", torch.zeros(64))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x - self.mean)
        self.seen += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return y


def test_what_calibration_does_to_buffers_is_undone() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(32, 64) + 5 for _ in range(4)]
    model: Any = goldstick.apply(Counting().eval(), "gptq-w8a16", data=batches).model
    assert model.seen == 0 and not model.mean.any()


def test_what_distilling_does_to_buffers_is_undone() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(32, 64) + 5 for _ in range(4)]
    model: Any = goldstick.apply(Counting().eval(), "gptq-distill-w4a16-g32", data=batches).model
    assert model.seen == 0 and not model.mean.any()


class CountingImages(nn.Module):
    """Its forward changes its state, and depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.head, self.called = nn.Linear(8, 10), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.seen += 1
        self.called += 1
        return self.head(self.norm(self.convolution(x + self.seen)).relu().mean((2, 3)))


def test_folding_leaves_the_original_untouched_and_the_result_in_the_state_that_it_had() -> None:
    torch.manual_seed(0)
    original: Any = CountingImages().eval()
    made: Any = goldstick.apply(original, "fold-rtn-w8a8-static-shifted", data=[torch.randn(4, 3, 12, 12)] * 2).model
    assert original.seen == 0 and original.called == 0
    assert made.seen == 0 and isinstance(made.norm, nn.Identity)


def test_batches_made_in_inference_mode_calibrate_a_module() -> None:
    with torch.inference_mode():
        batches = [torch.randn(100, 64) for _ in range(2)]
    clones = [batch.clone() for batch in batches]
    found, expected = (goldstick.apply(network(), "gptq-w4a16-g32", data=data).model for data in (batches, clones))
    assert torch.equal(found(clones[0]), expected(clones[0]))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("inplace", [False, True], ids=["copied", "in place"])
@pytest.mark.parametrize("recipe", ["gptq-learn-w3a16-g32", "gptq-distill-w3a16-g32"])
def test_what_learns_does_so_in_inference_mode_as_without_it(recipe: str, inplace: bool, tmp_path: Path) -> None:
    batches = [torch.randn(16, 64) for _ in range(4)]
    expected = goldstick.apply(Blocks(), recipe, data=batches).model
    with torch.inference_mode():
        result = goldstick.apply(Blocks(), recipe, data=[batch.clone() for batch in batches], inplace=inplace)
        assert torch.equal(result.model(batches[0]), expected(batches[0]))
        result.save(tmp_path / "made")
        assert torch.equal(goldstick.load(tmp_path / "made", model=Blocks())(batches[0]), expected(batches[0]))
    assert not any(one.is_inference() for one in (*result.model.parameters(), *result.model.buffers()))


def test_complex_weights_stay_as_they_are() -> None:
    layer = nn.Linear(64, 64, dtype=torch.complex64)
    with pytest.warns(UnrecognisedWarning, match=r"goldstick does not recognise \(0.weight\); they stay float"):
        model: Any = goldstick.apply(nn.Sequential(layer, nn.Linear(64, 64)), "rtn-w8a16").model
    assert type(model[0]) is nn.Linear and torch.equal(model[0].weight, layer.weight)
    assert type(model[1]) is not nn.Linear


def test_a_layer_that_has_tensors_of_such_names_is_refused() -> None:
    layer = nn.Linear(64, 64)
    layer.register_buffer("weight_scale", torch.ones(3))
    with pytest.raises(StructureError, match=r"where this Linear has a weight_scale of its own: rename"):
        goldstick.apply(nn.Sequential(layer), "rtn-w8a16")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_numbers_of_unusual_dtypes_are_stored_and_read_back(dtype: torch.dtype, tmp_path: Path) -> None:
    model: Any = network()
    model[1].register_buffer("beside", torch.tensor([1, 2, 40_000]).to(dtype))
    goldstick.apply(model, "rtn-w8a16").save(tmp_path / "made")
    fresh: Any = network()
    fresh[1].register_buffer("beside", torch.zeros(3, dtype=dtype))
    assert torch.equal(goldstick.load(tmp_path / "made", model=fresh)[1].beside, model[1].beside)  # type: ignore[operator, index]


def test_a_dtype_that_files_do_not_have_is_named(tmp_path: Path) -> None:
    model: Any = network()
    model[1].register_buffer("beside", torch.ones(3, dtype=torch.complex128))
    made = goldstick.apply(model, "rtn-w8a16")
    with pytest.raises(FormatError, match=r"1\.beside is torch\.complex128, which safetensors files do not have"):
        made.save(tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_network_that_cannot_be_rounded_is_told_why(tmp_path: Path) -> None:
    quantized = goldstick.apply(network(), "rtn-w8a16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of all scripting
        traced: Any = torch.jit.trace(network(), torch.ones(1, 64))  # type: ignore[no-untyped-call]
        scripted: Any = torch.jit.script(network())
    with pytest.raises(RecipeError, match="Its layers are quantized already: give the float network"):
        goldstick.apply(quantized.model, "rtn-w4a16")
    for module in (traced, scripted):
        unrecognised = pytest.warns(UnrecognisedWarning)
        with unrecognised, pytest.raises(RecipeError, match="scripted module, whose layers cannot be replaced"):
            goldstick.apply(module, "rtn-w4a16")
    with pytest.raises(RecipeError, match="A network without blocks"):
        goldstick.apply(network(), "gptq-learn-w2a16-g32", data=[torch.ones(2, 64)])
    quantized.model[2] = nn.Linear(64, 64)  # type: ignore[operator]
    with pytest.raises(StructureError, match="A Linear stands where goldstick put a quantized layer"):
        quantized.save(tmp_path / "made")
