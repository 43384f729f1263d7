"""Two models on the same input: how far apart the outputs of each module are, and where they part."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

#: SQNR in decibels below which two models have parted: the difference has a tenth of the signal's power.
PARTING_DB = 10.0

Severity = Literal["equal", "small", "visible", "large", "severe"]

#: How bad an SQNR is: the least decibels of each band, the best first.
SEVERITIES: dict[Severity, float] = {
    "equal": math.inf,
    "small": 30.0,
    "visible": 20.0,
    "large": 10.0,
    "severe": -math.inf,
}


def severity(sqnr_db: float) -> Severity:
    """Return the band of an SQNR; ``severe`` for NaN, which no number of decibels is."""
    return next((name for name, least in SEVERITIES.items() if sqnr_db >= least), "severe")


@dataclass(frozen=True, kw_only=True)
class ModuleDifference:
    """How far the outputs of a module of two models are apart.

    Args:
        name: the module's path; empty for the whole model.
        first_kind: its class in the first model.
        second_kind: its class in the second.
        shape: the shape of its output.
        calls: how often it ran.
        sqnr_db: 10·log10(Σa² / Σ(a − b)²) in decibels, a the first model's output; infinite where nothing
            differs, NaN where a value is not finite.
        cosine: Σab / √(Σa² Σb²), 1 where both are zero.
        max_abs: the largest |a − b|.
    """

    name: str
    first_kind: str
    second_kind: str
    shape: tuple[int, ...]
    calls: int
    sqnr_db: float
    cosine: float
    max_abs: float

    @property
    def severity(self) -> Severity:
        """The band of the SQNR."""
        return severity(self.sqnr_db)


@dataclass(frozen=True, kw_only=True)
class ModelComparison:
    """Two models on the same input, module by module.

    Args:
        first: the model that counts as right.
        second: the other.
        inputs: what both were given, in words.
        threshold: the SQNR in decibels below which they have parted.
        modules: every module that both ran, in the order in which they finished: a module stands behind those
            it is made of.
        only_first: modules that only the first model ran.
        only_second: modules that only the second ran.
        not_compared: modules that both ran but whose outputs do not compare, with the reason.
        rotated: whether the two were rotated differently: what lies within has other coordinates then, and the output
            alone is judged.
    """

    first: str
    second: str
    inputs: str
    threshold: float
    modules: tuple[ModuleDifference, ...]
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    not_compared: tuple[tuple[str, str], ...] = ()
    rotated: bool = False

    @property
    def judged(self) -> tuple[ModuleDifference, ...]:
        """The modules whose outputs are to be alike."""
        return tuple(found for found in self.modules if not (self.rotated and found.name))

    @property
    def parting(self) -> ModuleDifference | None:
        """The first module to finish with an SQNR below the threshold, or None where the models never part."""
        return next((found for found in self.judged if not found.sqnr_db >= self.threshold), None)

    @property
    def output(self) -> ModuleDifference | None:
        """The model's own output, or None where its outputs do not compare."""
        return next((found for found in self.modules if not found.name), None)

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        """``pass`` where no module falls below the threshold."""
        return "pass" if self.judged and self.parting is None else "fail"

    @property
    def below(self) -> int:
        """How many modules fall below the threshold."""
        return sum(not found.sqnr_db >= self.threshold for found in self.judged)

    def parting_words(self) -> str:
        """Where the models part, in a sentence."""
        found = self.parting
        if found is None and self.rotated:
            return (
                f"the models never part: their outputs do not fall below {self.threshold:g} dB; one was rotated, so "
                "what lies within has other coordinates and is not judged"
            )
        if found is None:
            return f"the models never part: no module falls below {self.threshold:g} dB"
        return f"the models part at {found.name or 'the output'}: {found.sqnr_db:.1f} dB, below {self.threshold:g} dB"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ``parting``, ``verdict`` and each module's ``severity`` among them."""
        parting = self.parting
        modules = [asdict(found) | {"severity": found.severity} for found in self.modules]
        return asdict(self) | {
            "modules": modules,
            "not_compared": dict(self.not_compared),
            "parting": None if parting is None else parting.name,
            "verdict": self.verdict,
        }
