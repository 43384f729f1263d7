"""What codes of a cache stand for: C++ gives the bits of plain torch, from wherever they lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.kernels import cpu
from goldstick.kernels.kv_numbers import kv_numbers
from goldstick.nn.kv_cache import QuantizedStates
from tests.support.guarded import before_a_forbidden_page

pytestmark = pytest.mark.skipif(cpu._C is None, reason="the extension is not built")

STORES: list[dict[str, Any]] = [
    {"dtype": "int8"},
    {"dtype": "int8", "scale": "channel"},
    {"dtype": "fp8"},
    {"dtype": "fp8", "scale": "channel"},
    {"dtype": "int4"},
    {"dtype": "int4", "rotate": True},
]
every_store = pytest.mark.parametrize("store", STORES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def stored(store: dict[str, Any], shape: tuple[int, int, int, int], dtype: torch.dtype) -> QuantizedStates:
    """Random tokens, added in two parts, so that they lie in a buffer with room."""
    x = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    options = {name: value for name, value in store.items() if name != "scale"}
    scale = torch.rand(shape[1], shape[3], generator=torch.Generator().manual_seed(1)) / 30 + 1e-3
    found = QuantizedStates(x, scale if "scale" in store else None, **options)
    first = max(shape[2] - 1, 1)
    found.append(x[:, :, :first])
    if shape[2] > first:
        found.append(x[:, :, first:])
    return found


@every_store
@every_dtype
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 3, 33, 8), (1, 2, 70, 50), (2, 2, 64, 128)], ids=str)
def test_it_gives_the_bits_of_plain_operations(
    store: dict[str, Any], shape: tuple[int, int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = stored(store, shape, dtype)
    found = held.dequantized()
    threads = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setenv("GOLDSTICK_ISA", "scalar")
        torch.set_num_threads(3)
        try:
            assert torch.equal(held.dequantized(), found)
        finally:
            torch.set_num_threads(threads)
    monkeypatch.setattr(cpu, "_C", None)
    expected = held.dequantized()
    assert found.dtype == dtype and found.shape == shape
    assert torch.equal(found, expected)


@every_store
def test_nothing_is_read_behind_the_end(store: dict[str, Any]) -> None:
    held = stored(store, (2, 2, 37, 24), torch.float32)
    (run,), (scales,) = held.runs()
    scale = scales[:, None] if scales.ndim == 2 else scales if scales.ndim == 4 else scales.unsqueeze(-1)
    expected, release = kv_numbers(run, scale, 24, torch.float32, held.turned), []

    def guarded(tensor: Tensor) -> Tensor:
        found, let_go = before_a_forbidden_page(tensor)
        release.append(let_go)
        return found

    assert torch.equal(kv_numbers(guarded(run), guarded(scale), 24, torch.float32, held.turned), expected)
    for let_go in release:
        let_go()


def test_no_tokens_are_none() -> None:
    assert QuantizedStates(torch.randn(1, 2, 3, 8), None).dequantized().shape == (1, 2, 0, 8)


def test_what_does_not_fit_is_refused() -> None:
    no_stride = (0, 0, 0, 0)
    for coding, scale, turned in ((0, 8, 0), (4, 8, 0), (1, 0, 0), (3, 8, 3)):
        with pytest.raises(ValueError, match=r"cod|turned"):
            cpu._C.cache_numbers(coding, 0, scale, no_stride, 0, 0, 1, 1, 0, 8, turned, "float32", 1)
