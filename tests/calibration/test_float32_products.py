"""Half-precision layers that multiply in float32 while their block is calibrated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from goldstick.calibration.float32_products import multiplying_in_float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_that_of_float64_rounded_once(dtype: torch.dtype, bias: bool) -> None:
    layer = nn.Linear(40, 30, bias=bias).to(dtype)
    x = torch.randn(2, 7, 40).to(dtype)
    exact = x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    with multiplying_in_float32(layer), torch.no_grad():
        found = layer(x)
    assert found.dtype == dtype
    nearest = exact.to(dtype)
    apart = (found != nearest).float().mean()  # where the float32 sum falls on the other side of a middle
    assert apart < 0.02
    torch.testing.assert_close(found, nearest, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_everything_is_as_before_afterwards_even_behind_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).bfloat16()
    seen: list[nn.Module] = []
    model[0].register_forward_pre_hook(lambda module, _: seen.append(module))
    with pytest.raises(KeyError), multiplying_in_float32(model):
        assert "forward" in vars(model[0])
        model(torch.randn(3, 4).bfloat16())
        raise KeyError
    assert seen == [model[0]]
    assert not any("forward" in vars(module) for module in model.modules())


def test_new_weights_count_at_once() -> None:
    layer = nn.Linear(4, 4, bias=False).bfloat16()
    with multiplying_in_float32(layer), torch.no_grad():
        layer.weight.zero_()
        assert not layer(torch.ones(4).bfloat16()).any()


def test_float32_layers_and_layers_with_a_forward_of_their_own_compute_as_ever() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    for layer, dtype in ((Doubled(4, 4).bfloat16(), torch.bfloat16), (nn.Linear(4, 4), torch.float32)):
        x = torch.randn(3, 4, dtype=dtype)
        expected = layer(x)
        with multiplying_in_float32(layer):
            assert torch.equal(layer(x), expected)
