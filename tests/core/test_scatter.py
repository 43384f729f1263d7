"""ScatteredBatchNorm: channels where they were, zeros between, in the order of memory they came in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from goldstick.core.scatter import ScatteredBatchNorm

KEPT = (1, 3, 4)


def scattered(norm: nn.Module, x: Tensor, width: int) -> Tensor:
    """Channel by channel."""
    narrow, wide = norm(x), torch.zeros(len(x), width, *x.shape[2:], dtype=x.dtype)
    for place, channel in enumerate(KEPT):
        wide[:, channel] = narrow[:, place]
    return wide


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_channels_come_where_they_were(training: bool, memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    plain = nn.BatchNorm2d(3).to(dtype).train(training)
    nn.init.uniform_(plain.weight)
    module = ScatteredBatchNorm(plain, KEPT, 6)
    x = torch.randn(5, 3, 4, 7).to(dtype).contiguous(memory_format=memory_format).requires_grad_()
    found = module(x)
    assert found.is_contiguous(memory_format=memory_format)
    assert torch.equal(found, scattered(plain, x, 6))
    found.sum().backward()
    own, x.grad = x.grad, None
    scattered(plain, x, 6).sum().backward()
    assert own is not None and x.grad is not None
    assert torch.allclose(own, x.grad, atol=1e-2 if dtype is torch.bfloat16 else 1e-6)


def test_rows_without_places_are_scattered_too() -> None:
    plain = nn.BatchNorm1d(3).eval()
    x = torch.randn(5, 3)
    assert torch.equal(ScatteredBatchNorm(plain, KEPT, 6)(x), scattered(plain, x, 6))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_number_that_is_none_stays_in_its_channel(memory_format: torch.memory_format) -> None:
    plain = nn.BatchNorm2d(3).eval()
    x = torch.randn(2, 3, 4, 7).contiguous(memory_format=memory_format)
    x[0, 1, 2, 3], x[1, 2, 0, 0] = torch.inf, torch.nan
    found = ScatteredBatchNorm(plain, KEPT, 6)(x)
    torch.testing.assert_close(found, scattered(plain, x, 6), rtol=0, atol=0, equal_nan=True)
    assert int((~found.isfinite()).sum()) == 2
