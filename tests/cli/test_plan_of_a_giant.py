"""Plan reads headers only: a 70B checkpoint whose files hold no data is planned like a real one."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run
from tests.support.tiny_tokenizer import write_tokenizer

LAYERS, HIDDEN, INNER, KEYS, VOCABULARY = 80, 8192, 28672, 1024, 128256


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in the shape of a Llama with 70 billion parameters; the shards are holes behind their headers."""
    directory = tmp_path_factory.mktemp("giant") / "llama-70b"
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    ends = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}
    parts = [{**ends, "model.norm.weight": [HIDDEN]}, *(_block(index) for index in range(LAYERS))]
    weight_map = {}
    for index, part in enumerate(parts):
        name = f"model-{index + 1:05d}-of-{len(parts):05d}.safetensors"
        _hollow_shard(directory / name, part)
        weight_map.update(dict.fromkeys(part, name))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    write_tokenizer(directory)
    return directory


def _block(index: int) -> dict[str, list[int]]:
    shapes = {
        "self_attn.q_proj": [HIDDEN, HIDDEN],
        "self_attn.k_proj": [KEYS, HIDDEN],
        "self_attn.v_proj": [KEYS, HIDDEN],
        "self_attn.o_proj": [HIDDEN, HIDDEN],
        "mlp.gate_proj": [INNER, HIDDEN],
        "mlp.up_proj": [INNER, HIDDEN],
        "mlp.down_proj": [HIDDEN, INNER],
        "input_layernorm": [HIDDEN],
        "post_attention_layernorm": [HIDDEN],
    }
    return {f"model.layers.{index}.{name}.weight": shape for name, shape in shapes.items()}


def _hollow_shard(path: Path, shapes: dict[str, list[int]]) -> None:
    header: dict[str, Any] = {}
    position = 0
    for name, shape in shapes.items():
        end = position + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + position)


def test_seventy_billion_parameters_are_planned_from_their_headers(giant: Path) -> None:
    result = run("plan", str(giant), "--recipe", "rtn-w4a16-g128", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["bytes_before"] == 141_107_412_992  # Llama-3-70B in bfloat16, as the hub counts it
    assert plan["format"] == "compressed-tensors"
    assert plan["streams"] is True
    assert plan["warnings"] == []
    assert len(plan["layers"]) == 9 * LAYERS + 3
    quantized = [layer for layer in plan["layers"] if layer["scheme"]]
    assert len(quantized) == 7 * LAYERS
    assert {layer["scheme"] for layer in quantized} == {"w4a16-g128"}
    weights = sum(layer["shape"][0] * layer["shape"][1] for layer in quantized)
    shapes = 16 * len(quantized)  # two 64-bit numbers each
    assert sum(layer["bytes_after"] for layer in quantized) == weights // 2 + weights // 128 * 2 + shapes
    assert all(layer["note"] for layer in plan["layers"] if not layer["scheme"])


def test_the_forecasts_are_of_the_right_size(giant: Path) -> None:
    plan = json.loads(run("plan", str(giant), "--recipe", "rtn-w8a16", "--json").stdout)
    largest = 2 * VOCABULARY * HIDDEN
    assert largest < plan["peak_memory_forecast"] < 10 * largest
    assert 60 < plan["seconds_forecast"] < 6 * 3600


def test_a_static_cache_is_planned_block_by_block(giant: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("words")
    words = ["--recipe", "rtn-w4a16-g128-kv8", "--dataset", str(text), "--json"]
    plan = json.loads(run("plan", str(giant), *words).stdout)
    assert (plan["streams"], plan["by_blocks"]) == (False, True)
    assert plan["warnings"] == []
    block = 2 * (2 * HIDDEN**2 + 2 * KEYS * HIDDEN + 3 * INNER * HIDDEN)
    outside = 2 * 2 * VOCABULARY * HIDDEN
    assert outside + block < plan["peak_memory_forecast"] < 1e9 + outside + 3 * block


def test_a_plan_names_what_is_illegal_for_the_giant(giant: Path) -> None:
    result = run("plan", str(giant), "--recipe", "rtn-w4a16-g64-asym", "--format", "native", "--json")
    assert json.loads(result.stdout)["format"] == "native"
    assert run("plan", str(giant), "--recipe", "hqq-w4a16-g64", "--format", "compressed-tensors").exit_code == 1


def test_a_hollow_shard_cut_by_one_byte_is_noticed(giant: Path, tmp_path: Path) -> None:
    for path in giant.iterdir():
        os.link(path, tmp_path / path.name)
    shard = sorted(tmp_path.glob("*.safetensors"))[40]
    target = giant / shard.name
    shard.unlink()
    with target.open("rb") as file:
        head = file.read(4096)
    with shard.open("wb") as file:
        file.write(head)
        file.truncate(target.stat().st_size - 1)
    result = run("plan", str(tmp_path))
    assert result.exit_code == 1
    assert shard.name in result.stderr
