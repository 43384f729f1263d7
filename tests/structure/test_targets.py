"""Targets: which names a pattern means, and which it never does by accident."""

from __future__ import annotations

import itertools

import pytest
from torch import nn
from transformers import PreTrainedModel

from goldstick.algorithms.rtn import RTN
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.structure.network import Network
from goldstick.structure.targets import Targets, exactly, matches
from tests.support.time_limit import within
from tests.support.tiny_models import FAMILIES


@pytest.fixture(scope="module")
def llama() -> Network:
    return Network(FAMILIES["llama_gqa"]().to("meta"))


def names(network: Network, **fields: tuple[str, ...]) -> set[str]:
    return {site.name for site in Targets(**fields).select(network)}


def test_without_patterns_every_inner_layer_is_meant(llama: Network) -> None:
    layers = names(llama)
    assert layers == {site.name for site in llama.sites} - {"model.embed_tokens", "lm_head"}
    assert len(layers) == 2 * 7


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("lm_head", "lm_head", True),
        ("down_proj", "model.layers.0.mlp.down_proj", True),
        ("mlp.down_proj", "model.layers.0.mlp.down_proj", True),
        ("own_proj", "model.layers.0.mlp.down_proj", False),
        ("mlp", "model.layers.0.mlp.down_proj", False),
        ("*down_proj", "model.layers.0.mlp.down_proj", True),
        ("model.layers.0.*", "model.layers.0.mlp.down_proj", True),
        ("model.layers.0.*", "model.layers.10.mlp.down_proj", False),
        ("model.layers.?.mlp.*", "model.layers.1.mlp.up_proj", True),
        ("model.layers.[01].*", "model.layers.2.mlp.up_proj", False),
        ("*DOWN_PROJ", "model.layers.0.mlp.down_proj", False),
    ],
)
def test_a_pattern_is_a_whole_name_a_tail_of_it_or_wildcards(pattern: str, name: str, hit: bool) -> None:
    assert matches(pattern, name) is hit


def test_exclude_takes_out_of_what_include_takes_in(llama: Network) -> None:
    found = names(llama, include=("*.mlp.*",), exclude=("model.layers.1.*",))
    assert found == {f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")}


@pytest.mark.parametrize("pattern", ["*", "**", "*.*", "?*", "model.*", "model.*.*"])
def test_a_catch_all_does_not_reach_embeddings_or_the_head(llama: Network, pattern: str) -> None:
    found = names(llama, include=("*down_proj", pattern))
    assert not found & {"model.embed_tokens", "lm_head"}
    assert "model.layers.0.mlp.down_proj" in found


@pytest.mark.parametrize("pattern", ["[a" * 100_000, "*a" * 100_000, "a" * 1001])
def test_a_pattern_longer_than_any_name_is_refused_at_once(llama: Network, pattern: str) -> None:
    with within(seconds=2), pytest.raises(RecipeError, match="longer than 1,000 characters"):
        names(llama, include=(pattern,))


@pytest.mark.parametrize("pattern", ["lm_head", "lm_*", "*head"])
def test_the_head_is_reached_by_a_pattern_that_names_it(llama: Network, pattern: str) -> None:
    assert names(llama, include=(pattern,)) == {"lm_head"}


@pytest.mark.parametrize("pattern", ["embed_tokens", "model.embed_tokens", "*embed*"])
def test_the_embedding_is_reached_by_a_pattern_that_names_it(llama: Network, pattern: str) -> None:
    assert names(llama, include=(pattern,)) == {"model.embed_tokens"}


@pytest.mark.parametrize("side", ["include", "exclude"])
@pytest.mark.parametrize(
    ("pattern", "nearest"), [("*.down_prj", "down_proj"), ("lm_haed", "lm_head"), ("self_attn.q_prj", "q_proj")]
)
def test_a_pattern_that_means_nothing_names_the_nearest_layer(
    llama: Network, side: str, pattern: str, nearest: str
) -> None:
    with pytest.raises(RecipeError, match="would do nothing") as caught:
        names(llama, **{side: (pattern,)})
    assert repr(pattern) in str(caught.value)
    assert f"Near it: {nearest}" in str(caught.value) or nearest in str(caught.value).split("Near it:")[1]


def test_a_pattern_near_to_nothing_shows_what_names_look_like(llama: Network) -> None:
    with pytest.raises(RecipeError, match=r"Names look like 'model\.embed_tokens'"):
        names(llama, include=("zzzzzz",))


def test_the_pattern_that_excludes_a_layer_is_told(llama: Network) -> None:
    targets = Targets(exclude=("*up_proj", "*down_proj"))
    assert targets.excludes(llama.by_name["model.layers.0.mlp.down_proj"]) == "*down_proj"
    assert targets.excludes(llama.by_name["model.layers.0.mlp.gate_proj"]) is None


def test_fused_experts_go_by_the_name_of_their_parameter() -> None:
    model: PreTrainedModel = FAMILIES["mixtral"]().to("meta")
    found = names(Network(model), include=("experts.down_proj",))
    assert found == {f"model.layers.{index}.mlp.experts.down_proj" for index in range(2)}


@pytest.mark.parametrize("order", [("encoder.proj", "proj", "other"), ("other", "proj", "encoder.proj")])
@pytest.mark.parametrize("schemes", list(itertools.product(["w8a16", "w4a16-channel", "w3a16-channel"], repeat=2)))
def test_what_is_chosen_for_a_layer_is_not_what_another_that_ends_like_it_gets(
    order: tuple[str, ...], schemes: tuple[str, str]
) -> None:
    model = nn.ModuleDict({"proj": nn.Linear(8, 8), "encoder": nn.ModuleDict({"proj": nn.Linear(8, 8)})})
    model["other"] = nn.Linear(8, 8)
    wanted = {"proj": schemes[0], "encoder.proj": schemes[1], "other": "w8a16"}
    network = Network(model)
    stage = RTN(scheme="w8a16", overrides=exactly({name: wanted[name] for name in order}, "w8a16"))
    assert {site.name: stage.scheme_for(site) for site in stage.sites(network)} == {
        name: Scheme.parse(scheme) for name, scheme in wanted.items()
    }
