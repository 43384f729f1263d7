"""The native format: golden words, its table of layers, and configs it cannot read."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import StoredLayer
from goldstick.formats.native import NATIVE
from goldstick.formats.site_table import read_table, scheme_from_dict


def layer(site: str, name: str, kind: str = "linear") -> StoredLayer:
    return StoredLayer(
        name=f"{site}.weight",
        site=site,
        kind=kind,
        shape=torch.Size([8, 64]),
        scheme=Scheme.parse(name),
        fractional_zeros=True,
    )


LAYERS = [
    layer("a", "w4a16-g32-asym"),
    layer("b", "w8a8-dynamic"),
    layer("c", "w4a16-g32-asym", "convolution"),
    layer("d", "w2a16", "embedding"),
    layer("e", "w8a8-static"),
    layer("f", "w8a8-static-shifted"),
]


def test_nothing_is_refused() -> None:
    assert [NATIVE.refuses(one) for one in LAYERS] == [None] * 6


def test_the_config_gives_back_the_scheme_of_every_site_after_json() -> None:
    config = json.loads(json.dumps(NATIVE.config(LAYERS, ["lm_head"], {"head": "d"})))
    assert read_table(config).schemes == {one.site: one.scheme for one in LAYERS}
    assert config["ties"] == {"head": "d"}
    assert config["quant_method"] == "goldstick"
    assert len(config["schemes"]) == 5, "each scheme is written once"


def test_the_config_lists_whose_input_is_multiplied_and_only_then() -> None:
    layers = [dataclasses.replace(one, multiplied=one.site in "bf") for one in LAYERS]
    config = json.loads(json.dumps(NATIVE.config(layers, [], {})))
    assert read_table(config).multiplied == {"b", "f"}
    specs = [NATIVE.specs(one, torch.bfloat16).get(".input_multiplier") for one in layers]
    assert specs == [(torch.Size([64]), torch.bfloat16) if one.multiplied else None for one in layers]
    assert "multiplied" not in NATIVE.config(LAYERS, [], {})


def test_a_later_version_is_refused_and_named() -> None:
    config = NATIVE.config(LAYERS, [], {})
    with pytest.raises(FormatError, match=r"version 2 .*reads version 1"):
        read_table({**config, "version": 2})
    with pytest.raises(FormatError, match="says no 'version' of the native format"):
        read_table({key: value for key, value in config.items() if key != "version"})


def test_a_site_without_a_scheme_is_refused() -> None:
    config = NATIVE.config(LAYERS, [], {})
    with pytest.raises(FormatError, match="does not define: w9"):
        read_table({**config, "sites": {"a": "w9"}})


def test_a_scheme_is_read_from_its_dictionary() -> None:
    value = {"weight": {"bits": 8, "symmetric": True, "granularity": "channel", "group_size": None}, "activation": None}
    assert scheme_from_dict(value) == Scheme.parse("w8a16")


def test_golden_words() -> None:
    grid = Grid(bits=3, symmetric=False, granularity="group", group_size=6)
    tensor = QuantizedTensor(
        codes=torch.tensor([[7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 6]], dtype=torch.uint8),
        scale=torch.tensor([[0.5, 2.0]]),
        zero=torch.tensor([[3.5, 0.25]]),
        grid=grid,
    )
    parts = NATIVE.pack(tensor, Scheme(weight=grid))
    assert sorted(parts) == ["_packed", "_scale", "_zero_point"]
    assert parts["_packed"].tolist() == [[0x47D63447 - (1 << 32) if 0x47D63447 >> 31 else 0x47D63447, 0xC]]
    assert parts["_scale"].tolist() == [[0.5, 2.0]]
    assert parts["_zero_point"].tolist() == [[3.5, 0.25]]
    static = Scheme(weight=grid, activation=Grid(bits=8, symmetric=False, granularity="tensor"))
    parts = NATIVE.pack(tensor, static, torch.tensor(0.25), torch.tensor(-3, dtype=torch.int8))
    assert parts[".input_scale"].tolist() == [0.25]
    assert parts[".input_zero_point"].tolist() == [-3]
