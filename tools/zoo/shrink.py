"""Smaller configs, by what their settings are called: no table of families."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tools.zoo.proportions import as_many_keys, proportions, sections, state_heads


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What settings become; those that are ``None`` stay as they are."""

    label: str
    cache: bool = True
    width: int | None = 64
    heads: int | None = 4
    key_value_heads: int | None = 2
    layers: int | None = 2
    vocabulary: int | None = 256
    image: int | None = 64
    channels: bool = True
    window: int | None = None


#: From the smallest on. Narrow models first; where a family's widths depend on each other, only fewer layers.
VARIANTS = (
    Sizes(label="narrow"),
    Sizes(label="narrow, one head of keys for each", key_value_heads=4),
    Sizes(label="narrow, larger images", key_value_heads=4, image=224),
    Sizes(label="narrow, four layers", key_value_heads=4, layers=4),
    Sizes(label="narrow, channels as they are", key_value_heads=4, channels=False),
    Sizes(label="wider", width=128, key_value_heads=4),
    Sizes(label="heads of 64", width=256, key_value_heads=4),
    Sizes(label="wide heads", width=512, key_value_heads=4),
    Sizes(label="narrow, images as they are", key_value_heads=4, image=None),
    Sizes(label="narrow, heads as they are", heads=None, key_value_heads=None),
    Sizes(label="narrow, words and images as they are", vocabulary=None, image=None),
    Sizes(label="narrow, without a cache", key_value_heads=4, cache=False),
    Sizes(label="heads of 64, channels as they are", width=256, key_value_heads=4, channels=False),
    Sizes(label="narrow, what is open said", key_value_heads=4, window=16),
    Sizes(label="shallow", width=None, heads=None, key_value_heads=None, image=None),
    Sizes(
        label="shallow, words as they are", width=None, heads=None, key_value_heads=None, vocabulary=None, image=None
    ),
    Sizes(label="as it is", width=None, heads=None, key_value_heads=None, layers=None, vocabulary=None, image=None),
)

_LAYERS = re.compile(r"(^|_)(n_?layers?|num_\w*layers|\w*_layers|num_\w*blocks|depths?|layers)$|^num_hidden_layers$")
_NO_LAYERS = re.compile(
    r"feat_extract|feature_(levels|layers)|source_layers|_every_|out_features|skip|shared|freq|first|interval|mask|dense_replace|conv_pos|adapter"
)
_SOURCES = re.compile(r"source_layers$")
_KEY_VALUE = re.compile(r"(key_value|kv)_heads|multi_query_group_num|n_head_kv")
_HEADS = re.compile(r"(^|_)(n_heads?|heads?|num_heads|num_\w*heads|\w*_attention_heads|attention_heads)$")
_HEAD_WIDTH = re.compile(r"(head_dim|d_head|head_size|d_kv|head_width|kv_channels|attention_head_dim)$")
_WIDTH = re.compile(
    r"(^|_)(hidden_sizes?|hidden_size_\w+|hidden_dims?|d_model|n_embd|n_embed|embed_dims?|emb_dim|model_dim|embedding_size|embedding_dim"
    r"|intermediate_size\w*|intermediate_dim|ffn_dim|d_ff|n_inner|ffn_hidden_size|mlp_dim|dim_feedforward|feedforward_dim"
    r"|projection_dim|proj_dim|word_embed_proj_dim|lru_width|d_inner|ffn_size|inner_dim|mamba_d_ssm|d_ssm|conv_dim|tdnn_dim"
    r"|classifier_proj_size|fusion_hidden_size|neck_hidden_sizes|embed_size|hidden_channels|ffn_hidden_dim"
    r"|mask_feature_size|bottleneck_features|feature_size|decoder_hidden_dim|d_embed|bottleneck_size)$"
)
_LAYER_NUMBERS = re.compile(r"layer_(indices|ids|idx)$|layer_indexes$|_at_layers$")
_STAGE_WIDTHS = ("channels", "channel_list", "embed_dim_per_stage")
_RANK = re.compile(r"(lora_rank|_lora_dim|low_rank_dim|rank_dim|kv_lora_rank|q_lora_rank)$")
_EXPERTS = re.compile(r"(^|_)(num_\w*experts|n_routed_experts|n_experts|moe_num_experts|num_local_experts)$")
_EXPERTS_USED = re.compile(r"experts_per_tok|moe_top_?k|moe_k$|experts_topk|num_selected_experts|num_experts_per_token")
_GROUPS_OF_EXPERTS = re.compile(r"^(n_group|topk_group|num_expert_group|moe_n_group)$")
_POSITIONS = re.compile(
    r"max_position_embeddings$|^n_positions$|^n_ctx$|max_sequence_length$|^seq_length$|max_target_positions$"
)
_VOCABULARY = re.compile(r"vocab_size\w*$|^vocabulary_size$|_vocab$")
_TOKEN = re.compile(r"_token_(id|index)$|_token_ids?$|_(id|index)$")
_PLACES = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
_FACTOR = re.compile(r"(width|depth)_(coefficient|multiplier)$|^scale$")
_LATENT = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "qk_head_dim": 32, "rotary_dim": 16}


def shrunk(config: Any, sizes: Sizes) -> Any:
    """A config of the same class, made anew with smaller settings."""
    return type(config)(**settings(config, sizes))


def settings(config: Any, sizes: Sizes) -> dict[str, Any]:
    """What a config is to be made with: what changes, the nested ones made small already."""
    own = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    found: dict[str, Any] = {}
    if sizes.width is not None and any(isinstance(own.get(name), (list, tuple)) for name in ("depths", "num_heads")):
        sizes = replace(sizes, width=sizes.width // 2)  # it is doubled from stage to stage
    for name, value in own.items():
        if getattr(value, "model_type", "") == "timm_backbone":
            found[name] = _backbone(value)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found[name] = type(value)(**(_unlike_fresh(value) | settings(value, sizes)))
        elif value is None and _EXPERTS_USED.search(name):
            found[name] = 2
        elif value is None and name == "head_dim" and sizes.width is not None and sizes.heads is not None:
            found[name] = sizes.width // sizes.heads
        elif value is None and _EXPERTS.search(name):
            found[name] = 4
        elif value is None and name == "sliding_window" and sizes.window is not None:
            found[name] = sizes.window
        elif value is None and name == "default_language" and own.get("languages"):
            found[name] = next(iter(own["languages"]))
        elif value is None and name in _PLACES and sizes.vocabulary is not None:
            found[name] = sizes.vocabulary // 2
        elif value is None and _LAYER_NUMBERS.search(name) and sizes.layers is not None:
            found[name] = [sizes.layers - 1]
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, float) and sizes.width is not None and _FACTOR.search(name):
            found[name] = min(value, 0.25)
        elif isinstance(value, int):
            new = _number(name, value, sizes)
            if new != value:
                found[name] = new
        elif isinstance(value, dict) and "rope" in name and sizes.width is not None and sizes.heads is not None:
            turned = value.get("partial_rotary_factor", own.get("partial_rotary_factor")) or 1
            half = int(sizes.width // sizes.heads * turned) // 2
            found[name] = sections(value, half)
            named = getattr(type(config), "ignore_keys_at_rope_validation", None) or ()
            if sizes.window is not None and "mrope_section" in named and "mrope_section" not in value:
                found[name] = {**found[name], "mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
        elif isinstance(value, (list, tuple)) and value and all(type(one) is int for one in value):
            new_list = _list(name, list(value), sizes, own)
            if new_list != list(value):
                found[name] = type(value)(new_list)
    if getattr(config, "_out_features", None):  # a backbone says them by a property
        found["out_features"] = _stages(list(config._out_features), own, sizes)
    found |= as_many_keys(own, found) | state_heads(own, found) | proportions(own, found)
    for name in ("hidden_dim", "projection_dim"):  # of the last of the layers that the factor makes wider
        if "width_coefficient" in found and isinstance(own.get(name), int):
            found[name] = round(own[name] * found["width_coefficient"] / own["width_coefficient"])
    found |= _per_layer(config, own, found, sizes)
    if not sizes.cache and "use_cache" in own:
        found["use_cache"] = False
    return found | _tokens(own, found, sizes)


def _unlike_fresh(config: Any) -> dict[str, Any]:
    """What the config around it set in a nested one, so that it is not what its class makes of nothing."""
    try:
        fresh = vars(type(config)())
    except Exception:  # it cannot be made of nothing
        return {}
    return {
        name: value
        for name, value in vars(config).items()
        if not name.startswith("_") and not hasattr(value, "to_dict") and value != fresh.get(name)
    }


def _backbone(config: Any) -> Any:
    """A small ResNet instead of a backbone of timm, which need not be installed."""
    from transformers import ResNetConfig

    stages = list(getattr(config, "out_indices", None) or [4])
    return ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 64, 128], depths=[1, 1, 1, 1], layer_type="basic",
        out_indices=[stage if 0 < stage <= 4 else 4 for stage in stages],
    )  # fmt: skip


def _number(name: str, value: int, sizes: Sizes) -> int:
    for pattern, new in _rules(sizes):
        if pattern.search(name):
            return value if new is None else min(value, new(value))
    if name in _LATENT and sizes.width is not None:
        return min(value, _LATENT[name])
    return value


def _rules(sizes: Sizes) -> list[tuple[re.Pattern[str], Callable[[int], int] | None]]:
    def constant(number: int | None) -> Callable[[int], int] | None:
        return None if number is None else lambda _: number

    per_head = None if sizes.width is None or sizes.heads is None else sizes.width // sizes.heads
    images = None if sizes.image is None else constant(sizes.image)
    latent = re.compile("^(" + "|".join(_LATENT) + ")$")
    return [
        (latent, (lambda v: 16 if v < 192 else 32) if sizes.width is not None else None),
        (re.compile("image_size$|^img_size$|^max_img_size$"), images),
        (re.compile("^visual_prompt_size$"), None if sizes.image is None else constant(8)),
        (re.compile("_layer_id$"), constant(None if sizes.layers is None else sizes.layers - 1)),
        (re.compile("_shared_layers$"), constant(0)),
        (_NO_LAYERS, None),
        (_GROUPS_OF_EXPERTS, constant(1)),
        (_EXPERTS_USED, constant(2)),
        (_EXPERTS, constant(4)),
        (_KEY_VALUE, constant(sizes.key_value_heads)),
        (_HEAD_WIDTH, constant(per_head)),
        (_HEADS, constant(sizes.heads)),
        (_LAYERS, constant(sizes.layers)),
        (re.compile("n_groups$"), constant(2)),
        (re.compile("^num_(queries|select|denoising)$"), constant(None if sizes.width is None else 8)),
        (re.compile("_layer_period$"), constant(sizes.layers)),
        (re.compile("_layer_offset$"), constant(None if sizes.layers is None else sizes.layers - 1)),
        (re.compile("^upsample_initial_channel$"), constant(None if sizes.width is None else 128)),
        (_RANK, constant(None if sizes.width is None else 32)),
        (_WIDTH, constant(sizes.width)),
        (_POSITIONS, constant(256) if sizes.width is not None else None),
        (_VOCABULARY, constant(sizes.vocabulary)),
    ]


def _list(name: str, values: list[int], sizes: Sizes, own: dict[str, Any]) -> list[int]:
    """Settings with a number for every stage: widths keep their proportions, the others are capped one by one."""
    if _LAYERS.search(name) and not _NO_LAYERS.search(name):
        return values if sizes.layers is None else [min(value, sizes.layers) for value in values]
    if _HEADS.search(name) or _KEY_VALUE.search(name):
        return values if sizes.heads is None else [min(value, 2) for value in values]
    if _WIDTH.search(name) or name.endswith(_STAGE_WIDTHS):
        if sizes.width is None or len(values) < 2 or not sizes.channels:
            return values
        smallest = min(values)
        return [value if smallest <= 32 else 32 * max(1, round(value / smallest)) for value in values]
    if _LAYER_NUMBERS.search(name):
        return values if sizes.layers is None else [v for v in values if v < sizes.layers] or [sizes.layers - 1]
    if name.endswith("out_indices"):
        if sizes.layers is None:
            return values
        last = sizes.layers - (max(values) < own.get("num_hidden_layers", 0))  # they count from 0, or from the input on
        return [min(value, last - len(values) + place) for place, value in enumerate(values, 1)]
    if name in ("image_size", "img_size"):
        return values if sizes.image is None else [min(value, sizes.image) for value in values]
    return values


def _stages(names: list[str], own: dict[str, Any], sizes: Sizes) -> list[str]:
    """Which layers a backbone gives, where each is a stage and there are fewer of them."""
    if sizes.layers is None or own.get("num_hidden_layers", 0) <= sizes.layers:
        return names
    last = max(sizes.layers, len(names))
    return [f"stage{last - len(names) + place}" for place in range(1, len(names) + 1)]


def _per_layer(config: Any, own: dict[str, Any], found: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Lists with an entry for every layer, cut to layers that show each of their kinds."""
    before = getattr(config, "num_hidden_layers", None)
    if sizes.layers is None or not isinstance(before, int) or before <= sizes.layers:
        return {}
    stages = {name for name, value in own.items() if _LAYERS.search(name) and isinstance(value, (list, tuple))}
    if any(not _SOURCES.search(name) for name in stages):
        return {name: value for name, value in own.items() if name in found and value == before}  # it counts stages
    lists = {name: value for name, value in own.items() if isinstance(value, (list, tuple)) and len(value) == before}
    kept: list[int] = []
    for values in lists.values():
        shown = [repr(values[index]) for index in kept]
        for index, value in enumerate(values):
            if repr(value) not in shown and len(kept) < 4:
                kept.append(index)
                shown.append(repr(value))
    kept += [index for index in range(before) if index not in kept][: max(0, sizes.layers - len(kept))]
    kept.sort()
    cut: dict[str, Any] = {name: type(value)(value[index] for index in kept) for name, value in lists.items()}
    if lists:
        cut |= {name: len(kept) for name in own if own[name] == before and name in found and _LAYERS.search(name)}
    return cut


def _tokens(own: dict[str, Any], found: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Ids of special tokens that a smaller vocabulary does not have, each another one of those it has."""
    if sizes.vocabulary is None:
        return {}
    large = {name: value for name, value in own.items() if _TOKEN.search(name) and _beyond(value, sizes.vocabulary)}
    number, moved = sizes.vocabulary - 1, {}
    for name, value in large.items():
        moved[name] = [number] if isinstance(value, list) else number
        number -= 1
    return moved


def _beyond(value: Any, vocabulary: int) -> bool:
    if isinstance(value, list):
        return any(isinstance(one, int) and one >= vocabulary for one in value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= vocabulary
