"""Kept caches: the longest that fits is found, cut to whole pieces, never written into, and few enough to fit."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from goldstick.core.kv_cache import KVScheme, KVSettings
from goldstick.hf.cache import QuantizedLayer
from goldstick.jobs.serve.decoder import PIECE
from goldstick.jobs.serve.prefixes import KeptPrefixes

ROOM = 2**30


def cache_of(tokens: int, *layers: Any) -> DynamicCache:
    """A cache whose token t holds the number t."""
    cache = DynamicCache()
    cache.layers = list(layers or (DynamicLayer(),))
    states = torch.arange(tokens).float().reshape(1, 1, tokens, 1).expand(1, 2, tokens, 4)
    for layer in cache.layers:
        layer.update(states, states)
    return cache


def held(cache: DynamicCache) -> list[int]:
    return [round(value) for value in cache.layers[0].keys[0, 0, :, 0].tolist()]


def test_the_longest_beginning_is_found_in_whole_pieces_and_without_the_last_token() -> None:
    kept = KeptPrefixes(ROOM)
    ids = list(range(4 * PIECE))
    kept.keep(ids, cache_of(4 * PIECE))
    for same, asked, expected in (
        (4 * PIECE, 5 * PIECE, 4),
        (3 * PIECE + 5, 5 * PIECE, 3),
        (2 * PIECE, 2 * PIECE, 1),  # all of it: the last token must be read
        (2 * PIECE + 1, 2 * PIECE + 1, 2),
        (PIECE - 1, 100, 0),
        (0, 100, 0),
    ):
        count, cache = kept.find([*ids[:same], *[9999] * (asked - same)])
        assert count == expected * PIECE
        assert cache is None if not count else held(cache) == list(range(count))


def test_what_goes_on_from_a_kept_cache_leaves_it_as_it_was() -> None:
    for layer in (
        DynamicLayer(),
        QuantizedLayer(KVSettings(scheme=KVScheme(mode="dynamic", keys="head"), scales={}), 0),
    ):
        kept = KeptPrefixes(ROOM)
        ids = list(range(2 * PIECE))
        kept.keep(ids, cache_of(2 * PIECE, layer))
        for asked in (ids[:PIECE], ids):
            _, cache = kept.find([*asked, 7])
            for _ in range(3):
                cache.layers[0].update(torch.full((1, 2, 1, 4), 500.0), torch.full((1, 2, 1, 4), 500.0))
            assert held(cache)[-4:] == [len(asked) - 1, 500, 500, 500]
        assert held(kept.find([*ids, 7])[1]) == list(range(2 * PIECE))


def test_a_window_that_is_full_is_taken_whole_or_not_at_all() -> None:
    kept = KeptPrefixes(ROOM)
    ids = list(range(2 * PIECE))
    kept.keep(ids, cache_of(2 * PIECE, DynamicSlidingWindowLayer(PIECE)))
    assert kept.find(ids)[0] == 0
    count, cache = kept.find([*ids, 7])
    assert count == 2 * PIECE and cache.layers[0].get_seq_length() == 2 * PIECE
    kept.keep(ids, cache_of(2 * PIECE, DynamicSlidingWindowLayer(4 * PIECE)))
    count, cache = kept.find(ids)
    assert count == PIECE and cache.layers[0].get_seq_length() == PIECE and held(cache) == list(range(PIECE))


def test_floats_that_became_codes_are_not_cut() -> None:
    settings = KVSettings(scheme=KVScheme(mode="dynamic", keys="head", window=8), scales={})
    kept = KeptPrefixes(ROOM)
    ids = list(range(2 * PIECE))
    kept.keep(ids, cache_of(2 * PIECE, QuantizedLayer(settings, 0)))
    assert kept.find(ids)[0] == 0
    assert kept.find([*ids, 7])[0] == 2 * PIECE


def test_no_more_bytes_are_kept_than_may_be_and_the_oldest_go() -> None:
    one = 2 * 2 * PIECE * 4 * 4
    kept = KeptPrefixes(2 * one)
    prompts = [[number] * PIECE for number in range(3)]
    for prompt in prompts[:2]:
        kept.keep(prompt, cache_of(PIECE))
    assert (len(kept), kept.nbytes) == (2, 2 * one)
    kept.find([*prompts[0], 7])  # used last
    kept.keep(prompts[2], cache_of(PIECE))
    assert [kept.find([*prompt, 7])[0] for prompt in prompts] == [PIECE, 0, PIECE]
    kept.keep([5] * 3 * PIECE, cache_of(3 * PIECE))
    assert len(kept) == 2, "one that is too large costs no other"
    kept.keep([*prompts[0], *[8] * PIECE], cache_of(2 * PIECE))
    assert len(kept) == 1, "a longer one stands for that which it continues"
    nothing = KeptPrefixes(0)
    nothing.keep(prompts[0], cache_of(PIECE))
    assert len(nothing) == 0
