"""Torch's encoder with padding: what is quantized in it computes on padded rows, and padding comes out as it did."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.nn import PackedWeight
from goldstick.nn.parameter import held_parameter
from goldstick.structure.network import Network

pytestmark = [
    pytest.mark.usefixtures("reference_backend"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),  # of the float encoder
]


class Own(nn.TransformerEncoder):
    def forward(self, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(src * 2, *args, **kwargs) + 1


class Encoder(nn.Module):
    def __init__(self, kind: type[nn.TransformerEncoder] = nn.TransformerEncoder, norm: bool = True) -> None:
        super().__init__()
        last = nn.LayerNorm(32) if norm else None
        self.encoder = kind(nn.TransformerEncoderLayer(32, 4, 32, batch_first=True), 2, norm=last)
        if last is not None:
            nn.init.normal_(last.bias)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        found: Tensor = self.encoder(x, src_key_padding_mask=padding)
        return found


def dequantized(model: nn.Module, quantized: nn.Module) -> nn.Module:
    """The float model with the weights of the quantized one."""
    twin = copy.deepcopy(model)
    for site in Network(model).sites:
        module = quantized.get_submodule(site.module)
        weight = module if isinstance(module, PackedWeight) else held_parameter(module, site.parameter)
        getattr(twin.get_submodule(site.module), site.parameter).data.copy_(weight.stored_numbers())
    return twin


def padding_of(kind: str) -> Tensor:
    found = torch.zeros(3, 6, dtype=torch.bool)
    found[0, 4:] = found[1, 2:] = True
    if kind == "between":
        found[2, 0] = True
    if kind == "whole":
        found[2] = True
    return torch.zeros(3, 6).masked_fill(found, float("-inf")) if kind == "float" else found


MODELS: dict[str, Callable[[], Encoder]] = {
    "normed": Encoder,
    "without a norm": lambda: Encoder(norm=False),
    "with a forward of its own": lambda: Encoder(Own),
}


@pytest.mark.parametrize("name", MODELS)
def test_padding_comes_out_as_of_the_float_encoder(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.randn(3, 6, 32)
    quantized = goldstick.apply(model, "rtn-w8a16").model
    twin, copied = dequantized(model, quantized), pickle.loads(pickle.dumps(quantized))
    for kind, grad in itertools.product(("behind", "between", "whole", "float", ""), (True, False)):
        padding = padding_of(kind) if kind else None
        with torch.set_grad_enabled(grad):
            found, expected = quantized(x, padding), twin(x, padding)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, equal_nan=kind == "whole" and grad)
            assert torch.equal(copied(x, padding).nan_to_num(), found.nan_to_num())


def test_calibration_on_padded_batches_sees_padded_rows() -> None:
    torch.manual_seed(0)
    model, x, padding = Encoder().eval(), torch.randn(3, 6, 32), padding_of("behind")
    stage = {"scheme": "w4a16-g32", "targets": {"include": ["*layers.1.linear1"]}}
    quantized = goldstick.apply(model, {"stages": [{"gptq": stage}]}, data=[{"x": x, "padding": padding}]).model
    assert isinstance(quantized.encoder.layers[1].linear1, PackedWeight)
    assert isinstance(quantized.encoder, nn.TransformerEncoder) and type(model.encoder) is nn.TransformerEncoder
    with torch.no_grad():
        assert (quantized(x, padding) - model(x, padding)).abs().max() < 0.3
