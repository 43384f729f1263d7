"""A comparison as the tree of modules that its names describe, and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from goldstick.report.model_comparison import SEVERITIES, ModelComparison, ModuleDifference, Severity
from goldstick.report.terminal import print_table

if TYPE_CHECKING:
    from rich.console import Console

_ORDER = list(SEVERITIES)


@dataclass(kw_only=True)
class Node:
    """A module, or a container that holds modules and does not run itself.

    Args:
        path: its full name.
        label: the last word of it.
        found: how far its outputs are apart; None for a container, or where they do not compare.
        note: why they do not compare, or None.
        children: the modules in it, in the order in which they finished.
    """

    path: str
    label: str
    found: ModuleDifference | None = None
    note: str | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def worst(self) -> Severity:
        """The worst severity of the module and all in it."""
        own = [self.found.severity] if self.found else []
        return max([*own, *(child.worst for child in self.children)], key=_ORDER.index, default="equal")

    def holds(self, path: str) -> bool:
        """Whether the module of that path is this one or lies in it."""
        return path == self.path or self.path == "" or path.startswith(f"{self.path}.")


def comparison_tree(comparison: ModelComparison) -> Node:
    """The root of the tree: the whole model."""
    root = Node(path="", label="(the whole model)")
    nodes = {"": root}

    def node(path: str) -> Node:
        if path not in nodes:
            parent, _, label = path.rpartition(".")
            nodes[path] = Node(path=path, label=label)
            node(parent).children.append(nodes[path])
        return nodes[path]

    for found in comparison.modules:
        node(found.name).found = found
    for name, reason in comparison.not_compared:
        node(name).note = f"not compared: {reason}"
    for names, which in ((comparison.only_first, "first"), (comparison.only_second, "second")):
        for name in names:
            node(name).note = f"in the {which} model only"
    return root


def print_model_comparison(console: Console, comparison: ModelComparison, depth: int) -> None:
    """Print the tree down to ``depth`` levels below the model, and in a sentence where the models part."""
    columns = ("module", "class", "<SQNR dB", "<cosine", "<largest difference", "")
    parting = comparison.parting
    cells = [
        [*_cells(node, level), _remark(node, parting, level == depth)]
        for node, level in _nodes(comparison_tree(comparison), depth)
    ]
    print_table(console, f"Compared on {comparison.inputs}", columns, cells)
    for words in (f"verdict: {comparison.verdict}: {comparison.parting_words()}", *_counts(comparison)):
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def _nodes(node: Node, depth: int, level: int = 0) -> Iterator[tuple[Node, int]]:
    yield node, level
    if level < depth:
        for child in node.children:
            yield from _nodes(child, depth, level + 1)


def _cells(node: Node, level: int) -> list[str]:
    name = "  " * level + node.label
    if node.found is None:
        return [name, node.note or "", "", "", ""]
    found = node.found
    return [name, kinds(found), f"{found.sqnr_db:.1f}", f"{found.cosine:.6f}", f"{found.max_abs:.3g}"]


def _remark(node: Node, parting: ModuleDifference | None, folded: bool) -> str:
    """Where the models part, also inside a folded node, and how bad what it hides is."""
    if not folded or not node.children:
        return "parts here" if node.found is not None and node.found is parting else ""
    inside = parting is not None and node.holds(parting.name)
    return "parts in here" if inside else f"worst inside: {node.worst}"


def kinds(found: ModuleDifference) -> str:
    """The class of a module, both where they differ."""
    return found.first_kind if found.first_kind == found.second_kind else f"{found.first_kind} → {found.second_kind}"


def _counts(comparison: ModelComparison) -> Iterator[str]:
    for names, which in ((comparison.only_first, "first"), (comparison.only_second, "second")):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"in the {which} model only: {', '.join(names[:3])}{more}"
