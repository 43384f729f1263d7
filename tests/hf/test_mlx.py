"""MLX's files: written and read again, tied heads, mixtures, what is refused. Its own are in test_other_tools.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick import api
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError, FormatError, GoldstickError
from goldstick.formats.base import StoredLayer
from goldstick.formats.mlx import MLX
from goldstick.hf.checkpoint import open_quantized
from goldstick.jobs.doctor.examine import examine
from tests.support.commands import change_json
from tests.support.other_tools import FOLDER

pytestmark = pytest.mark.usefixtures("reference_backend")

IDS = torch.arange(16)[None]
W4, W3 = FOLDER / "mlx-w4", FOLDER / "mlx-w3"
DOWN = "model.layers.0.mlp.down_proj"


def logits(directory: Path) -> Tensor:
    model: Any = goldstick.load(directory, dtype=torch.float32)
    with torch.no_grad():
        found: Tensor = model(IDS).logits
    return found


def config_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return found


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in bfloat16 whose head is its embedding."""
    directory = tmp_path_factory.mktemp("tied")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(directory)
    return directory


def test_codes_lie_from_the_lowest_bit_and_biases_are_the_middle() -> None:
    scheme = Scheme.parse("w4a16-g64")
    codes = torch.arange(128, dtype=torch.uint8).reshape(2, 64) % 16
    scale = torch.tensor([[0.5], [3.0]], dtype=torch.bfloat16)
    parts = MLX.pack(QuantizedTensor(codes=codes, scale=scale, zero=None, grid=scheme.weight), scheme)
    assert parts[""].dtype is torch.uint32 and parts[""].shape == (2, 8)
    assert [int(word) for word in parts[""][0, :2].view(torch.int32)] == [0x76543210, 0xFEDCBA98 - 2**32]
    assert parts[".biases"].tolist() == [[-4.0], [-24.0]]
    assert parts[".biases"].dtype is torch.bfloat16


@pytest.mark.parametrize("source", [W4, W3], ids=lambda path: path.name)
def test_its_fractional_zeros_come_back_to_the_bit_through_the_native_format(source: Path, tmp_path: Path) -> None:
    there = api.export(source, "native", output=tmp_path / "native").directory
    assert "quantization" not in config_of(there)
    back = api.export(there, "mlx", output=tmp_path / "back").directory
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (source, back))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(value.view(torch.uint8), ours[name].view(torch.uint8)) for name, value in theirs.items())
    assert torch.equal(logits(back), logits(source))
    assert examine(back).healthy and examine(source).healthy


def test_what_is_symmetric_goes_to_other_formats_and_back(tied: Path, tmp_path: Path) -> None:
    recipe = {
        "stages": [{"rtn": {"scheme": "w4a16-g64", "overrides": {"*down_proj": "w8a16-g32", "*v_proj": "w3a16-g32"}}}],
        "export": {"format": "mlx"},
    }
    made = api.quantize(tied, recipe, output=tmp_path / "made").directory
    config = config_of(made)
    assert config["quantization"] == config["quantization_config"]
    assert (config["quantization"]["bits"], config["quantization"]["group_size"]) == (4, 64)
    assert config["quantization"][DOWN] == {"bits": 8, "group_size": 32}
    assert config["tie_word_embeddings"] is True
    schemes = {layer.site.rpartition(".")[2]: layer.scheme.label for layer in open_quantized(made).stored.layers}
    assert (schemes["down_proj"], schemes["v_proj"], schemes["up_proj"]) == ("w8a16-g32", "w3a16-g32", "w4a16-g64")
    there = api.export(made, "compressed-tensors", output=tmp_path / "there").directory
    back = api.export(there, "mlx", output=tmp_path / "back").directory
    assert config_of(back)["quantization"] == config["quantization"]
    assert torch.equal(logits(back), logits(made))


def test_a_head_that_is_not_stored_runs_on_the_quantized_embedding(tied: Path, tmp_path: Path) -> None:
    rounding = {"scheme": "w4a16-g64", "targets": {"include": ["@embedding", "*_proj"]}, "tie": "keep"}
    recipe = {"stages": [{"rtn": rounding}], "export": {"format": "mlx"}}
    made = api.quantize(tied, recipe, output=tmp_path / "made").directory
    assert config_of(made)["tie_word_embeddings"] is True, "MLX looks for a head otherwise"
    stored = load_file(made / "model.safetensors")
    assert "model.embed_tokens.scales" in stored and "lm_head.weight" not in stored
    model: Any = goldstick.load(made, dtype=torch.float32)
    hidden = torch.randn(2, 64)
    with torch.no_grad():
        embedded = model.lm_head(hidden)
        assert torch.allclose(embedded, hidden @ model.model.embed_tokens.dequantized().T, atol=1e-5)
    assert examine(made).healthy


def test_a_loaded_model_does_not_say_what_mlx_alone_reads() -> None:
    """Whatever is saved of it has other tensors."""
    config = goldstick.load(W4).config.to_dict()
    assert "quantization" not in config and config["quantization_config"]["quant_method"] == "mlx"


def test_what_mlx_alone_says_is_read(tmp_path: Path) -> None:
    """Earlier versions wrote no ``quantization_config``; a module may have words of its own, or ``false``."""
    older = Path(shutil.copytree(W4, tmp_path / "older"))
    change_json(older / "config.json", lambda config: config.pop("quantization_config"))
    change_json(older / "config.json", lambda config: config["quantization"].update({"bits": 8, "lm_head": False}))
    own = {
        layer.name.removesuffix(".weight"): {"bits": 4, "group_size": 64} for layer in open_quantized(W4).stored.layers
    }
    change_json(older / "config.json", lambda config: config["quantization"].update(own))
    assert torch.equal(logits(older), logits(W4))


def test_groups_that_are_all_one_number_are_read(tmp_path: Path) -> None:
    constant = Path(shutil.copytree(W4, tmp_path / "constant"))
    tensors = load_file(constant / "model.safetensors")
    tensors[f"{DOWN}.scales"].zero_()
    save_file(tensors, constant / "model.safetensors", {"format": "pt"})
    model: Any = goldstick.load(constant, dtype=torch.float32)
    bias = tensors[f"{DOWN}.biases"].float()
    assert torch.equal(model.model.layers[0].mlp.down_proj.dequantized(), bias.repeat_interleave(64, dim=-1))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"mode": "mxfp4"}, "reads MLX's affine layers, and this checkpoint has those of 'mxfp4'"),
        ({"mode": "nvfp4"}, "reads MLX's affine layers, and this checkpoint has those of 'nvfp4'"),
        ({"mode": "mxfp8"}, "reads MLX's affine layers, and this checkpoint has those of 'mxfp8'"),
        ({"bits": 7}, "7 bits in groups of 64"),
        ({"group_size": [64]}, r"bits in groups of \[64\]"),
        ({DOWN: {"bits": 4, "group_size": 64, "mode": "nvfp4"}}, f"gives {DOWN} 4 bits"),
        ({"bits": 8}, "calls for uint32"),
    ],
)
def test_what_makes_no_sense_is_refused(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(W4, tmp_path / "changed"))
    change_json(directory / "config.json", lambda config: config["quantization"].update(words))
    with pytest.raises(GoldstickError, match=message):
        goldstick.load(directory)


def test_a_layer_without_its_biases_is_refused(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(W4, tmp_path / "lost"))
    tensors = load_file(directory / "model.safetensors")
    del tensors[f"{DOWN}.biases"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{DOWN}.biases' is missing"):
        goldstick.load(directory)


def layer(label: str, shape: tuple[int, ...] = (64, 64), kind: str = "linear", **more: Any) -> StoredLayer:
    return StoredLayer(
        name="a.weight", site="a", kind=kind, shape=torch.Size(shape), scheme=Scheme.parse(label),
        fractional_zeros=False, **more,
    )  # fmt: skip


def test_what_it_cannot_hold_is_refused_with_the_reason() -> None:
    assert MLX.refuses(layer("w4a16-g64")) is None
    assert MLX.refuses(layer("w5a16-g32", kind="embedding")) is None
    assert "not w4a16-channel" in str(MLX.refuses(layer("w4a16-channel")))
    assert "not w4a16-g64 of 96 inputs" in str(MLX.refuses(layer("w4a16-g64", (64, 96))))
    assert "what becomes of an input" in str(MLX.refuses(layer("w8a8-dynamic")))
    assert "linear layers and embeddings" in str(MLX.refuses(layer("w4a16-g64", (2, 64, 64), kind="experts")))
    assert "exact only by chance" in str(MLX.refuses(layer("w4a16-g64-asym", scale_dtype=torch.bfloat16)))
    scale, zero = torch.tensor([[0.7]]).bfloat16(), torch.tensor([[0.3]])
    assert "1 of its 1 zeros" in str(MLX.refuses_zeros(scale, zero, Scheme.parse("w4a16-g64-asym").weight))
    with pytest.raises(FormatError, match="no place for what a layer does"):
        scheme = Scheme.parse("w4a16-g64")
        tensor = QuantizedTensor(
            codes=torch.zeros(2, 64, dtype=torch.uint8), scale=torch.ones(2, 1), zero=None, grid=scheme.weight
        )
        MLX.pack(tensor, scheme, input_multiplier=torch.ones(64))
