"""Names, rows and numbers of tensors in GGUF files: the gguf package's, and what is done by hand elsewhere."""

from __future__ import annotations

from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

from goldstick.checkpoint.gguf.architectures import ARCHITECTURES, architecture_of_config, architecture_of_file
from goldstick.checkpoint.gguf.arrangement import Arrangement
from goldstick.checkpoint.gguf.names import origin_of, place_of
from goldstick.checkpoint.gguf.rows import grouped_heads, key_pairs, pairs, query_pairs
from goldstick.errors import FormatError
from tests.support.gguf_models import GGUF_MODELS


def record(cls: str) -> Any:
    return architecture_of_config({"architectures": [cls]})


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_every_tensor_of_a_model_has_a_place_and_comes_back(name: str) -> None:
    model: Any = GGUF_MODELS[name]().to("meta")
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    architecture = architecture_of_config(config)
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture.name)
    known = {gguf.TENSOR_NAMES[tensor].replace("{bid}.", "1.") for tensor in gguf.MODEL_TENSORS[number]} | {"cls"}
    from goldstick.hf.names import CheckpointNames

    stored = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
    names = list(CheckpointNames(model).to_checkpoint(stored))
    taken: dict[str, set[int | None]] = {}
    for tensor in names:
        place = place_of(tensor, architecture)
        for file_name in place.names:
            assert file_name.rpartition(".")[0].replace("blk.0.", "blk.1.") in known
            assert place.expert not in taken.setdefault(file_name, set()), "nothing else lies there"
            taken[file_name].add(place.expert)
            assert origin_of(file_name, architecture).name.format(place.expert) == tensor
    assert architecture_of_file(architecture.name, taken) is architecture


def test_a_tensor_that_the_architecture_lacks_has_no_name() -> None:
    expert = "model.layers.0.mlp.experts.0.w1.weight"
    with pytest.raises(FormatError, match=rf"'llama' .* no place for the tensor '{expert}'"):
        place_of(expert, record("LlamaForCausalLM"))
    with pytest.raises(FormatError, match=r"no place for the tensor 'model\.layers.0.self_attn.o_proj.bias'"):
        place_of("model.layers.0.self_attn.o_proj.bias", record("Qwen2ForCausalLM"))
    with pytest.raises(FormatError, match=r"no place for the tensor 'model\.layers\.00\.self_attn"):
        place_of("model.layers.00.self_attn.q_proj.weight", record("Qwen2ForCausalLM"))


def test_a_name_without_its_prefix_is_refused_with_the_way_to_get_it() -> None:
    with pytest.raises(FormatError, match=r"GPT2LMHeadModel saves it, it is called 'transformer\.h\.0\.ln_1\.weight'"):
        place_of("h.0.ln_1.weight", record("GPT2LMHeadModel"))


def test_records_of_one_name_are_told_apart_by_what_a_file_holds() -> None:
    assert architecture_of_file("llama", ["blk.0.ffn_gate_exps.weight"]).model_type == "mixtral"
    assert architecture_of_file("llama", ["blk.0.ffn_gate.weight"]).model_type == "llama"
    assert architecture_of_file("deepseek2", ["blk.1.exp_probs_b.bias"]).model_type == "deepseek_v3"
    assert architecture_of_file("deepseek2", []).model_type == "deepseek_v2"
    for architecture in ARCHITECTURES:
        alike = [other for other in ARCHITECTURES if other.name == architecture.name]
        assert sum(not other.marker for other in alike) == 1


def test_rows_of_a_head_are_stored_pair_by_pair() -> None:
    assert pairs(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert query_pairs(8, 2, 1).tolist() == pairs(8, 2).tolist()
    assert key_pairs(8, 2, 1).tolist() == pairs(8, 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    with pytest.raises(ValueError, match="do not divide into 2 heads"):
        pairs(6, 2)


def test_queries_of_groups_come_before_keys_and_values() -> None:
    # Two groups of two queries, a key and a value, each of one row: q q k v q q k v.
    assert grouped_heads(8, 4, 2).tolist() == [0, 1, 4, 5, 2, 6, 3, 7]
    assert grouped_heads(12, 4, 1).tolist() == list(range(12)), "one group is in that order already"
    with pytest.raises(ValueError, match="do not divide into 4 heads and 2 key-value heads"):
        grouped_heads(9, 4, 2)


ORDER = torch.tensor([2, 0, 3, 1])


@pytest.mark.parametrize(
    ("arrangement", "tensor", "expected"),
    [
        (Arrangement(order=ORDER), torch.arange(8.0).reshape(4, 2), [[[4, 5], [0, 1], [6, 7], [2, 3]]]),
        (Arrangement(order=ORDER, vector=True), torch.arange(4.0), [[2, 0, 3, 1]]),
        (Arrangement(shift=1.0, vector=True), torch.arange(2.0), [[1, 2]]),
        (Arrangement(transposed=True), torch.arange(4.0).reshape(2, 2), [[[0, 2], [1, 3]]]),
        (Arrangement(lone=True), torch.arange(2.0).reshape(1, 2), [[0, 1]]),
        (Arrangement(split="halves"), torch.arange(4.0).reshape(4, 1), [[[0], [1]], [[2], [3]]]),
        (Arrangement(split="in_turn"), torch.arange(4.0).reshape(4, 1), [[[0], [2]], [[1], [3]]]),
        (Arrangement(split="in_turn", vector=True), torch.arange(4.0).reshape(1, 4), [[[0, 2]], [[1, 3]]]),
        (
            Arrangement(split="in_turn", transposed=True),
            torch.arange(8.0).reshape(1, 2, 4),
            [[[[0, 4], [2, 6]]], [[[1, 5], [3, 7]]]],
        ),
    ],
)
def test_an_arrangement_is_what_it_says_and_comes_back(
    arrangement: Arrangement, tensor: Tensor, expected: list[Any]
) -> None:
    parts = arrangement.to_ggml(tensor)
    assert [part.tolist() for part in parts] == expected
    assert arrangement.to_transformers(parts).equal(tensor)


def test_packed_rows_are_neither_shifted_nor_transposed() -> None:
    blocks = torch.arange(12, dtype=torch.uint8).reshape(2, 6)
    arrangement = Arrangement(shift=1.0, transposed=True)
    assert arrangement.to_ggml(blocks)[0].equal(blocks)
    assert arrangement.to_transformers([blocks]).equal(blocks)
