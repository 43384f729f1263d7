"""Sources: float checkpoints, and quantized ones as the float models that their codes stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import goldstick
from goldstick.checkpoint.source import INDEX_NAME
from goldstick.errors import CheckpointError, FormatError, SourceError
from goldstick.hf.source import open_source
from goldstick.jobs.load.load import load_float
from goldstick.nn.packed import packed_tensors
from tests.support.commands import change_json
from tests.support.quantized_sources import SOURCES, deepseek_in_fp8, llama_in_nvfp4
from tests.support.small_checkpoints import SCHEMES, small_checkpoints

IDS = torch.arange(16)[None]


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "one.safetensors")
    save_file({"c": torch.ones(4)}, tmp_path / "two.safetensors")
    places = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def test_tensors_come_in_file_order_with_their_sizes(sharded: Path) -> None:
    checkpoint = open_source(sharded)
    assert list(checkpoint.tensors) == ["a", "b", "c"]
    assert checkpoint.nbytes == 4 * (2 + 3 + 4)
    assert [file.name for file in checkpoint.files] == ["one.safetensors", "two.safetensors"]
    assert checkpoint.quantized_as == ""


def test_tokenizers_licences_and_templates_are_carried_on_and_nothing_else(sharded: Path) -> None:
    text = (
        "LICENSE.txt chat_template.jinja generation_config.json merges.txt preprocessor_config.json "
        "special_tokens_map.json tokenizer.json tokenizer.model tokenizer_config.json vocab.json"
    )
    carried = text.split()
    for name in (*carried, "modeling_evil.py", "optimizer.pt", "README.md", ".gitattributes", "training_args.bin"):
        (sharded / name).write_text(name)
    assert list(open_source(sharded).sidecars) == carried


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("published")
    return {name: (folder / name, write(folder / name)) for name, write in SOURCES.items()}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_is_quantized_gives_the_numbers_its_codes_stand_for(name: str, published: Any) -> None:
    directory, numbers = published[name]
    source = open_source(directory)
    assert source.quantized_as.startswith(f"{name} (")
    assert "quantization_config" not in source.config
    assert set(source.tensors) == set(numbers)
    for tensor, expected in numbers.items():
        info = source.tensors[tensor]
        found = info.read()
        assert (found.shape, found.dtype) == (info.shape, info.dtype) == (expected.shape, expected.dtype)
        assert torch.equal(found, expected), tensor
    file = directory / "model.safetensors"
    assert 0 < file.stat().st_size - source.nbytes < 20_000, "what the files hold, less their headers"


@pytest.mark.parametrize("name", ["fp8", "mxfp4"])
def test_so_does_transformers(name: str, published: Any) -> None:
    directory, _ = published[name]
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    ours: Any = load_float(directory)
    for (parameter, a), (other, b) in zip(theirs.state_dict().items(), ours.state_dict().items(), strict=True):
        assert parameter == other
        assert torch.equal(a, b), parameter
    with torch.no_grad():
        assert torch.equal(theirs(IDS).logits, ours(IDS).logits)


def test_blocks_at_the_edge_are_cut_off(tmp_path: Path) -> None:
    numbers = deepseek_in_fp8(tmp_path / "cut", size=48)  # which divides nothing
    tensors = open_source(tmp_path / "cut").tensors
    assert all(torch.equal(tensors[name].read(), value) for name, value in numbers.items())


@pytest.mark.parametrize("name", SOURCES)
def test_a_model_is_loaded_from_it(name: str, published: Any) -> None:
    directory, _ = published[name]
    model: Any = goldstick.load(directory)
    with torch.no_grad():
        found, expected = model(IDS).logits, load_float(directory)(IDS).logits
    assert (found - expected).abs().max() <= (0 if name == "fp8" else 0.02) * expected.abs().max()
    assert any(packed_tensors(model)) == (name != "fp8"), "FP8 runs dequantized, others on their codes"


def test_what_model_optimizer_wrote_beside_the_config_counts(tmp_path: Path) -> None:
    numbers = llama_in_nvfp4(tmp_path / "beside")
    table: dict[str, Any] = {}
    change_json(tmp_path / "beside" / "config.json", lambda config: table.update(config.pop("quantization_config")))
    quantization = {"quant_algo": table["quant_algo"], "exclude_modules": ["lm_head"], "group_size": 16}
    (tmp_path / "beside" / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    source = open_source(tmp_path / "beside")
    assert source.quantized_as == "modelopt (nvfp4a16)"
    assert torch.equal(source.tensors["model.layers.0.mlp.up_proj.weight"].read(),
                       numbers["model.layers.0.mlp.up_proj.weight"])  # fmt: skip


def test_checkpoints_of_goldstick_are_sources_too(tmp_path: Path) -> None:
    made = small_checkpoints(tmp_path)
    for name in (*SCHEMES, "gguf"):
        source = open_source(made[name])
        assert source.quantized_as.startswith(f"{name} (w4a16-g32")
        quantized: Any = goldstick.load(made[name])
        for parameter in ("model.layers.0.mlp.up_proj", "model.layers.0.self_attn.k_proj"):
            expected = quantized.get_submodule(parameter).weight
            found = source.tensors[f"{parameter}.weight"].read()
            assert found.dtype is expected.dtype
            # Float16 scales, which the model rounds to its bfloat16 before it multiplies.
            loose = name in ("gptq", "awq", "auto-round", "gguf")
            torch.testing.assert_close(found, expected, rtol=0.02 if loose else 0, atol=0)


@pytest.mark.parametrize(
    "config, says",
    [
        (
            {"quant_method": "fp8", "scale_fmt": "fp16"},
            "reads fp8 checkpoints with scale_fmt 'float' or 'ue8m0', and not 'fp16'",
        ),
        ({"quant_method": "fp8", "weight_block_size": [1, 128]}, r"square blocks, and not in \[1, 128\]"),
        ({"quant_method": "fp8", "activation_scheme": "lazy"}, "'dynamic' or 'static', not 'lazy'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "NVFP4, FP8, .* and this checkpoint has 'W4A16_AWQ'"),
        ({"quant_method": "quanto"}, "quantized with 'quanto', which goldstick does not load"),
        ({}, "has a 'quantization_config' without a 'quant_method', so nothing says how"),
    ],
)
def test_what_is_not_read_is_named(config: dict[str, Any], says: str, tmp_path: Path, published: Any) -> None:
    directory, _ = published["fp8"]
    settings = json.loads((directory / "config.json").read_text()) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    shutil.copy(directory / "model.safetensors", tmp_path)
    with pytest.raises(FormatError, match=says):
        open_source(tmp_path)


@pytest.mark.parametrize("config", [[], False])
def test_a_config_that_is_no_table_is_refused(config: Any, sharded: Path) -> None:
    change_json(sharded / "config.json", lambda settings: settings.update(quantization_config=config))
    with pytest.raises(SourceError, match="a 'quantization_config' that is no table"):
        open_source(sharded)


def test_fp8_codes_without_their_scales_are_refused(tmp_path: Path) -> None:
    deepseek_in_fp8(tmp_path / "lost")
    file = tmp_path / "lost" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.self_attn.o_proj.weight_scale_inv"]
    save_file(tensors, file)
    with pytest.raises(
        CheckpointError, match=r"lacks the tensor 'model\.layers\.0\.self_attn\.o_proj\.weight_scale_inv"
    ):
        open_source(tmp_path / "lost")


def test_a_zero_scale_of_scales_is_refused(tmp_path: Path) -> None:
    llama_in_nvfp4(tmp_path / "zero")
    file = tmp_path / "zero" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.weight_scale_2"].zero_()
    save_file(tensors, file)
    with pytest.raises(FormatError, match=r"its weight_scale_2 is 0\.0; it is a positive number"):
        open_source(tmp_path / "zero").tensors["model.layers.0.mlp.up_proj.weight"].read()
