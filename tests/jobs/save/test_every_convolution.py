"""Networks of convolutions of every kind, along one, two and three sides: compressed, stored, proven, loaded."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.nn import PackedWeight

pytestmark = pytest.mark.usefixtures("all_proofs_here")


class Shapes(nn.Module):
    """A convolution of every kind, forth and back."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.GELU(), nn.ConvTranspose1d(16, 8, 2, stride=2))
        self.plane = nn.Sequential(nn.Conv2d(8, 16, 3), nn.GELU(), nn.ConvTranspose2d(16, 8, 3, groups=2))
        self.space = nn.Sequential(nn.Conv3d(8, 16, 2), nn.GELU(), nn.ConvTranspose3d(16, 8, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.line(x)
        x = self.plane(x.unflatten(2, (4, -1)))
        found: Tensor = self.space(x.unflatten(2, (2, 2)))
        return found


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_a_network_of_every_kind_is_compressed_and_stored_whole(algorithm: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Shapes().eval(), torch.randn(4, 8, 8)
    recipe = {"stages": [{algorithm: {"scheme": "w4a16-channel"}}]}
    result = goldstick.apply(model, recipe, data=[x] if algorithm == "gptq" else None)
    layers = {name: one for name, one in result.model.named_modules() if isinstance(one, PackedWeight)}
    assert set(layers) == {f"{part}.{place}" for part in ("line", "plane", "space") for place in (0, 2)}
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, one in layers.items():
            twin.get_parameter(f"{name}.weight").copy_(one.stored_numbers())
        torch.testing.assert_close(result.model(x), twin(x), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(result.model(x), model(x), rtol=1e-4, atol=1e-5)
        result.save(tmp_path / "saved")
        assert torch.equal(goldstick.load(tmp_path / "saved", model=Shapes())(x), result.model(x))
