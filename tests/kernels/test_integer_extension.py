"""The compiled product itself: never outside its buffers, never on arrays it was not built for."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.kernels import Activation, cpu
from goldstick.kernels.cpu.integer import IntegerCpuBackend
from tests.support.guarded import before_a_forbidden_page
from tests.support.instructions import every_isa
from tests.support.packed_layers import Layer, random_layer

if cpu._missing and os.environ.get("CI"):
    raise ImportError(cpu._missing)  # continuous integration has built it, so here it is broken
if cpu._missing:
    pytest.skip(cpu._missing, allow_module_level=True)

EDGES = [
    # rows, columns, group size, tokens: ends of rows, of groups, of blocks of rows and of tiles of tokens
    (1, 1, None, 1),
    (3, 31, None, 2),
    (16, 32, 32, 1),
    (17, 48, 16, 3),
    (5, 64, 64, 2),
    (20, 100, 25, 7),
    (16, 129, 64, 1),
    (16, 129, 64, 6),
    (33, 200, 128, 13),
    (2, 257, 32, 2),
    (2, 257, 32, 8),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_isa
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token"])
def test_nothing_past_the_end_of_a_buffer_is_touched(
    dtype: torch.dtype, isa: str, bits: int, activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    for rows, columns, group_size, tokens in EDGES:
        layer = random_layer(
            rows, columns, bits=bits, group_size=group_size, asymmetric=True, dtype=dtype, activation=activation
        )
        assert layer.zero is not None
        given = torch.randn(tokens, columns).to(dtype)
        expected = IntegerCpuBackend().linear(given, layer.packed, layer.scale, layer.zero, layer.bias, layer.spec)
        plain = [given, layer.packed, layer.scale, layer.zero.float(), layer.bias, torch.zeros_like(expected)]
        guarded = [before_a_forbidden_page(cpu._as_stored(tensor)) for tensor in plain]
        operands = [tensor for tensor, _ in guarded]
        cpu._C.quantized_linear(*operands, bits, layer.spec.group_size, activation or "", 0.0, 0, 1, isa)
        assert torch.equal(operands[-1].view(dtype), expected)
        for _, release in guarded:
            release()


def arguments(layer: Layer, **changes: Any) -> dict[str, Any]:
    given: dict[str, Tensor | int | str | None] = {
        "x": torch.zeros(3, layer.spec.in_features),
        "packed": layer.packed,
        "scale": layer.scale,
        "zero": layer.zero,
        "bias": layer.bias,
        "y": torch.empty(3, layer.spec.out_features),
        "bits": layer.spec.bits,
        "group_size": layer.spec.group_size,
    }
    return {**given, **changes}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"x": torch.zeros(3, 64)}, r"packed has the shape \[4, 4\], expected \[4, 8\]"),
        ({"x": torch.zeros(2, 32)}, r"y has the shape \[3, 4\], expected \[2, 4\]"),
        ({"packed": torch.zeros(4, 3, dtype=torch.int32)}, r"packed has the shape \[4, 3\], expected \[4, 4\]"),
        ({"packed": torch.zeros(5, 4, dtype=torch.int32)}, r"scale has the shape \[4, 4\], expected \[5, 4\]"),
        ({"scale": torch.zeros(4, 2)}, r"scale has the shape \[4, 2\], expected \[4, 4\]"),
        ({"zero": torch.zeros(3, 4)}, r"zero has the shape \[3, 4\], expected \[4, 4\]"),
        ({"bias": torch.zeros(5)}, "bias has 5 entries, expected 4"),
        ({"y": torch.zeros(3, 5)}, r"y has the shape \[3, 5\], expected \[3, 4\]"),
        ({"bits": 0}, "bits is 0, expected 1 to 8"),
        ({"bits": 9}, "bits is 9, expected 1 to 8"),
        ({"group_size": 0}, "group_size is 0"),
        ({"isa": "mmx"}, "isa is 'mmx'; it can be 'amx', 'avx512', 'avx2' or 'scalar'"),
        ({"table": torch.zeros(8, dtype=torch.uint8)}, r"table has the shape \[8\], expected \[16\]"),
        ({"global_scale": torch.ones(3)}, r"global_scale has the shape \[3\], expected \[4\]"),
        (
            {"activation": "int4"},
            "activation is 'int4', expected '', 'int8-group', 'int8-token', 'int4-token' or 'int8-tensor'",
        ),
    ],
)
def test_the_extension_itself_refuses_wrong_shapes(changes: dict[str, Any], complaint: str) -> None:
    layer = random_layer(4, 32, group_size=8, asymmetric=True)
    with pytest.raises(ValueError, match=complaint):
        cpu._C.quantized_linear(**arguments(layer, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"x": torch.zeros(3, 32, dtype=torch.float64)}, id="double input"),
        pytest.param({"x": torch.zeros(32, 3).T}, id="strided input"),
        pytest.param({"packed": torch.zeros(4, 4, dtype=torch.int64)}, id="wide codes"),
        pytest.param({"scale": torch.zeros(4, 4, dtype=torch.int16)}, id="scale of another type"),
        pytest.param({"zero": torch.zeros(4, 4, dtype=torch.float64)}, id="double zero"),
        pytest.param({"bias": torch.zeros(4, dtype=torch.int16)}, id="bias of another type"),
        pytest.param({"y": torch.zeros(3, 4, dtype=torch.int16)}, id="output of another type"),
        pytest.param({"y": torch.zeros(4, 3).T}, id="strided output"),
        pytest.param({"table": torch.zeros(16)}, id="float table"),
        pytest.param({"global_scale": torch.ones(1, dtype=torch.float64)}, id="double divisor"),
    ],
)
def test_nothing_is_converted_behind_the_callers_back(changes: dict[str, Any]) -> None:
    layer = random_layer(4, 32, group_size=8, asymmetric=True)
    with pytest.raises(TypeError):
        cpu._C.quantized_linear(**arguments(layer, **changes))


def test_reading_sees_every_word() -> None:
    words = torch.randint(-(2**31), 2**31 - 1, (3, 1001), dtype=torch.int32)
    folded = 0
    for word in words.flatten().tolist():
        folded ^= word & 0xFFFFFFFF
    assert cpu._C.read_words(words, 1) == cpu._C.read_words(words, 2) == folded
