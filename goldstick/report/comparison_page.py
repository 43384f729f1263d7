"""The page of a comparison: a tree of modules with a search and a filter, in one file that loads nothing."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from goldstick.core.counts import counted
from goldstick.report.attribution import Attribution
from goldstick.report.comparison_tree import Node, comparison_tree, kinds
from goldstick.report.generation import Generation
from goldstick.report.model_comparison import SEVERITIES, ModelComparison, ModuleDifference, Severity
from goldstick.report.page import render
from goldstick.report.svg import bars
from goldstick.report.words import format_shape

_WORST = 10


def render_comparison(
    comparison: ModelComparison, attribution: Attribution | None = None, generation: Generation | None = None
) -> str:
    """Return the page of a comparison, with the loss split by parts and what both wrote where these are there."""
    parting = comparison.parting
    counts = {name: sum(found.severity == name for found in comparison.modules) for name in SEVERITIES}
    ranked = sorted(comparison.modules, key=lambda found: -math.inf if math.isnan(found.sqnr_db) else found.sqnr_db)
    return render(
        "comparison.html",
        title=f"{comparison.first} and {comparison.second}, side by side",
        comparison=comparison,
        figures=_opening(comparison),
        parting="" if parting is None else parting.name,
        severities=[(name, _band(name), counts[name]) for name in SEVERITIES],
        worst=[(found.name or "(the whole model)", _figures(found), found.severity) for found in ranked[:_WORST]],
        attribution=None if attribution is None else _attribution(attribution),
        generation=None if generation is None else generation.view(),
        root=_node(comparison_tree(comparison), None if parting is None else parting.name),
    )


def _opening(comparison: ModelComparison) -> list[tuple[str, str, str]]:
    """The verdict, and the figures that it rests on."""
    severity = {"pass": "good", "fail": "bad"}[comparison.verdict]
    figures: list[tuple[str, str, str]] = [
        (comparison.verdict, f"against {comparison.threshold:g} dB asked of every module", severity)
    ]
    if comparison.output is not None:
        figures.append((f"{comparison.output.sqnr_db:.1f} dB", "SQNR of the model's output", ""))
    modules = counted(len(comparison.modules), "module")
    return [*figures, (f"{comparison.below} of {modules}", f"below {comparison.threshold:g} dB", "")]


def _attribution(found: Attribution) -> dict[str, Any]:
    tables = (("By source", found.sources), ("By place", found.places))
    return {
        "words": (found.words(), *found.notes),
        "tables": [
            (
                title,
                [
                    (part.name, f"{part.left:.2e}", f"{found.share(part):.1f} %", _bar(found.share(part)))
                    for part in parts
                ],
            )
            for title, parts in tables
        ],
    }


def _bar(share: float) -> Markup:
    """A share of the loss in percent; what makes the loss larger by itself has no bar."""
    return bars(0.0, min(100.0, max(0.0, share)), 100.0, f"{share:.1f} %")


def _band(name: Severity) -> str:
    names, least = list(SEVERITIES), list(SEVERITIES.values())
    place = names.index(name)
    if place == 0:
        return "no difference"
    if place == len(names) - 1:
        return f"below {least[place - 1]:g} dB"
    return f"{least[place]:g} dB and more"


def _figures(found: ModuleDifference) -> str:
    return f"{found.sqnr_db:.1f} dB, cosine {found.cosine:.6f}, largest difference {found.max_abs:.3g}"


def _node(node: Node, parting: str | None, level: int = 0) -> dict[str, Any]:
    """A node as the template wants it; open at the top and on the way to where the models part."""
    found = node.found
    return {
        "path": node.path,
        "label": node.label,
        "kind": "" if found is None else f"{kinds(found)} [{format_shape(found.shape)}]",
        "figures": (node.note or "") if found is None else _figures(found),
        "severity": "" if found is None else found.severity,
        "here": found is not None and node.path == parting,
        "open": level < 2 or (parting is not None and node.holds(parting)),
        "children": [_node(child, parting, level + 1) for child in node.children],
    }
