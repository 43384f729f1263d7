"""Findings: one thing that is wrong or worth knowing, where, and what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["fault", "remark"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        severity: ``fault``: readers will fail, or give wrong numbers. ``remark``: worth knowing.
        check: Short name of the check that found it, such as ``zero-scales``.
        what: What is the matter, in words.
        where: The layers, tensors or files, each with its own figures.
        remedy: What to do about it.
    """

    severity: Severity
    check: str
    what: str
    where: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a runtime loads and runs a checkpoint, by the rules of its loaders.

    Attributes:
        runtime: Its name.
        version: The version whose source the rules were read from.
        loads: Whether none of its rules finds a fault.
        hardware: Hardware on which it runs, and from where on.
        not_on: Hardware on which it does not, and why; of what is in neither, nothing was read.
    """

    runtime: str
    version: str
    loads: bool
    hardware: Mapping[str, str]
    not_on: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What an examination found.

    Attributes:
        directory: The checkpoint.
        format: Its storage format, or ``float``.
        layers: How many quantized matrices were looked at.
        tensors: How many tensors it holds.
        findings: Faults first.
        verdict: What a runtime that was asked for makes of it; ``None`` where none was.
    """

    directory: str
    format: str
    layers: int
    tensors: int
    findings: tuple[Finding, ...]
    verdict: Verdict | None = None

    @property
    def healthy(self) -> bool:
        """Whether there is no fault; remarks do not count."""
        return all(finding.severity == "remark" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with ``healthy``."""
        return {**dataclasses.asdict(self), "healthy": self.healthy}


def gathered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings that differ by place only, made one; faults first, otherwise in the order they came."""
    together: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        key = (finding.severity, finding.check, finding.what, finding.remedy)
        before = together.get(key)
        where = (*before.where, *finding.where) if before else finding.where
        together[key] = dataclasses.replace(finding, where=where)
    return tuple(sorted(together.values(), key=lambda finding: finding.severity != "fault"))
