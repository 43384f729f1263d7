"""Modules that hold several weights stay of their class, and read packed ones."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.nn import PackedParameter, PackedWeight
from goldstick.nn.parameter import parameter_of

X = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(0))


class Attends(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(32, 4, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x, x[..., : self.inner.kdim], x[..., : self.inner.vdim])[0]
        return found


class Remembers(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.inner = kind(32, 32, num_layers=2, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)[0]
        return found


class Steps(nn.Module):
    def __init__(self, kind: type[nn.LSTMCell | nn.GRUCell | nn.RNNCell]) -> None:
        super().__init__()
        self.inner = kind(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        found = []
        for step in x.unbind(1):
            state = self.inner(step, state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found, 1)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "attention": Attends,
    "attention of other widths": lambda: Attends(kdim=16, vdim=32),
    "LSTM": lambda: Remembers(nn.LSTM, bidirectional=True),
    "LSTM with a projection": lambda: Remembers(nn.LSTM, proj_size=16),
    "GRU": lambda: Remembers(nn.GRU),
    "RNN": lambda: Remembers(nn.RNN),
    "LSTM cell": lambda: Steps(nn.LSTMCell),
    "GRU cell": lambda: Steps(nn.GRUCell),
    "RNN cell": lambda: Steps(nn.RNNCell),
    "encoder": encoder,
}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
every_module = pytest.mark.parametrize("name", MODULES)


def packed(model: nn.Module) -> dict[str, PackedParameter]:
    return {name: one for name, one in model.named_modules() if isinstance(one, PackedParameter)}


@every_module
@pytest.mark.parametrize("stage", ["rtn", "gptq"])
def test_it_gives_what_the_module_gives_with_the_dequantized_weights(name: str, stage: str) -> None:
    model = MODULES[name]().eval()
    recipe = {"stages": [{stage: {"scheme": "w4a16-g16"}}]}
    result = goldstick.apply(model, recipe, data=[{_argument(model): X}] if stage == "gptq" else None)
    found = packed(result.model)
    assert found and all(result.model.get_submodule(path) is one for path, one in found.items())
    with torch.no_grad():
        for path, one in result.model.named_modules():
            if isinstance(one, PackedWeight):
                target = model.get_parameter(parameter_of(path) if path in found else f"{path}.weight")
                target.copy_(one.stored_numbers())
        torch.testing.assert_close(result.model(X), model(X), rtol=1e-4, atol=1e-4)


def _argument(model: nn.Module) -> str:
    return "src" if isinstance(model, nn.TransformerEncoder) else "x"


@every_module
def test_it_stays_of_its_class_and_copies_and_casts_as_it_did(name: str) -> None:
    model = goldstick.apply(MODULES[name](), "rtn-w8a16").model.eval()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(X), model(X))
    inner = getattr(model, "inner", None)
    if inner is not None:
        assert isinstance(inner, nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase)
        assert type(inner).__name__ == f"Quantized{type(MODULES[name]().inner).__name__}"
        assert type(type(inner)(32, 4)) is type(MODULES[name]().inner), "another one of its class is float"
    assert model.to(torch.bfloat16)(X.bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize("name", ["attention", "LSTM", "LSTM cell", "encoder"])
def test_it_is_saved_proven_and_loaded(name: str, tmp_path: Any) -> None:
    result = goldstick.apply(MODULES[name]().eval(), "rtn-w8a16")
    result.save(tmp_path / "out")
    loaded = goldstick.load(tmp_path / "out", model=MODULES[name]())
    with torch.no_grad():
        assert torch.equal(loaded(X), result.model(X))


def test_torch_s_encoder_layer_quantizes_its_activations_as_told() -> None:
    model = encoder().eval()
    weights = goldstick.apply(model, "rtn-w8a16").model
    both = goldstick.apply(model, "rtn-w8a8").model
    with torch.no_grad():
        assert not torch.equal(weights(X), both(X)), "its layers are called, not one function with all weights"
