"""goldstick.accelerate: models that other libraries loaded, on goldstick's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import goldstick
from goldstick.core.grid import Grid
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError, UsageError
from goldstick.formats import FORMATS
from goldstick.nn import QuantizedLinear
from tests.support.column_formats import grid_of, random_layer
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("reference_backend")

IDS = torch.arange(24).reshape(2, 12)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny Llama in compressed-tensors by scheme, made once."""
    folder = tmp_path_factory.mktemp("accelerate")
    FAMILIES["llama_gqa"]().save_pretrained(folder / "float")

    def make(scheme: str) -> Path:
        if not (folder / scheme).exists():
            recipe = {"stages": [{"rtn": {"scheme": scheme}}], "export": {"format": "compressed-tensors"}}
            goldstick.quantize(folder / "float", recipe, output=folder / scheme, proof="tensors")
        return folder / scheme

    return make


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=IDS).logits
    return found


@pytest.mark.parametrize("scheme", ["w4a16-g32", "w8a16", "w8a8-dynamic", "w4a8-dynamic-g32"])
@pytest.mark.parametrize("decompressed", [False, True])
def test_layers_of_compressed_tensors_are_taken_over_to_the_bit(
    scheme: str, decompressed: bool, checkpoint: Any
) -> None:
    own = AutoModelForCausalLM.from_pretrained(checkpoint(scheme)).eval()
    expected = logits(own)
    model = own if decompressed else AutoModelForCausalLM.from_pretrained(checkpoint(scheme)).eval()
    replaced = goldstick.accelerate(model)
    assert len(replaced) == 14
    assert set(replaced.values()) == {scheme if scheme.endswith("g32") else f"{scheme}-channel"}
    assert all(isinstance(model.get_submodule(name), QuantizedLinear) for name in replaced)
    assert type(model.lm_head) is nn.Linear, "a float layer stays what it is"
    assert torch.equal(logits(model), expected)
    assert torch.equal(logits(model), logits(goldstick.load(checkpoint(scheme))))
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained("nowhere")
    with pytest.raises(UsageError, match="on goldstick's packed layers already"):
        goldstick.accelerate(model)


def test_a_decompressed_weight_that_was_changed_is_refused_and_nothing_is_touched(checkpoint: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint("w4a16-g32")).eval()
    logits(model)
    with torch.inference_mode():  # in which compressed-tensors made it
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-4
    expected = logits(model)
    with pytest.raises(FormatError, match=r"layers\.1\.mlp\.up_proj cannot be accelerated.*no longer what its codes"):
        goldstick.accelerate(model)
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules())
    assert torch.equal(logits(model), expected)


def test_a_float_model_is_refused_with_what_quantizes_it() -> None:
    with pytest.raises(UsageError, match=r"holds no quantized layers.*goldstick\.load.*goldstick\.apply"):
        goldstick.accelerate(nn.Sequential(nn.Linear(4, 4)))


def held_by_gptqmodel(name: str, grid: Grid, shuffled: bool = False) -> tuple[nn.Module, Tensor]:
    """A module as GPTQModel makes it, and the weight it stands for."""
    storage = FORMATS["awq" if "Awq" in name else "gptq-v2"]
    tensor = random_layer(grid, 16, 64, seed=3)
    parts = storage.pack(tensor, Scheme(weight=grid))
    if shuffled:
        order = torch.randperm(64, generator=torch.Generator().manual_seed(4))
        parts[".g_idx"] = parts[".g_idx"][order].contiguous()
    module: Any = type(name, (nn.Module,), {"__module__": "gptqmodel.nn_modules.qlinear.torch"})()
    module.bits, module.sym, module.group_size = grid.bits, grid.symmetric, grid.group_width(64)
    module.in_features, module.out_features = 64, 16
    module.bias = torch.arange(16).half()
    module.qzero_format = lambda: 2
    for suffix, part in parts.items():
        module.register_buffer(suffix.removeprefix("."), part)
    return module, storage.unpack(parts, Scheme(weight=grid), 64).dequantize(torch.float32)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("name", "size", "shuffled"),
    [
        ("TorchLinear", 16, False),
        ("TorchAtenLinear", 32, True),
        ("TorchLinear", None, False),
        ("TorchCpuAvx512Linear", 32, False),
        ("AwqTorchLinear", 32, False),
        ("TorchCpuAvx512AwqLinear", 32, False),
    ],
)
def test_modules_of_gptqmodel_are_taken_over(name: str, size: int | None, shuffled: bool, symmetric: bool) -> None:
    module, weight = held_by_gptqmodel(name, grid_of(4, symmetric, size), shuffled)
    model = nn.Sequential(nn.Linear(8, 64), module)
    assert goldstick.accelerate(model) == {"1": Scheme(weight=grid_of(4, symmetric, size)).label}
    layer: Any = model[1]
    assert torch.equal(layer.weight, weight)
    assert layer.weight_scale.dtype == torch.float32, "what the rest of the model computes in"
    assert (layer.input_order is not None) == shuffled
    x = torch.randn(3, 64)
    assert torch.allclose(layer(x), x @ weight.T + torch.arange(16.0), atol=1e-4)


def test_asymmetric_zeros_that_gptqmodel_may_have_stored_less_one_are_refused() -> None:
    module: Any
    module, _ = held_by_gptqmodel("TorchAtenLinear", grid_of(4, False, 32))
    module.qzero_format = lambda: 1
    with pytest.raises(FormatError, match=r"does not say how the zeros.*goldstick\.load\(directory\)"):
        goldstick.accelerate(nn.Sequential(module))


@pytest.mark.parametrize("how", ["a kernel", "its first pass", "padding", "another method"])
def test_a_module_of_gptqmodel_that_holds_other_tensors_than_its_file_is_refused(how: str) -> None:
    module: Any
    module, _ = held_by_gptqmodel("MarlinLinear" if how == "a kernel" else "TorchAtenLinear", grid_of(4, True, 32))
    says = "rearranges its codes"
    if how == "its first pass":
        module._cpu_transformed, says = True, "has rearranged its codes.*before its first forward pass"
    if how == "padding":
        module.qweight, says = module.qweight[:-1], r"its qweight is \[7, 16\].*padded or rearranged"
    if how == "another method":
        module.bits, says = 16, "16"
    with pytest.raises(goldstick.GoldstickError, match=says):
        goldstick.accelerate(nn.Sequential(module))
