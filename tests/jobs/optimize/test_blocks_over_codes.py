"""Blocks of one token in one call over quantized caches give the bits of their parts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import goldstick
from goldstick.kernels.cpu import _C
from goldstick.nn import kv_buffer
from goldstick.nn.fused.decode_block import FusedDecodeBlock
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.skipif(_C is None, reason="blocks run in C++")

IDS = torch.arange(24).reshape(2, 12)
CACHES: list[dict[str, Any]] = [
    {"mode": "dynamic"},
    {"mode": "static", "keys": "channel", "values": "head"},
    {"mode": "static", "keys": "tensor", "values": "channel", "sinks": 3},
    {"dtype": "fp8"},
    {"dtype": "fp8", "mode": "dynamic", "sinks": 2},
    {"dtype": "int4"},
    {"dtype": "int4", "rotate": True, "sinks": 3},
]
every_cache = pytest.mark.parametrize("cache", CACHES, ids=str)


def model_of(cache: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """A tiny model with a quantized cache, optimized."""
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}, {"kv_cache": cache}]}
    dynamic = cache.get("mode") == "dynamic" or cache.get("dtype") == "int4"
    model = FAMILIES["llama_gqa"]().to(dtype)
    model = goldstick.apply(model, recipe, data=None if dynamic else [IDS], inplace=True).model.eval()
    goldstick.optimize(model)
    return model


def by_parts(model: Any) -> Any:
    """A copy whose blocks run in Python, their parts in C++."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), FusedDecodeBlock):
            del module.__dict__["forward"]
    return model


@torch.no_grad()
def decoded(model: Any, ids: Tensor, prompt: int = 2) -> tuple[Tensor, Any]:
    """Logits of single tokens one after the other, and the cache that they leave."""
    output = model(input_ids=ids[:, :prompt])
    found, cache = [], output.past_key_values
    for token in ids[:, prompt:].split(1, dim=1):
        found.append(model(input_ids=token, past_key_values=cache).logits)
    return torch.cat(found, dim=1), cache


def runs_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of blocks of each call in C++."""
    made: list[int] = []
    honest = _C.run_blocks
    monkeypatch.setattr(_C, "run_blocks", lambda blocks, *args: (made.append(len(blocks)), honest(blocks, *args))[1])
    return made


def parts_of(cache: Any) -> list[Tensor]:
    """All that a quantized cache holds."""
    states = [one for layer in cache.layers for one in (layer.key_states, layer.value_states)]
    names = ("first", "codes", "recent", "scales")
    return [part for one in states for name in names if (part := getattr(one, name)) is not None]


@every_cache
@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 1), (torch.bfloat16, 2), (torch.float16, 2)])
def test_it_gives_and_stores_the_bits_of_its_parts(
    cache: dict[str, Any], dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_buffer, "_LEAST_ROOM", 2)
    model = model_of(cache, dtype)
    made = runs_of(monkeypatch)
    found, left = decoded(model, IDS[:rows])
    floats = max(cache.get("sinks", 0) - 2, 0)  # tokens that are not rounded, which no block takes
    assert made == [2] * (10 - floats)
    expected, kept = decoded(by_parts(model), IDS[:rows])
    assert torch.equal(found, expected)
    for one, other in zip(parts_of(left), parts_of(kept), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("window", [1, 4])
def test_a_window_of_floats_is_left_to_the_parts(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of({"mode": "dynamic", "window": window})
    made = runs_of(monkeypatch)
    found, _ = decoded(model, IDS)
    assert not made and torch.equal(found, decoded(by_parts(model), IDS)[0])


@every_cache
def test_a_token_that_is_no_number_leaves_none(cache: dict[str, Any]) -> None:
    model = model_of(cache)
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = float("nan")
    found, expected = (decoded(one, IDS[:1])[0] for one in (model, by_parts(model)))
    assert torch.equal(found.isnan(), expected.isnan()) and bool(found[0, 3:].isnan().any())


@pytest.mark.parametrize("cache", [CACHES[0], CACHES[1], CACHES[3], CACHES[6]], ids=str)
def test_a_cache_that_was_cropped_or_copied_goes_on_by_itself(cache: dict[str, Any]) -> None:
    model = model_of(cache)
    _, kept = decoded(model, IDS[:1])
    copied = copy.deepcopy(kept)
    with torch.no_grad():
        one = model(input_ids=IDS[:1, 1:2], past_key_values=kept).logits
        model(input_ids=IDS[:1, 5:6], past_key_values=kept)
        kept.crop(-2)
        again = model(input_ids=IDS[:1, 1:2], past_key_values=kept).logits
        other = model(input_ids=IDS[:1, 1:2], past_key_values=copied).logits
    assert torch.equal(one, again) and torch.equal(one, other)
    assert kept.get_seq_length() == copied.get_seq_length() == 13
