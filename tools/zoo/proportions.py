"""Settings that follow from others, so that a smaller config stays of one piece."""

from __future__ import annotations

from typing import Any


def as_many_keys(own: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Heads of keys, where there were as many as of queries."""
    pairs = (("num_key_value_heads", "num_attention_heads"), ("num_kv_heads", "num_heads"))
    return {keys: found[heads] for keys, heads in pairs if heads in found and own.get(keys) == own[heads]}


def proportions(own: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Widths that are so many times another, in the config or in the nested one that it reads."""
    made: dict[str, Any] = {}
    stages = found.get("embed_dim_per_stage")
    if stages and "hidden_size" in own:
        made["hidden_size"] = stages[0]
    for name, of in (("attention_hidden_size", "hidden_size"), ("hidden_size", "patch_embeds_hidden_size")):
        if of in found and isinstance(own.get(name), int) and own[name] % own[of] == 0:
            made[name] = own[name] // own[of] * found[of]
    if own.get("backbone_feature_sizes") and "backbone_config" in found:
        now, before = (_side(one["backbone_config"]) for one in (found, own))
        made["backbone_feature_sizes"] = [[n * now // before for n in pair] for pair in own["backbone_feature_sizes"]]
    for name, value in own.items():
        if "projection_dim" in own and isinstance(getattr(value, "width_coefficient", None), float):
            times = found[name].width_coefficient / value.width_coefficient
            made["projection_dim"] = round(own["projection_dim"] * times)
    return made


def _side(config: Any) -> int:
    """The height of the pictures that a config is for."""
    size = getattr(config, "image_size", None) or 1
    return int(size if isinstance(size, int) else size[0])


def state_heads(own: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Widths of the heads of state spaces, so that all together they are as many times the hidden size as before."""
    for heads, width in (
        ("mamba_n_heads", "mamba_d_head"),
        ("mamba_num_heads", "mamba_head_dim"),
        ("num_heads", "head_dim"),
    ):
        whole = next((name for name in ("mamba_d_ssm", "hidden_size") if isinstance(own.get(name), int)), "")
        if whole in found and isinstance(own.get(heads), int) and isinstance(own.get(width), int):
            times = own[heads] * own[width] / own[whole]
            return {width: max(1, round(times * found[whole] / found.get(heads, own[heads])))}
    return {}


def sections(rope: dict[str, Any], total: int) -> dict[str, Any]:
    """Settings of rotary embeddings whose lists share out half a head, at any depth, sharing out another one."""
    found: dict[str, Any] = {}
    for name, value in rope.items():
        if isinstance(value, dict):
            value = sections(value, total)
        elif name.endswith("section") and isinstance(value, list) and sum(value) > total:
            value = [max(1, number * total // sum(value)) for number in value]
            value[-1] += total - sum(value)
        found[name] = value
    return found
