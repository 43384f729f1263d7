"""The record of a search: everything that its page shows, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from goldstick.core.counts import counted
from goldstick.errors import RecipeError
from goldstick.jobs.search.layers import FLOAT
from goldstick.jobs.search.target import Found

if TYPE_CHECKING:
    from goldstick.jobs.search.search import Search

#: Sizes of the front at which the whole model is measured, for the page.
_SHOWN = 9


def found_by(search: Search, chosen: Mapping[str, str], nbytes: int, looks: list[dict[str, Any]]) -> Found:
    """The recipe of a choice, and all figures of the search.

    Raises:
        RecipeError: Nothing is quantized.
    """
    sites = search.sites(chosen)
    if all(scheme == FLOAT for scheme in sites.values()):
        raise RecipeError("Everything stays float at this size; ask for less.")
    losses = search.scores.losses()
    front = search.scores.front()
    recipe = search.layers.recipe(sites)
    recipe = recipe.model_copy(update={"description": _description(search, nbytes)})
    overhead = nbytes - search.layers.fixed - sum(
        group.nbytes[chosen[group.name]] for group in search.layers.groups
    )  # fmt: skip
    uniform = _uniform(search, overhead)
    record = {
        "goldstick_search": 1,
        "model": str(search.layers.directory),
        "for": search.layers.runtime.format,
        "tensor_parallel": search.layers.rules.tensor_parallel if search.layers.rules else 1,
        "asked": {key: value for key, value in vars(search.target).items() if value is not None},
        "bytes": nbytes,
        "bits_per_weight": 8 * nbytes / search.layers.weights,
        "bytes_of_source": search.layers.source,
        "exact": front.exact,
        "text": f"{counted(search.text.samples, 'row')} of {counted(search.text.seq_len, 'token')} from "
        f"{search.text.dataset}",
        "texts": search.texts,
        "tokens": search.text.samples * search.text.seq_len,
        "held_out": search.held_out,
        "whole": _judged(search, chosen),
        "rounded": search.rounded.words,
        "looks": looks,
        "groups": [
            {
                "name": group.name,
                "weights": sum(site.shape.numel() for site in group.sites),
                "shape": list(group.sites[0].matrix_shape),
                "chosen": chosen[group.name],
                "candidates": [
                    {
                        "scheme": scheme,
                        "bytes": size,
                        "loss": losses[group.name, scheme],
                        **_known(search, group.name, scheme),
                    }
                    for scheme, size in group.nbytes.items()
                ],
            }
            for group in search.layers.groups
        ],
        "front": _points(search, front, overhead),
        "uniform": uniform,
        "rival": _rival(search, uniform, nbytes),
        "beside": [],
    }
    return Found(recipe=recipe, nbytes=nbytes, record=record)


def _description(search: Search, nbytes: int) -> str:
    asked = {
        "at most {:,} bytes": search.target.size,
        "at most {:g} bits a weight": search.target.bits,
        "at most {:.4g} of the size": search.target.share,
        f"a {search.target.metric} loss of at most {{:g}}": search.target.max_loss,
    }
    (words,) = (text.format(value) for text, value in asked.items() if value is not None)
    rules = search.layers.rules
    if rules is not None and rules.tensor_parallel > 1:
        words += f", for {rules.runtime.title} on {rules.tensor_parallel} devices"
    return f"found by a search for {words}; weight files of {nbytes:,} bytes"


def _known(search: Search, group: str, scheme: str) -> dict[str, float | None]:
    if scheme == FLOAT:
        return {"first": 0.0, "second": 0.0, "measured": 0.0}
    pair = search.scores.pairs[group, scheme]
    return {"first": pair.gradient.first, "second": pair.gradient.second, "measured": pair.measured}


def _judged(search: Search, chosen: Mapping[str, str]) -> dict[str, float]:
    with search.rounded.become(search.sites(chosen)):
        losses, larger = search.check.both()
    return {
        "kl": fmean(losses),
        "half_width": 1.96 * stdev(losses) / math.sqrt(len(losses)),
        "grown": math.expm1(fmean(larger)),
        "rows": len(losses),
    }


def _rival(search: Search, uniform: list[dict[str, Any]], nbytes: int) -> dict[str, Any] | None:
    """The one scheme for all that loses least in as many bytes, judged on the same held-out rows."""
    within = [one for one in uniform if one["bytes"] <= nbytes * 1.01]
    if not within:
        return None
    best = min(within, key=lambda one: one["measured"])
    judged = _judged(search, {group.name: best["scheme"] for group in search.layers.groups})
    return {"name": best["scheme"], "bytes": best["bytes"], **judged}


def _points(search: Search, front: Any, overhead: int) -> list[dict[str, Any]]:
    """Up to 120 choices of the front, evenly by bytes' logarithm; some of them measured as a whole."""
    count = min(120, len(front))
    low, high = math.log(front.nbytes[0]), math.log(front.nbytes[-1])
    sizes = [math.exp(low + (high - low) * step / max(1, count - 1)) for step in range(count)]
    found = []
    for number, size in enumerate(sizes):
        choice = front.within(size + 1)
        chosen = search.scores.chosen(choice)
        measured: float | None = None
        grown: float | None = None
        if search.effort != "fast" and number % max(1, count // _SHOWN) == 0:
            measured, grown = search.whole(chosen), search.grown(chosen)
        found.append(
            {
                "bytes": choice.nbytes + search.layers.fixed + overhead,
                "loss": choice.loss + search.offset,
                "measured": measured,
                "grown": grown,
                "picks": choice.picks,
            }
        )
    return found


def _uniform(search: Search, overhead: int) -> list[dict[str, Any]]:
    """Every scheme that all layers can become, measured as a whole."""
    schemes = [
        scheme
        for scheme in search.layers.groups[0].nbytes
        if scheme != FLOAT and all(scheme in group.nbytes for group in search.layers.groups)
    ]
    found = []
    for done, scheme in enumerate(schemes if search.effort != "fast" else ()):
        search.progress("uniform schemes", done, len(schemes))
        nbytes = search.layers.fixed + overhead + sum(group.nbytes[scheme] for group in search.layers.groups)
        chosen = {group.name: scheme for group in search.layers.groups}
        found.append(
            {"scheme": scheme, "bytes": nbytes, "measured": search.whole(chosen), "grown": search.grown(chosen)}
        )
    return found
