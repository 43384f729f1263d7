"""Targets: which sites a stage means, as patterns on their names."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from goldstick.errors import RecipeError
from goldstick.structure.network import Network, Site

Choice = TypeVar("Choice")

_LONGEST = 1000
#: Patterns that mean a role.
_ROLES = {"@embedding": "embedding", "@head": "head"}


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Patterns that pick sites by name: shell wildcards, where ``*`` also crosses dots.

    A pattern matches a site's whole name, or, when it holds no wildcard, the last parts of it (``lm_head``,
    ``mlp.down_proj``). Without ``include`` every site is meant but embeddings, the output head, routers and adapters;
    those are reached only by an ``include`` pattern that names them: one whose last part says more than ``*``.

    ``@embedding`` and ``@head`` mean the embedding of tokens and the output head, whatever they are called.

    Attributes:
        include: Sites to take; empty for all inner ones.
        exclude: Sites to leave alone, taken out of the former.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def select(self, network: Network) -> tuple[Site, ...]:
        """The sites of ``network`` that the patterns mean.

        Raises:
            RecipeError: A pattern matches nothing; the message names the nearest site.
        """
        names = [site.name for site in network.sites]
        for pattern in self.include:
            if pattern not in _ROLES and not any(matches(pattern, name) for name in names):
                raise unmatched(pattern, network.sites, "targets")
        names += [name for name, _ in network.model.named_parameters(remove_duplicate=False)]
        for pattern in self.exclude:
            if not any(_names(pattern, name) for name in names):
                raise unmatched(pattern, network.sites, "targets")
        meant = {role for pattern, role in _ROLES.items() if pattern in self.include}
        rows = max((site.shape[0] for site in network.sites if site.role == "embedding"), default=0)
        return tuple(
            site
            for site in network.sites
            if self._takes(site)
            or (site.role in meant and not self.excludes(site) and (site.role == "head" or site.shape[0] == rows))
        )

    def excludes(self, site: Site) -> str | None:
        """The ``exclude`` pattern that takes a site out, or ``None``."""
        return next((pattern for pattern in self.exclude if matches(pattern, site.name)), None)

    def excludes_name(self, name: str) -> str | None:
        """The ``exclude`` pattern that names a parameter, or a module that it lies in, or ``None``."""
        return next((pattern for pattern in self.exclude if _names(pattern, name)), None)

    def _takes(self, site: Site) -> bool:
        if self.excludes(site):
            return False
        if not self.include:
            return site.role == "inner"
        return any(matches(pattern, site.name) and _means(pattern, site) for pattern in self.include)


def _means(pattern: str, site: Site) -> bool:
    """Whether a pattern that matches a site means it: a catch-all such as * or model.* sweeps in no embeddings, and one
    that the layer beside an adapter matches, such as *q_proj*, not the adapter."""
    if site.adapter_of is not None:
        return not matches(pattern, site.adapter_of)
    return site.role == "inner" or pattern.rpartition(".")[2].strip("*?") != ""


def _names(pattern: str, parameter: str) -> bool:
    """Whether a pattern matches a parameter's name or that of the module that holds it."""
    return matches(pattern, parameter) or matches(pattern, parameter.rpartition(".")[0])


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern of :class:`Targets` matches a name.

    Raises:
        RecipeError: It is longer than any name, so that reading it may take for ever.
    """
    if len(pattern) > _LONGEST:
        raise RecipeError(f"The pattern {pattern[:50]!r}… is longer than {_LONGEST:,} characters, which no name is.")
    if any(character in pattern for character in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    # Nothing names nothing: '' is what a variable of a shell leaves that is not set, and the owner of 'weight'.
    return bool(pattern) and (name == pattern or name.endswith("." + pattern))


def exactly(chosen: Mapping[str, Choice], general: Choice) -> dict[str, Choice]:
    """Names of layers and what is chosen for them, as patterns of which the last match wins, but for the ``general``.

    A name matches the layers that end in it, too (``proj`` of ``encoder.proj``): so shorter ones come first, and those
    that a shorter one would mean are named whatever is chosen for them.
    """
    found: dict[str, Choice] = {}
    for name in sorted(chosen, key=lambda name: name.count(".")):
        parts = name.split(".")
        meant = any(".".join(parts[start:]) in found for start in range(1, len(parts)))
        if meant or chosen[name] != general:
            found[name] = chosen[name]
    return found


def unmatched(pattern: str, sites: Iterable[Site], where: str) -> RecipeError:
    """The error for a pattern that matches no site, with the nearest names."""
    names = [site.name for site in sites]
    tails = {name.rsplit(".", 1)[-1] for name in names}
    bare = pattern.replace("*", "").strip(".")
    near = difflib.get_close_matches(bare, sorted(tails | set(names)), n=3, cutoff=0.5)
    hint = f"Near it: {', '.join(near)}." if near else f"Names look like {names[0]!r}." if names else ""
    return RecipeError(
        f"The pattern {pattern!r} in {where} matches no layer of this model, so it would do nothing. {hint}"
    )
