"""A weight that is prepacked gives the bits of the weight as it lies, and follows what becomes of that."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.kernels import Activation, cpu
from goldstick.kernels.prepared import Operands, PreparedLinear
from tests.support.guarded import before_a_forbidden_page
from tests.support.instructions import AVAILABLE, every_isa
from tests.support.packed_layers import Layer, random_layer

if cpu._C is None or cpu._C.isa() == "scalar":
    pytest.skip("the layout is one for vector instructions", allow_module_level=True)

#: rows, columns, group size: ends of blocks of rows, of words, of blocks of columns, of spans and of chunks
SHAPES = [
    (1, 32, None),
    (16, 64, 32),
    (17, 128, 64),
    (33, 200, None),
    (19, 384, 128),
    (20, 250, 125),
    (16, 1100, None),
    (18, 80, 16),
]
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 35, 200)


def operands(layer: Layer) -> Operands:
    zero = None if layer.zero is None else layer.zero.float()
    return layer.packed, layer.scale, zero, layer.bias, layer.input_scale, layer.input_zero, layer.global_scale


def prepared(layer: Layer, interleaved: bool = True) -> PreparedLinear:
    spec = layer.spec
    settings = spec.bits, spec.group_size, spec.in_features, spec.activation or ""
    return PreparedLinear(*settings, interleaved, spec.element)


def given(layer: Layer, tokens: int) -> Tensor:
    random = torch.Generator().manual_seed(tokens)
    return (torch.randn(tokens, layer.spec.in_features, generator=random) * 3).to(layer.spec.dtype)


def outputs(run: PreparedLinear, layer: Layer, tokens: int = 3) -> Tensor:
    found = run(given(layer, tokens), operands(layer))
    assert found is not None
    return found


@pytest.mark.parametrize("activation", [None, "int8-token", "int8-tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("bits", range(1, 9))
def test_the_bits_are_those_of_the_weight_as_it_lies(
    bits: int, asymmetric: bool, dtype: torch.dtype, activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = 0
    for number, (rows, columns, group_size) in enumerate(SHAPES):
        layer = random_layer(
            rows, columns, bits=bits, group_size=group_size, asymmetric=asymmetric, dtype=dtype, activation=activation
        )
        run, plain = prepared(layer), prepared(layer, interleaved=False)
        copied += run.ready(operands(layer)).interleaved
        assert not plain.ready(operands(layer)).interleaved
        for tokens in TOKENS[number % 3 :: 3]:  # among the shapes, all of them
            monkeypatch.setenv("GOLDSTICK_ISA", "avx2")
            expected = outputs(plain, layer, tokens)
            for isa in AVAILABLE[1:]:
                monkeypatch.setenv("GOLDSTICK_ISA", isa)
                found = outputs(run, layer, tokens), outputs(plain, layer, tokens)
                assert all(torch.equal(one, expected) for one in found), (rows, columns, tokens, isa)
    least = len(SHAPES) - (2 if bits <= 4 else 3)
    assert copied >= least, "groups that fill their blocks badly stay as they are, the others do not"


@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token"])
@pytest.mark.parametrize("element", ["e2m1", "iq4", "e2m3"])
def test_codes_of_a_table_give_the_same_bits_in_any_layout(
    element: str, activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows, columns, group_size in [*SHAPES, (5, 100, 25)]:
        layer = random_layer(
            rows, columns, group_size=group_size, activation=activation, element=element, scaled=activation is None
        )
        for tokens in (1, 2, 5, 17):
            monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
            expected = outputs(prepared(layer, interleaved=False), layer, tokens)
            for isa in AVAILABLE[1:]:
                monkeypatch.setenv("GOLDSTICK_ISA", isa)
                for interleaved in (True, False):
                    found = outputs(prepared(layer, interleaved), layer, tokens)
                    assert torch.equal(found, expected), (rows, columns, tokens, isa, interleaved)


def test_a_scale_of_scales_that_changes_in_place_is_seen() -> None:
    layer = random_layer(19, 64, group_size=16, element="e2m1", scaled=True)
    layer.bias.zero_()
    run = prepared(layer)
    before = outputs(run, layer)
    assert layer.global_scale is not None
    layer.global_scale.mul_(2)
    assert torch.equal(outputs(run, layer), before / 2)


def test_a_copy_that_would_be_mostly_filling_is_not_made() -> None:
    layer = random_layer(16, 64, group_size=8)
    assert not prepared(layer).ready(operands(layer)).interleaved
    assert torch.equal(outputs(prepared(layer), layer), outputs(prepared(layer, interleaved=False), layer))


@every_isa
def test_large_inputs_beside_each_other_keep_their_bits(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    layer = random_layer(40, 256, bits=8, activation="int8-token")
    x = torch.ones(9, 256)  # every pair of neighbours is too much for 16 bits
    x[4:] = given(layer, 5)
    one, other = (prepared(layer, interleaved)(x, operands(layer)) for interleaved in (True, False))
    assert one is not None and other is not None
    assert torch.equal(one, other)


def test_threads_change_nothing() -> None:
    layer, found, threads = random_layer(1200, 256, group_size=64), [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(outputs(prepared(layer), layer, 8))
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def changed(layer: Layer, name: str) -> None:
    tensor: Any = getattr(layer, name)
    tensor.bitwise_not_() if name == "packed" else tensor.mul_(1.5)


@pytest.mark.parametrize("name", ["packed", "scale", "bias", "input_scale"])
def test_numbers_that_change_in_place_are_seen(name: str) -> None:
    layer = random_layer(19, 64, activation="int8-tensor")
    run = prepared(layer)
    before = outputs(run, layer)
    changed(layer, name)
    after = outputs(run, layer)
    assert not torch.equal(before, after)
    assert torch.equal(after, outputs(prepared(layer, interleaved=False), layer))


def test_zeros_that_change_through_a_view_are_seen() -> None:
    layer, x = random_layer(19, 64, asymmetric=True), torch.randn(2, 64)
    run, weight = prepared(layer), operands(layer)
    before = run(x, weight)
    assert before is not None and weight[2] is not None
    weight[2][3:5].add_(1)
    assert not torch.equal(before, run(x, weight))  # type: ignore[arg-type]


def test_tensors_without_versions_are_read_where_they_lie() -> None:
    with torch.inference_mode():
        layer = random_layer(16, 64)
        run = prepared(layer)
        assert not run.ready(operands(layer)).interleaved
        before = outputs(run, layer)
        changed(layer, "scale")
        assert not torch.equal(outputs(run, layer), before)


def test_copies_go_on_interleaved_and_another_instruction_set_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = random_layer(16, 64)
    run = prepared(layer)
    expected = outputs(run, layer)
    other = pickle.loads(pickle.dumps(run))
    assert other.ready(operands(layer)).interleaved
    assert torch.equal(outputs(other, layer), expected)
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
    assert torch.equal(outputs(run, layer), expected)
    assert not prepared(layer).ready(operands(layer)).interleaved


@pytest.mark.parametrize("bits", range(1, 9))
def test_nothing_past_the_end_of_a_weight_is_read(bits: int) -> None:
    for rows, columns, group_size in SHAPES:
        layer = random_layer(rows, columns, bits=bits, group_size=group_size, asymmetric=True)
        expected = outputs(prepared(layer, interleaved=False), layer)
        tensors = [tensor for tensor in operands(layer)[:4] if tensor is not None]
        guarded = [before_a_forbidden_page(tensor) for tensor in tensors]
        packed, scale, zero, bias = [tensor for tensor, _ in guarded]
        found = prepared(layer)(given(layer, 3), (packed, scale, zero, bias, None, None, None))
        assert found is not None
        assert torch.equal(found, expected)
        for _, release in guarded:
            release()
