"""Runtime: the rules of a program that loads checkpoints, and on which hardware it says that it runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from goldstick.formats.base import StorageFormat
from goldstick.jobs.doctor.finding import Finding, Severity, Verdict, gathered
from goldstick.jobs.doctor.runtimes.subject import Subject

NVIDIA, AMD, CPU = "NVIDIA GPU", "AMD GPU", "CPU"
HARDWARE = (NVIDIA, AMD, CPU)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that a loader refuses or does wrong.

    Attributes:
        check: Its short name.
        severity: ``fault``: it does not load, or gives wrong numbers. ``remark``: worth knowing.
        what: What is the matter.
        remedy: What to do about it.
        read_in: The file of the runtime's source that says so, in the version of the runtime.
        find: Where it holds, each place with its own figures.
    """

    check: str
    severity: Severity
    what: str
    remedy: str
    read_in: str
    find: Callable[[Subject], Iterable[str]]

    def findings(self, subject: Subject) -> list[Finding]:
        """What it finds."""
        where = tuple(dict.fromkeys(self.find(subject)))
        found = Finding(
            severity=self.severity, check=self.check, what=self.what, where=where, remedy=self.remedy
        )  # fmt: skip
        return [found] if where else []


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether a checkpoint runs on some hardware.

    Attributes:
        runs: ``None`` where that was not read in the source.
        words: From where on it runs, or why not.
    """

    runs: bool | None
    words: str


#: Hardware → whether it runs there.
Answers = Mapping[str, Answer]


def yes(words: str) -> Answer:
    """It runs."""
    return Answer(runs=True, words=words)


def no(words: str) -> Answer:
    """It does not run."""
    return Answer(runs=False, words=words)


def unread(words: str = "not read in its source") -> Answer:
    """Nobody looked."""
    return Answer(runs=None, words=words)


def refused(words: str) -> Answers:
    """It runs nowhere, for one reason."""
    return {hardware: no(words) for hardware in HARDWARE}


def from_capability(capability: str, words: str = "") -> Answer:
    """It runs on NVIDIA GPUs from a compute capability on."""
    return yes(f"compute capability {capability} or later" + (f" ({words})" if words else ""))


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """A program that loads checkpoints.

    Attributes:
        name: Its name on the command line.
        title: Its name in sentences.
        version: The version whose source the rules were read from.
        formats: Formats that ``quantize --for`` tries, the best first.
        rules: What it refuses, beside what no hardware runs.
        parts: For each part of a checkpoint that is quantized in one way: what it is, and where that runs.
        read_in: Files that ``parts`` was read from.
        remedy: What to do where it runs nowhere.
        splits: Whether its rules look at how it splits layers over devices.
    """

    name: str
    title: str
    version: str
    formats: tuple[StorageFormat, ...]
    rules: tuple[Rule, ...]
    parts: Callable[[Subject], Iterable[tuple[str, Answers]]]
    read_in: str
    remedy: str
    splits: bool = True

    def answers(self, subject: Subject) -> dict[str, Answer]:
        """Hardware → whether the whole checkpoint runs there."""
        parts = [answers for _, answers in self.parts(subject)]
        return {hardware: _together([answers[hardware] for answers in parts]) for hardware in HARDWARE}

    def judge(self, subject: Subject) -> tuple[list[Finding], Verdict]:
        """What it would refuse of a checkpoint, and on which hardware it would run the rest."""
        findings = [finding for rule in self.rules for finding in rule.findings(subject)]
        nowhere = [(part, answers) for part, answers in self.parts(subject) if not _runs(answers)]
        answers = self.answers(subject)
        if not nowhere and not _runs(answers):
            nowhere = [("its parts together", answers)]
        for part, refusals in nowhere:
            reasons = dict.fromkeys(answer.words for answer in refusals.values() if answer.runs is False)
            findings.append(
                Finding(
                    severity="fault",
                    check="scheme",
                    what=f"{self.title} does not run this: {'; '.join(reasons)}",
                    where=(part,),
                    remedy=self.remedy,
                )
            )
        verdict = Verdict(
            runtime=self.name,
            version=self.version,
            loads=all(finding.severity != "fault" for finding in findings),
            hardware={hardware: answer.words for hardware, answer in answers.items() if answer.runs},
            not_on={hardware: answer.words for hardware, answer in answers.items() if answer.runs is False},
        )
        return list(gathered(findings)), verdict


def _runs(answers: Answers) -> bool:
    return any(answer.runs for answer in answers.values())


def _together(answers: list[Answer]) -> Answer:
    """The answer of several parts of one checkpoint."""
    for verdict in (False, None):
        worst = [answer.words for answer in answers if answer.runs is verdict]
        if worst:
            return Answer(runs=verdict, words="; ".join(dict.fromkeys(worst)))
    return yes("; ".join(dict.fromkeys(answer.words for answer in answers)) or "in float")


@cache
def names_in(file: str) -> dict[str, str]:
    """The first word of every line of a list in ``architectures``, and what follows it."""
    text = (Path(__file__).parent / "architectures" / f"{file}.txt").read_text(encoding="utf-8")
    lines = [line.partition(" ") for line in text.splitlines()]
    return {name: rest for name, _, rest in lines}
