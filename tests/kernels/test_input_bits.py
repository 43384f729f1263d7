"""Float inputs rounded to 8 bits by groups of columns: near what a slow loop says, and the same bits however run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import goldstick
from goldstick.errors import UsageError
from goldstick.kernels import WeightSpec, cpu
from goldstick.kernels.cpu import integer
from goldstick.kernels.cpu.integer import IntegerCpuBackend
from goldstick.kernels.input_bits import input_bits
from goldstick.kernels.prepared import Operands, PreparedLinear
from tests.support.instructions import AVAILABLE
from tests.support.packed_layers import Layer, product_error, random_layer, superblock_layer
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs

if cpu._missing and os.environ.get("CI"):
    raise ImportError(cpu._missing)  # continuous integration has built it, so here it is broken
if cpu._missing:
    pytest.skip(cpu._missing, allow_module_level=True)

ours = IntegerCpuBackend()
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
TOKENS = (1, 2, 3, 4, 5, 9, 16, 17, 35, 100)
LAYERS: dict[str, dict[str, Any]] = {
    "w4": {"bits": 4},
    "w4-g32": {"bits": 4, "group_size": 32},
    "w4-g200-asym": {"bits": 4, "group_size": 200, "asymmetric": True},
    "w3-g24": {"bits": 3, "group_size": 24},
    "w8-g128": {"bits": 8, "group_size": 128},
    "fp4-g16": {"element": "e2m1", "group_size": 16, "scaled": True},
}
SUPERBLOCKS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")


@pytest.fixture(autouse=True)
def eight_bits() -> Iterator[None]:
    goldstick.set_input_bits(8)
    yield
    goldstick.set_input_bits(16)


def made(name: str, dtype: torch.dtype) -> Layer:
    if name in SUPERBLOCKS:
        return superblock_layer(37, 512, name, dtype=dtype)
    return random_layer(37, 600, dtype=dtype, **LAYERS[name])


def rounded(x: Tensor, spec: WeightSpec) -> Tensor:
    """Each run of at most 128 columns of a group to multiples of a 127th of its largest, float32."""
    found = x.float().clone()
    for start in range(0, spec.in_features, spec.group_size):
        stop = min(start + spec.group_size, spec.in_features)
        for begin in range(start, stop, 128):
            part = found[:, begin : min(begin + 128, stop)]
            step = (part.abs().amax(-1, keepdim=True) / 127).clamp_min(2.0**-120)
            part.copy_((part * (1 / step)).round() * step)
    return found


def operands(layer: Layer) -> Operands:
    zero = None if layer.zero is None else layer.zero.float()
    return layer.packed, layer.scale, zero, layer.bias, layer.input_scale, layer.input_zero, layer.global_scale


def run(layer: Layer, x: Tensor) -> Tensor:
    return ours.linear(x, *operands(layer)[:4], layer.spec, *operands(layer)[4:])


@every_dtype
@pytest.mark.parametrize("name", [*LAYERS, *SUPERBLOCKS])
def test_products_are_those_of_the_rounded_inputs_however_they_are_run(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer, "THREADED_FROM", 1)
    layer = made(name, dtype)
    spec = layer.spec
    x = (torch.randn(100, spec.in_features, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    x[7, :40] = 0  # groups of zeros
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
    expected = run(layer, x)
    allowed = {torch.float32: 1e-11, torch.bfloat16: 5e-5, torch.float16: 1e-6}[dtype]
    assert product_error(layer, rounded(x, spec), expected, layer.bias) < allowed
    assert product_error(layer, x, expected, layer.bias) > 1e-6, "inputs were not rounded"
    for isa in AVAILABLE:
        monkeypatch.setenv("GOLDSTICK_ISA", isa)
        for interleaved in (True, False):
            settings = spec.bits, spec.group_size, spec.in_features, ""
            prepared = PreparedLinear(*settings, interleaved, spec.element)
            for tokens in TOKENS:
                assert torch.equal(run(layer, x[:tokens]), expected[:tokens]), (isa, tokens)
                found = prepared(x[:tokens], operands(layer))
                assert found is not None
                assert torch.equal(found, expected[:tokens]), (isa, tokens, interleaved)


def test_a_number_that_is_none_or_infinite_spoils_its_token_alone() -> None:
    layer = made("w4-g32", torch.float32)
    x = torch.randn(5, 600)
    clean = run(layer, x)
    x[1, 3], x[3, 599] = torch.nan, torch.inf
    found = run(layer, x)
    assert found[[1, 3]].isnan().all()
    assert torch.equal(found[[0, 2, 4]], clean[[0, 2, 4]])


@pytest.mark.parametrize("activation", ["int8-token", "int4-token", "int8-tensor", "e4m3-token"])
def test_inputs_that_a_scheme_rounds_are_rounded_by_it_alone(activation: Any) -> None:
    layer = random_layer(24, 256, group_size=32, activation=activation)
    x = torch.randn(6, 256)
    found = run(layer, x)
    goldstick.set_input_bits(16)
    assert torch.equal(run(layer, x), found)


def test_layers_that_were_prepared_are_prepared_anew() -> None:
    layer, x = made("q4_k", torch.float32), torch.randn(3, 512)
    prepared = PreparedLinear(4, 32, 512, "", True)
    found = []
    for bits in (16, 8, 16):
        goldstick.set_input_bits(bits)
        found.append(prepared(x, operands(layer)))
    assert found[0] is not None and found[1] is not None and found[2] is not None
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])


def logits(model: Any, ids: Tensor) -> Tensor:
    return output_tensor(model, {"input_ids": ids})


def test_a_model_and_its_optimized_form_answer_alike_and_near_what_they_did() -> None:
    goldstick.set_input_bits(16)
    model: Any = goldstick.apply(FAMILIES["llama_gqa"](), "rtn-w4a16-g32").model
    ids = sample_inputs(model)["input_ids"]
    exact = logits(model, ids)
    goldstick.set_input_bits(8)
    found = logits(model, ids)
    assert 1e-4 < (found - exact).norm() / exact.norm() < 0.05
    settings: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    written = model.generate(ids[:1], **settings)
    goldstick.optimize(model)
    torch.testing.assert_close(logits(model, ids), found, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.generate(ids[:1], **settings), written)


def test_blocks_of_one_token_take_note_of_every_change() -> None:
    goldstick.set_input_bits(16)
    model: Any = goldstick.apply(FAMILIES["llama_gqa"](), "rtn-w4a16-g32").model
    ids = sample_inputs(model)["input_ids"][:1]

    def steps(bits: int) -> Tensor:
        goldstick.set_input_bits(bits)
        with torch.no_grad():
            output = model(ids, use_cache=True)
            found = [output.logits[:, -1]]
            for token in (5, 6):
                output = model(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
                found.append(output.logits[:, -1])
        return torch.stack(found)

    expected = {bits: steps(bits) for bits in (16, 8)}
    goldstick.set_input_bits(16)
    assert "one block of one token" in str(goldstick.optimize(model))
    for bits, other in ((16, 8), (8, 16), (16, 8)):
        found = steps(bits)
        for mine, right, wrong in zip(found, expected[bits], expected[other], strict=True):
            # Sums that differ in their last bits are rounded to another code of 8 bits now and then.
            assert (mine - right).norm() < 0.2 * (mine - wrong).norm()


def test_other_numbers_of_bits_are_refused() -> None:
    with pytest.raises(UsageError, match="rounded to 16 or 8 bits, not to 4"):
        goldstick.set_input_bits(4)
    assert input_bits() == 8


def test_nothing_is_decided_by_fewer_bits(tmp_path: Any) -> None:
    model = FAMILIES["llama_gqa"]()
    goldstick.set_input_bits(16)
    made = goldstick.apply(model, "rtn-w4a16-g32")
    goldstick.set_input_bits(8)
    with pytest.raises(UsageError, match=r"quantized or proven: call goldstick.set_input_bits\(16\) before"):
        goldstick.apply(model, "rtn-w4a16-g32")
    with pytest.raises(UsageError, match="nothing is quantized or proven"):
        made.save(tmp_path / "out")
    with pytest.raises(UsageError, match="nothing is quantized or proven"):
        goldstick.export(tmp_path, "native", output=tmp_path / "out")
    with pytest.raises(UsageError, match="nothing is quantized"):
        goldstick.quantize("reference", "rtn-w4a16-g32", output=tmp_path / "out")
    with pytest.raises(UsageError, match="nothing is quantized"):
        goldstick.search("reference", size="60%")
    assert not (tmp_path / "out").exists()
