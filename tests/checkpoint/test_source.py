"""Looking at a checkpoint directory: what is carried on, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from goldstick.checkpoint.safetensors_file import read_header
from goldstick.checkpoint.source import INDEX_NAME, open_tensors, read_config, read_json
from goldstick.errors import FormatError, SourceError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "one.safetensors")
    save_file({"c": torch.ones(4)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def test_links_of_the_hubs_cache_are_followed_and_others_are_not(source: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "cache" / "snapshots" / "abc", tmp_path / "cache" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("one.safetensors", "two.safetensors", "config.json", INDEX_NAME):
        (source / name).rename(blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert list(open_tensors(snapshot)) == ["a", "b", "c"]
    (tmp_path / "other").mkdir()
    for name in ("one.safetensors", "two.safetensors", INDEX_NAME):
        (tmp_path / "other" / name).symlink_to(blobs / name)
    with pytest.raises(SourceError, match="is a link out of its directory"):
        open_tensors(tmp_path / "other")


def test_a_long_header_is_read_beside_many_bytes_only(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "U8", "shape": [50_000_000], "data_offsets": [0, 50_000_000]}}).encode()
    for name, padding in (("short", 2_000_000), ("long", 4_000_000)):
        text = header + b" " * padding
        with (tmp_path / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + 50_000_000)
    assert list(read_header(tmp_path / "short")) == ["x"]
    with pytest.raises(FormatError, match="its header has 4,000"):
        read_header(tmp_path / "long")


def write_index(directory: Path, weight_map: object) -> None:
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "name",
    [
        "../one.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        "one.bin",
        "one.safetensors\n",
        "öne.safetensors",
        "",
    ],
)
def test_a_shard_name_that_is_no_plain_name_is_refused(source: Path, name: str) -> None:
    write_index(source, {"a": name})
    with pytest.raises(SourceError, match="is refused"):
        open_tensors(source)


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}, {"a": None}, "one.safetensors"])
def test_an_index_without_a_table_of_names_is_refused(source: Path, weight_map: object) -> None:
    write_index(source, weight_map)
    with pytest.raises(SourceError, match="weight_map"):
        open_tensors(source)


def test_a_single_file_is_believed_over_an_index_beside_it_as_transformers_does(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    first, second = LlamaForCausalLM(config), LlamaForCausalLM(config)
    first.save_pretrained(tmp_path, max_shard_size="4KB")
    shards = {path.name: path.read_bytes() for path in tmp_path.glob("model-*")}
    second.save_pretrained(tmp_path)  # removes the shards, and leaves their index
    assert len(shards) > 1
    assert (tmp_path / INDEX_NAME).is_file()
    for left in ({}, shards):
        for name, content in left.items():
            (tmp_path / name).write_bytes(content)
        read = {name: info.read() for name, info in open_tensors(tmp_path).items()}
        loaded = LlamaForCausalLM.from_pretrained(tmp_path).state_dict()
        assert read.keys() == loaded.keys()
        assert all(torch.equal(read[name], value) for name, value in loaded.items())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read as JSON"),
        ("[1]", "no JSON object"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ('{"a": {"b": 1, "b": 2}}', "'b' occurs twice"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_json_that_cannot_be_trusted_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SourceError, match=says):
        read_json(tmp_path / "x.json", "missing")


def test_json_that_is_no_utf8_or_implausibly_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"a": "\xff\xfe"}')
    with pytest.raises(SourceError, match="cannot be read as JSON"):
        read_json(tmp_path / "x.json", "missing")
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(SourceError, match="implausibly large"):
        read_json(tmp_path / "x.json", "missing")


def test_folders_that_hold_no_model_but_lead_to_one_say_so(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "snapshots" / "abc" / "config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"it has no config.json\. .*: give .*/snapshots/abc\.$"):
        read_config(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"only an adapter\. .* merge_and_unload gives\.$"):
        read_config(tmp_path)
