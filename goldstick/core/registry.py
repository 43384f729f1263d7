"""Registries: what goldstick brings itself, by name, and what other installed packages add by entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from goldstick.errors import UsageError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Name → what is registered under it: goldstick's own in their order, then those of other packages.

    Another package adds to it in its pyproject.toml, by ``NAME = "module:attribute"`` in a table
    ``[project.entry-points."GROUP"]``. Packages are looked through at the first question that concerns them, and
    each attribute is imported when it is asked for.

    Args:
        group: Group of the entry points.
        what: What each of them leads to, for errors.
        fits: Whether an object is that; its ``name`` is the registered one besides.
        own: What goldstick brings itself, or ``"module:attribute"``, imported when it is asked for.
    """

    def __init__(self, group: str, what: str, fits: Callable[[Any], bool], own: Mapping[str, T | str]) -> None:
        self._group, self._what, self._fits, self._own = group, what, fits, own

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names of what goldstick brings itself; other packages are not looked at."""
        return tuple(self._own)

    def __getitem__(self, name: str) -> T:
        if name not in self._own:
            return self._foreign(self._added[name])
        found = self._own[name]
        return EntryPoint(name, found, self._group).load() if isinstance(found, str) else found

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *self._added))

    def __len__(self) -> int:
        return len(self._own) + len(self._added)

    @cached_property
    def _added(self) -> Mapping[str, EntryPoint]:
        added: dict[str, EntryPoint] = {}
        for point in entry_points(group=self._group):
            other = "goldstick itself" if point.name in self._own else _package(added.get(point.name))
            if other:
                raise UsageError(
                    f"{_package(point)} registers {point.name!r} in {self._group}, and {other} does so too. Uninstall "
                    "it, or ask its authors for another name."
                )
            added[point.name] = point
        return added

    def _foreign(self, point: EntryPoint) -> T:
        registered = f"{_package(point)} registers {point.name!r} in {self._group} as {point.value}"
        try:
            found: T = point.load()
        except Exception as error:  # whatever a stranger's module does when it is imported
            raise UsageError(
                f"{registered}, which cannot be imported: {type(error).__name__}: {error}. Update or uninstall it."
            ) from error
        if not self._fits(found) or getattr(found, "name", None) != point.name:
            raise UsageError(f"{registered}, which is not {self._what} whose 'name' is {point.name!r}.")
        return found


def _package(point: EntryPoint | None) -> str:
    if point is None:
        return ""
    return f"The package {point.dist.name}" if point.dist is not None else "An installed package"
