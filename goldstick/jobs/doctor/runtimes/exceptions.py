"""Exceptions: float layers that a config does not except from what it quantizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from goldstick.errors import FormatError
from goldstick.formats.name_matching import NamePatterns
from goldstick.formats.name_patterns import excepted_names
from goldstick.jobs.doctor.runtimes.arguments import targets_of
from goldstick.jobs.doctor.runtimes.layers_together import quantized_heads
from goldstick.jobs.doctor.runtimes.subject import Subject

_Matcher = Callable[[str], bool]


def unused_floats(subject: Subject) -> Iterator[str]:
    """Float matrices beside the model, such as those that predict further tokens, that ``ignore`` does not name.

    Of those names that a group's target matches. A runtime that builds these layers builds them quantized.
    """
    matched = _matches(subject, targets_of(subject.table))
    ignored = _ignored(subject)
    yield from (name for name in subject.unused if matched(name) and not ignored(name))


def floats_of_no_group(subject: Subject) -> Iterator[str]:
    """Float linear layers that neither a target nor ``ignore`` names."""
    targets = targets_of(subject.table)
    if not targets:
        return
    matched, ignored = _matches(subject, targets), _ignored(subject)
    for module in subject.modules:
        if module.scheme is None and module.role != "head" and not matched(module.name) and not ignored(module.name):
            yield module.name


def unnamed_heads(subject: Subject) -> Iterator[str]:
    """Quantized heads that no target names: that of all linear layers is not looked at for them."""
    try:
        named = NamePatterns(targets_of(subject.table))
        yield from (head.name for head in quantized_heads(subject) if named.first(head.name) is None)
    except FormatError:  # told by the checks of the config
        return


def _ignored(subject: Subject) -> _Matcher:
    try:
        names = excepted_names(subject.table, "ignore")
        patterns = NamePatterns(names)
    except FormatError:  # told by the checks of the config
        return lambda name: True
    return lambda name: "Linear" in names or patterns.first(name) is not None


def _matches(subject: Subject, targets: list[str]) -> _Matcher:
    try:
        patterns = NamePatterns(targets)
    except FormatError:
        return lambda name: False
    return lambda name: "Linear" in targets or patterns.first(name) is not None
