"""A mixture of block types as overrides of a stage, once the network is known."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from goldstick.algorithms import Quantizer
from goldstick.core.mixture import MIXTURES, Place, Work
from goldstick.core.scheme import Scheme
from goldstick.structure.network import Network, Site
from goldstick.structure.targets import exactly, matches

#: What layers do, by the last words of their names: as transformers calls them.
_WORKS: tuple[tuple[Work, str], ...] = (
    ("value", r"(v_proj|value|qkv_proj|query_key_value|c_attn|in_proj|Wqkv|wqkv|kv_b_proj|qkv)$"),
    ("key", r"(k_proj|key)$"),
    ("down", r"(down_proj|fc2|dense_4h_to_h|mlp\.c_proj|ffn\.2|w2|(?<!attention\.)output\.dense|experts\.\d+\.w2)$"),
    ("attention output", r"(o_proj|out_proj|attn\.c_proj|attention\.(output\.)?dense|self_attention\.dense|wo)$"),
)


def with_mixture(stage: Quantizer, sites: Sequence[Site], network: Network) -> tuple[Quantizer, dict[str, str]]:
    """A stage whose scheme is a mixture with a scheme for each site instead; and the sites that no block fits.

    Overrides of the stage's own win.

    Args:
        stage: The stage.
        sites: Its sites.
        network: The network.

    Returns:
        The stage, and parameter → why it stays float.
    """
    mixture = MIXTURES.get(stage.scheme) if isinstance(stage.scheme, str) else None
    if mixture is None:
        return stage, {}
    works = {site.name: _work(site) for site in network.sites}
    counts, seen = Counter(works.values()), Counter[Work]()
    chosen = {site.name for site in sites}
    experts = max((site.matrix_shape[0] for site in network.sites if site.layout.fused), default=_apart(network))
    shared = _shared_heads(network)
    tied = any(site.role == "head" and site.tied_to for site in network.sites)
    overrides: dict[str, Scheme | str] = {}
    left = {}
    for site in network.sites:
        work = works[site.name]
        place = Place(
            work="head" if work == "embedding" and tied else work,
            index=seen[work],
            count=counts[work],
            columns=site.in_features,
            shared=shared,
            experts=experts,
        )
        seen[work] += 1
        kind = mixture.type_of(place)
        if site.name not in chosen:
            continue
        if kind is None:
            left[site.parameter_name] = f"skipped: {site.in_features} inputs do not divide into blocks of 32"
        elif not any(matches(pattern, site.name) for pattern in stage.overrides):
            overrides[site.name] = kind
    each = exactly(overrides, "")  # which no layer becomes, so that every layer is named
    return dataclasses.replace(stage, scheme=mixture.general, overrides={**each, **stage.overrides}), left


def _work(site: Site) -> Work:
    if site.role in ("embedding", "head"):
        return "embedding" if site.role == "embedding" else "head"
    return next((work for work, pattern in _WORKS if re.search(rf"(^|\.){pattern}", site.name)), "other")


def _shared_heads(network: Network) -> int:
    """Query heads that share a head of keys: rows of a query projection over those of the value beside it."""
    rows = {site.name: site.matrix_shape[-2] for site in network.sites}
    for name, queries in rows.items():
        if name.endswith("q_proj") and (values := rows.get(name.removesuffix("q_proj") + "v_proj")):
            return queries // values
    return 1


def _apart(network: Network) -> int:
    """Experts that are modules of their own, of the block that has most; 0 where there are none."""
    numbers = [match[1] for site in network.sites if (match := re.search(r"\bexperts\.(\d+)\.", site.name))]
    return max((int(number) + 1 for number in numbers), default=0)
