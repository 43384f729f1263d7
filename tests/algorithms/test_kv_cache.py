"""The KV-cache stage: its options, and scales against a loop over single numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from goldstick.algorithms.base import DataRequirement
from goldstick.algorithms.kv_cache import KVCache
from goldstick.core.kv_cache import KVRanges
from goldstick.errors import QuantizationError, RecipeError


def ranges() -> dict[int, KVRanges]:
    generator = torch.Generator().manual_seed(0)
    return {
        layer: KVRanges(keys=torch.rand(2, 6, generator=generator), values=torch.rand(2, 3, generator=generator))
        for layer in (3, 0)
    }


@pytest.mark.parametrize("granularity", ["channel", "head", "tensor"])
def test_scales_are_the_largest_of_what_shares_one_by_127(granularity: str) -> None:
    seen = ranges()
    solved = KVCache(keys=granularity, values=granularity).solve(seen)  # type: ignore[arg-type]
    assert list(solved.scales) == [0, 3]
    for layer, found in solved.scales.items():
        for largest, scale in ((seen[layer].keys, found.keys), (seen[layer].values, found.values)):
            for head in range(largest.shape[0]):
                for channel in range(largest.shape[1]):
                    sharing = {
                        "channel": [largest[head, channel]],
                        "head": list(largest[head]),
                        "tensor": list(largest.flatten()),
                    }[granularity]
                    place = scale.expand(largest.shape)[head, channel]
                    assert float(place) == float(torch.stack(sharing).max() / 127)


def test_a_dynamic_stage_needs_no_data_and_a_static_one_does() -> None:
    assert KVCache().data_requirement is DataRequirement.BLOCKWISE
    assert KVCache(mode="dynamic").data_requirement is DataRequirement.NONE
    assert not KVCache(mode="dynamic").solve({}).scales
    with pytest.raises(QuantizationError, match="calibration data"):
        KVCache().solve({})


def test_a_range_that_is_not_finite_names_its_layer() -> None:
    seen = ranges()
    seen[3].values[0, 0] = torch.nan
    with pytest.raises(QuantizationError, match="layer 3"):
        KVCache().solve(seen)


def test_defaults_are_channels_for_keys_and_heads_for_values() -> None:
    assert KVCache().scheme.label == "kv8-channel-head"
    assert KVCache(mode="dynamic", window=16, sinks=4).scheme.label == "kv8-dynamic-window16-sinks4"


def test_options_are_closed_frozen_and_survive_json() -> None:
    adapter = TypeAdapter(KVCache)
    made = KVCache(keys="tensor", values="tensor", window=8)
    assert adapter.validate_json(adapter.dump_json(made)) == made
    with pytest.raises(ValidationError, match="bits"):
        adapter.validate_python({"bits": 4})
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.window = 0  # type: ignore[misc]
    with pytest.raises(RecipeError, match="each token and head"):
        KVCache(mode="dynamic", keys="channel")
