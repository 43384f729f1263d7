"""Ranges of keys and values from single blocks, against those of the cache of a whole forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import goldstick
from goldstick.calibration.arguments import BlockCall, block_calls
from goldstick.calibration.kv_ranges import KVRecorder, recording
from goldstick.errors import StructureError
from goldstick.hf.cache import quantized_cache_of
from goldstick.structure.network import Network
from tests.support.tiny_models import FAMILIES, sample_inputs

DECODERS = sorted(set(FAMILIES) - {"bert", "vit", "resnet"})


def decoder_blocks(network: Network) -> list[str]:
    return [block for block in network.blocks if not block.startswith("encoder")]


def cached_states(model: Any, inputs: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What transformers' own cache holds after a forward of the whole model: the independent account."""
    with torch.no_grad():
        cache = model(**inputs).past_key_values
    cache = getattr(cache, "self_attention_cache", cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


@pytest.mark.parametrize("family", DECODERS)
def test_blocks_one_by_one_reach_the_ranges_of_the_whole_model(family: str) -> None:
    model = FAMILIES[family]()
    batches = [sample_inputs(model), {name: ids.flip(0) for name, ids in sample_inputs(model, tokens=16).items()}]
    blocks = decoder_blocks(Network(model))
    recorder = KVRecorder()
    with torch.no_grad():
        for batch in batches:
            hidden, calls = block_calls(model, blocks, batch)
            for block in blocks:
                hidden = recording(calls[block], recorder).run(model.get_submodule(block), hidden)
    whole = [cached_states(model, batch) for batch in batches]
    assert sorted(recorder.ranges) == list(range(len(whole[0])))
    for layer, seen in recorder.ranges.items():
        for name, place in (("keys", 0), ("values", 1)):
            expected = torch.stack([states[layer][place].abs().amax(dim=(0, 2)) for states in whole]).amax(0)
            # Equal to the bit but for T5, whose encoder output has another layout in memory here.
            torch.testing.assert_close(getattr(seen, name), expected, rtol=0, atol=1e-5 if family == "t5" else 0)


def test_a_recorded_block_gives_what_it_gives_without_a_cache() -> None:
    model = FAMILIES["llama_gqa"]()
    blocks = decoder_blocks(Network(model))
    with torch.no_grad():
        hidden, calls = block_calls(model, blocks, sample_inputs(model))
        block = model.get_submodule(blocks[0])
        assert torch.equal(
            recording(calls[blocks[0]], KVRecorder()).run(block, hidden), calls[blocks[0]].run(block, hidden)
        )


def test_cross_attention_is_no_part_of_a_layer_s_range() -> None:
    """Both attentions of a T5 block update the cache under one layer number."""
    recorder = KVRecorder()
    cache = recorder.pass_cache()
    own, encoder = torch.ones(1, 2, 3, 4), torch.full((1, 2, 9, 4), 5.0)
    cache.update(own, own, 0)
    assert cache.update(encoder, encoder, 0)[0] is encoder
    assert float(recorder.ranges[0].keys.max()) == 1.0


def with_encoder(kind: str) -> tuple[Any, dict[str, Tensor]]:
    """A decoder that its config does not call one of an encoder-decoder, behind an encoder; and inputs."""
    torch.manual_seed(0)
    vision = transformers.ViTConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    sizes: dict[str, Any] = {"vocab_size": 64, "add_cross_attention": True, "is_decoder": True}
    if kind == "gpt2":
        text = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, **sizes)
    else:
        shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        text = transformers.BertConfig(**shape, **sizes)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = transformers.VisionEncoderDecoderModel(config).eval()
    ids = torch.randint(2, 64, (2, 6), generator=torch.Generator().manual_seed(1))
    return model, {"pixel_values": torch.randn(2, 3, 16, 16), "decoder_input_ids": ids}


KV8: dict[str, Any] = {"stages": [{"kv_cache": {}}]}


def scales_of(model: Any) -> dict[int, tuple[Tensor, Tensor]]:
    settings = quantized_cache_of(model)
    assert settings is not None
    return {layer: (scales.keys, scales.values) for layer, scales in settings.scales.items()}


def assert_scales_are_those_of_the_whole_model(model: Any, inputs: dict[str, Tensor]) -> None:
    made = goldstick.apply(model, KV8, data=[inputs]).model
    whole = [(keys.abs(), values.abs()) for keys, values in cached_states(model, inputs)]
    expected = {
        layer: (keys.amax((0, 2)) / 127, values.amax((0, 2, 3)) / 127) for layer, (keys, values) in enumerate(whole)
    }
    found = scales_of(made)
    assert found.keys() == expected.keys()
    for layer, (keys, values) in expected.items():
        torch.testing.assert_close(found[layer][0].reshape(keys.shape), keys)
        torch.testing.assert_close(found[layer][1].reshape(values.shape), values)
    with torch.no_grad():
        found_logits, logits = made(**inputs).logits, model(**inputs).logits
    assert (found_logits - logits).norm() < 0.02 * logits.norm()


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_attention_that_looks_for_two_caches_finds_them(kind: str) -> None:
    assert_scales_are_those_of_the_whole_model(*with_encoder(kind))


def test_blocks_that_do_not_feed_one_another_are_seen_in_the_whole_model() -> None:
    model = FAMILIES["llama_gqa"]()
    model.model.layers[0].register_forward_hook(doubled)
    assert_scales_are_those_of_the_whole_model(model, sample_inputs(model))


def doubled(_: object, __: object, output: Any) -> Any:
    return output * 2


def test_a_model_that_gives_no_block_a_cache_is_told_so() -> None:
    model = FAMILIES["llama_gqa"]()
    with pytest.raises(StructureError, match="No block of this LlamaForCausalLM was called with a cache"):
        goldstick.apply(model, KV8, data=[{**sample_inputs(model), "use_cache": False}])


def test_a_pass_that_is_run_again_replaces_what_it_noted_before() -> None:
    recorder = KVRecorder()
    for number, size in ((0, 9.0), (1, 2.0), (0, 1.0)):
        recorder.pass_cache(number).update(torch.full((1, 1, 2, 1), size), torch.full((1, 1, 2, 1), -size), 0)
    assert float(recorder.ranges[0].keys) == float(recorder.ranges[0].values) == 2.0
    recorder.settle()
    recorder.pass_cache(1).update(torch.ones(1, 1, 2, 1), torch.ones(1, 1, 2, 1), 0)
    assert float(recorder.ranges[0].keys) == 2.0, "what has settled stays"


def test_ranges_are_the_same_bits_in_any_order() -> None:
    pieces = torch.randn(6, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    forward, backward = KVRecorder(), KVRecorder()
    for piece in pieces:
        forward.observe(piece[None], -piece[None], 0)
    for piece in pieces.flip(0):
        backward.observe(piece[None], -piece[None], 0)
    assert torch.equal(forward.ranges[0].keys, backward.ranges[0].keys)
    assert torch.equal(forward.ranges[0].values, pieces.abs().amax(dim=(0, 2)))


def test_a_block_that_gets_no_cache_cannot_be_recorded() -> None:
    model = FAMILIES["t5"]()
    blocks = [block for block in Network(model).blocks if block.startswith("encoder")]
    with torch.no_grad():
        _, calls = block_calls(model, blocks, sample_inputs(model))
    with pytest.raises(StructureError, match="without a cache"):
        recording(calls[blocks[0]], KVRecorder())


def test_a_cache_among_positional_arguments_is_replaced_there() -> None:
    call = BlockCall(args=("mask", None, "positions"), kwargs={}, by_keyword=False, cache=1)
    args = recording(call, KVRecorder()).args
    assert (args[0], type(args[1]).__name__, args[2]) == ("mask", "RecordingCache", "positions")
