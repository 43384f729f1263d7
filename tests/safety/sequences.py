"""Random sequences of commands in a scratch tree, each in a process of its own that is forked from this one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import goldstick
from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify
from tests.safety.adversary import Adversary
from tests.safety.ledger import Ledger, contents_at
from tests.support.crash_points import tiny_checkpoint, write_text
from tests.support.proofs import prove_here

#: What a command may end with: done, an error, usage, interrupted, terminated, killed.
ENDS = {0, 1, 2, 130, 143, -signal.SIGKILL, -signal.SIGTERM}
#: Steps within the tree that commands take, about; the adversary chooses among so many.
STEPS = {
    "quantize": 150,
    "calibrated": 500,
    "export": 250,
    "evaluate": 60,
    "compare": 60,
    "sensitivity": 60,
    "report": 30,
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command line.

    Attributes:
        kind: Which of the kinds it is.
        arguments: Its words.
        writes: Files and directories that it was to write.
        overwrites: Those that it was told to overwrite.
        makes: The output directory that is there when it ends well.
    """

    kind: str
    arguments: list[str]
    writes: set[str] = field(default_factory=set)
    overwrites: set[str] = field(default_factory=set)
    makes: str | None = None


@dataclass(kw_only=True)
class Tally:
    """What the sequences came to.

    Attributes:
        ends: Command and exit code → how often.
        deeds: What the adversary did → how often.
        sequences: How many were run.
        lost: What was found wrong: seed and what.
    """

    ends: Counter[str] = field(default_factory=Counter)
    deeds: Counter[str] = field(default_factory=Counter)
    sequences: int = 0
    lost: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the figures of another."""
        self.ends += other.ends
        self.deeds += other.deeds
        self.sequences += other.sequences
        self.lost += other.lost


def make_source(folder: Path) -> Path:
    """A tiny model, a text and a checkpoint of the model, to be copied into each tree."""
    tiny_checkpoint(folder / "S", 2)
    (folder / "text").mkdir()
    write_text(folder / "text" / "heldout.txt")
    goldstick.quantize(folder / "S", "rtn-w4a16-g32", output=folder / "a", proof="tensors")
    return folder


def run_sequence(source: Path, scratch: Path, seed: int, tally: Tally) -> None:
    """Run one sequence; what is wrong is added to the tally.

    Args:
        source: What :func:`make_source` made.
        scratch: A directory that does not exist yet; it is removed.
        seed: Decides everything but the time at which two commands at once do what.
        tally: Receives the figures.
    """
    chance = random.Random(seed)
    root = scratch / "tree"
    shutil.copytree(source, root)
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "letter.txt").write_text("theirs")
    ledger, log = Ledger(root=root), scratch / "log"
    for name in ("S", "text", "elsewhere"):
        ledger.put(contents_at(root, name))
    if chance.random() < 0.4:
        shutil.rmtree(root / "a")
    ledger.learn(set())
    for _ in range(chance.choice([0, 0, 1, 2, 3])):
        Adversary(root, log, chance.randrange(2**32), None).act(of_process=False)
    _take_down(log, ledger, tally)
    for _ in range(chance.randint(1, 4)):
        commands = [_command(chance) for _ in range(chance.choice([1, 1, 1, 1, 2]))]
        running = [_start(command, root, scratch, log, number, chance) for number, command in enumerate(commands)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in running]
        gone = _take_down(log, ledger, tally)
        overwritten = set().union(*(command.overwrites for command in commands))
        wrong = ledger.lost(overwritten)
        ledger.hand_over(overwritten)
        wrong += [f"{name} is left" for name in ledger.learn(set().union(*(command.writes for command in commands)))]
        for number, (command, end) in enumerate(zip(commands, ends, strict=True)):
            tally.ends[f"{command.kind} {end}"] += 1
            said = (scratch / f"said-{number}").read_text(errors="replace")
            alone = len(commands) == 1
            if end not in ENDS or "Traceback" in said or "did not expect" in said:
                wrong.append(f"{end}: {said[-600:]}")
            if (
                alone
                and end == 0
                and command.makes
                and command.makes not in gone
                and not ledger.is_whole(command.makes)
            ):
                wrong.append(f"there is no {command.makes}")
        if wrong:
            words = [" ".join(command.arguments) for command in commands]
            tally.lost.append(f"seed {seed}: {words}: {wrong[:4]}")
            break
    tally.sequences += 1
    shutil.rmtree(scratch)


def _command(chance: random.Random) -> Command:
    output = chance.choice(["a", "a", "a", "b", "S", "S/x", ".", "elsewhere", "report"])
    overwrite = ["--overwrite"] if chance.random() < 0.5 else []
    resume = ["--resume"] if chance.random() < 0.4 else []
    kind = chance.choice(
        ["quantize", "quantize", "calibrated", "calibrated", "export", "evaluate", "compare", "sensitivity", "report"]
    )
    calibration = ["--dataset", "text/heldout.txt", "--samples", "2", "--seq-len", "16"]
    model = chance.choice(["S", "a", "b"])
    arguments, makes, files = [kind], None, set[str]()
    if kind in ("quantize", "calibrated"):
        recipe = ["rtn-w4a16-g32"] if kind == "quantize" else ["gptq-w4a16-g32", *calibration, *resume]
        further = ["--format", "auto", "--format", "gptq"] if chance.random() < 0.15 else []
        arguments = ["quantize", chance.choice(["S", "S", "S", model]), "-o", output, "-r", *recipe, *further]
        makes = output
        files = {output, f"{output}-gptq"}
    elif kind == "export":
        arguments += [model, "-o", output, "--format", chance.choice(["native", "gptq"])]
        makes, files = output, {output}
    elif kind == "evaluate":
        arguments += [model, "--tasks", "text", "--limit", "1", "--data-dir", ".", "--report", output]
        files = {output, f"{output}/report.json", f"{output}/report.html"}
    elif kind == "compare":
        page = chance.choice(["page.html", "a", "b/page.html", "found.json"])
        arguments += ["S", model, "--html", page]
        files = {page}
    elif kind == "sensitivity":
        places = chance.choice([("found.json", "page.html"), ("page.html", "found.json"), ("a", "b")])
        arguments += ["S", "-r", "rtn-w4a16-g32", "--bits", "4", *calibration, "-o", places[0], "--html", places[1]]
        files = set(places)
    else:
        arguments += [model]
        files = {model, f"{model}/report.html"}
    overwrites = files if overwrite or kind == "report" else set[str]()
    return Command(kind=kind, arguments=arguments + overwrite, writes=files, overwrites=overwrites, makes=makes)


def _start(command: Command, root: Path, scratch: Path, log: Path, number: int, chance: random.Random) -> int:
    step = chance.randrange(1, STEPS[command.kind]) if chance.random() < 0.8 else None
    adversary = Adversary(root, log, chance.randrange(2**32), step)
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        code = _run(command, root, scratch / f"said-{number}", adversary)
    finally:
        os._exit(code)


def _run(command: Command, root: Path, said: Path, adversary: Adversary) -> int:
    """What the forked process does: the command, as the command line runs it."""
    from goldstick.cli import main

    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(root)
    os.environ["GOLDSTICK_CACHE"] = str(root / "cache")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.MonkeyPatch.context() as patch:
        for module in (finish, verify):
            patch.setattr(module, "prove", prove_here)
        adversary.watch()
        try:
            main(command.arguments, standalone_mode=True)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
    return 0


def _take_down(log: Path, ledger: Ledger, tally: Tally) -> set[str]:
    """Enter what the adversary did; what it took away."""
    gone: set[str] = set()
    if not log.exists():
        return gone
    for line in log.read_text().splitlines():
        deed, *names = json.loads(line)
        tally.deeds[deed] += 1
        if deed == "put":
            ledger.put(names[0])
        elif deed == "move":
            ledger.move(*names)
            gone.add(names[0])
        else:
            ledger.vanish(names[0])
            gone.add(names[0])
    log.unlink()
    return gone


def run_sequences(source: Path, scratch: Path, seeds: range, seconds: float = float("inf")) -> Tally:
    """Run sequences until they or the time are at an end."""
    tally, started = Tally(), time.monotonic()
    for seed in seeds:
        if time.monotonic() - started > seconds:
            break
        run_sequence(source, scratch / str(seed), seed, tally)
    return tally
