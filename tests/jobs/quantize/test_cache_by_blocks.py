"""The cache of a run over the blocks: what the journal remembers, and what stands in for what is not known yet."""

from __future__ import annotations

import json

import pytest
import torch

from goldstick.algorithms import KVCache
from goldstick.core.json_files import dump_json, parse_json
from goldstick.core.ranks import Ranks
from goldstick.errors import QuantizationError
from goldstick.hf.cache import quantized_cache_of
from goldstick.jobs.quantize.cache_by_blocks import BlockwiseCache
from tests.support.tiny_models import FAMILIES

#: Two key-value heads of 16 channels, of two sequences of five tokens.
SHAPE = (2, 2, 5, 16)


def see(cache: BlockwiseCache, layer: int, states: torch.Tensor) -> None:
    """Let one batch pass a block."""
    cache.pass_cache(0).update(states, -2 * states, layer)
    cache.settle()


def test_ranges_come_back_from_the_journal_to_the_bit() -> None:
    model, stage = FAMILIES["llama_gqa"](), KVCache()
    states = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)) * torch.logspace(-20, 20, 16)
    first = BlockwiseCache(stage, model, {}, 1, Ranks())
    see(first, 0, states)
    text = dump_json(first.state)
    assert json.loads(text).keys() == {"0"}
    resumed = BlockwiseCache(stage, model, parse_json(text, "the journal"), 1, Ranks())
    see(resumed, 1, states / 3)
    settings = resumed.finish()
    assert torch.equal(settings.scales[0].keys, states.abs().amax(dim=(0, 2)) / 127)
    assert torch.equal(settings.scales[1].values, ((states / 3).abs() * 2).amax(dim=(0, 2, 3))[:, None] / 127)
    assert quantized_cache_of(model) is settings


def test_the_proof_runs_on_the_scales_of_finished_blocks() -> None:
    """A coarse scale shows: the layer that was seen rounds to multiples of it, the other to whole numbers."""
    cache = BlockwiseCache(KVCache(keys="tensor", values="tensor"), FAMILIES["llama_gqa"](), {}, 1, Ranks())
    see(cache, 0, torch.full(SHAPE, 63.5))
    proof = cache.pass_cache(1)
    keys, values = proof.update(torch.full(SHAPE, 3.3), torch.full(SHAPE, 3.3), 0)
    assert (keys.unique().tolist(), values.unique().tolist()) == ([3.5], [3.0])
    keys, _ = proof.update(torch.full(SHAPE, 3.3), torch.full(SHAPE, 3.3), 1, Ranks())
    assert keys.unique().tolist() == [3.0]


def test_a_dynamic_cache_has_nothing_to_remember() -> None:
    cache = BlockwiseCache(KVCache(mode="dynamic"), FAMILIES["llama_gqa"](), {}, 1, Ranks())
    assert cache.pass_cache(0) is None
    cache.settle()
    assert cache.state == {}
    assert cache.finish().scales == {}


def test_a_block_that_overflows_is_named_before_the_next_one_is_begun() -> None:
    cache = BlockwiseCache(KVCache(), FAMILIES["llama_gqa"](), {}, 1, Ranks())
    see(cache, 0, torch.ones(SHAPE))
    with pytest.raises(QuantizationError, match=r"layer 1 cannot be quantized.*NaN or infinite"):
        see(cache, 1, torch.full(SHAPE, torch.inf))


def test_a_layer_that_was_never_seen_is_an_error_at_the_end() -> None:
    cache = BlockwiseCache(KVCache(), FAMILIES["llama_gqa"](), {}, 1, Ranks())
    see(cache, 0, torch.ones(SHAPE))
    with pytest.raises(QuantizationError, match="no scales for layer 1"):
        cache.finish()
