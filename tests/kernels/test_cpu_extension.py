"""The compiled module itself: never outside its buffers, never on arrays it was not built for."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from goldstick.kernels import cpu
from goldstick.kernels.reference import ReferenceBackend
from tests.support.guarded import before_a_forbidden_page
from tests.support.instructions import AVAILABLE
from tests.support.packed_layers import Layer, random_layer

if cpu._missing and os.environ.get("CI"):
    raise ImportError(cpu._missing)  # continuous integration has built it, so here it is broken
if cpu._missing:
    pytest.skip(cpu._missing, allow_module_level=True)

reference = ReferenceBackend()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("isa", ["scalar", ""], ids=["scalar", "best"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_nothing_past_the_end_of_a_buffer_is_touched(
    dtype: torch.dtype, isa: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_ISA", isa)
    for columns, group_size in [
        (1, None),
        (8, None),
        (9, 4),
        (16, 8),
        (31, None),
        (32, 16),
        (40, 8),
        (72, 24),
    ]:
        layer = random_layer(2, columns, bits=bits, group_size=group_size, asymmetric=True, dtype=dtype)
        assert layer.zero is not None
        expected = reference.dequantize(layer.packed, layer.scale, layer.zero, layer.spec)
        stored = [cpu._as_stored(t) for t in (layer.packed, layer.scale, layer.zero, torch.zeros_like(expected))]
        guarded = [before_a_forbidden_page(tensor) for tensor in stored]
        packed, scale, zero, out = (tensor for tensor, _ in guarded)
        cpu._C.dequantize_rows(packed, scale, zero, out, bits, layer.spec.group_size, 1)
        assert torch.equal(out.view(dtype), expected)
        for _, release in guarded:
            release()


def arguments(layer: Layer, **changes: Any) -> tuple[Any, ...]:
    given = {
        "packed": layer.packed,
        "scale": layer.scale,
        "zero": layer.zero,
        "out": torch.empty(layer.spec.out_features, layer.spec.in_features),
        "bits": layer.spec.bits,
        "group_size": layer.spec.group_size,
    }
    return tuple({**given, **changes}.values())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"packed": torch.zeros(4, 3, dtype=torch.int32)},
            r"packed has the shape \[4, 3\], expected \[4, 4\]",
        ),
        ({"scale": torch.zeros(4, 2)}, r"scale has the shape \[4, 2\], expected \[4, 4\]"),
        ({"zero": torch.zeros(3, 4)}, r"zero has the shape \[3, 4\], expected \[4, 4\]"),
        ({"out": torch.zeros(4, 64)}, r"packed has the shape \[4, 4\], expected \[4, 8\]"),
        ({"bits": 0}, "bits is 0, expected 1 to 8"),
        ({"bits": 9}, "bits is 9, expected 1 to 8"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": -8}, "group_size is -8"),
    ],
)
def test_the_extension_itself_refuses_wrong_shapes(changes: dict[str, Any], complaint: str) -> None:
    layer = random_layer(4, 32, group_size=8, asymmetric=True)
    with pytest.raises(ValueError, match=complaint):
        cpu._C.dequantize_rows(*arguments(layer, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"packed": torch.zeros(4, 4, dtype=torch.int64)}, id="wide codes"),
        pytest.param({"packed": torch.zeros(4, 8, dtype=torch.int32)[:, ::2]}, id="strided codes"),
        pytest.param({"scale": torch.zeros(4, 4, dtype=torch.float64)}, id="double scale"),
        pytest.param({"zero": torch.zeros(4, 4, dtype=torch.float64)}, id="double zero"),
        pytest.param({"zero": torch.zeros(4, 4, dtype=torch.int16)}, id="zero of another type"),
        pytest.param({"out": torch.zeros(4, 32, dtype=torch.float64)}, id="double output"),
        pytest.param({"out": torch.zeros(32, 4).T}, id="strided output"),
        pytest.param({"out": torch.zeros(128)}, id="flat output"),
        pytest.param({"out": None}, id="no output"),
    ],
)
def test_nothing_is_converted_behind_the_callers_back(changes: dict[str, Any]) -> None:
    layer = random_layer(4, 32, group_size=8, asymmetric=True)
    with pytest.raises(TypeError):
        cpu._C.dequantize_rows(*arguments(layer, **changes))


def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AVAILABLE:
        monkeypatch.setenv("GOLDSTICK_ISA", name)
        assert cpu._C.isa() == name
    monkeypatch.setenv("GOLDSTICK_ISA", "mmx")
    with pytest.raises(ValueError, match="'mmx'; it can be 'amx', 'avx512', 'avx2' or 'scalar'"):
        cpu._C.isa()
