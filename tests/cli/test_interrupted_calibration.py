"""A calibrated run that a signal or a full disk stops says how to go on, and then gives the bytes of one left alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from goldstick.checkpoint.source import open_tensors
from goldstick.jobs.save import finish
from tests.support.commands import run
from tests.support.interrupted_commands import contents, refused_where_files_end, wait_behind_a_block
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer
from tests.support.warm_processes import WarmProcess, command


@dataclass(frozen=True, kw_only=True)
class Job:
    """A calibrated run.

    Attributes:
        arguments: Its arguments but for ``-o``.
        undisturbed: The files that it gives when nothing disturbs it, but for the report.
        directory: Where these lie.
    """

    arguments: tuple[str, ...]
    undisturbed: dict[str, bytes]
    directory: Path

    def finish(self, output: Path) -> None:
        """Go on with what was stopped; the bytes must be those of the run that nothing disturbed."""
        result = run("quantize", *self.arguments, "-o", str(output), "--resume")
        assert result.exit_code == 0, result.output
        assert without_report(output) == self.undisturbed
        assert [path.name for path in output.parent.iterdir()] == ["out"]


def without_report(directory: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(directory).items() if Path(name).stem != "report"}


@pytest.fixture(autouse=True, scope="module")
def proof_here() -> Iterator[None]:
    """What runs in this process is proven here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        yield


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A tiny model of two blocks, of which little is rounded, so that a block is larger than all hidden states."""
    folder = tmp_path_factory.mktemp("calibrated")
    FAMILIES["llama_gqa"]().save_pretrained(folder / "llama")
    write_tokenizer(folder / "llama")
    (folder / "text.txt").write_text("the cat sat on a mat and sang. " * 20)
    (folder / "recipe.yaml").write_text('stages: [{gptq: {scheme: w4a16-g32, targets: {include: ["*o_proj"]}}}]')
    data = ("--dataset", str(folder / "text.txt"), "--samples", "2", "--seq-len", "16", "--threads", "1")
    return (str(folder / "llama"), "--recipe", str(folder / "recipe.yaml"), *data)


@pytest.fixture(scope="module")
def waiting(
    arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[signal.Signals, tuple[Path, WarmProcess]]]:
    """For each signal a run that waits for it behind its first block; they start at the same time."""
    started = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        output = tmp_path_factory.mktemp(number.name) / "out"
        started[number] = output, command(wait_behind_a_block, "quantize", *arguments, "-o", str(output))
    yield started
    for _, process in started.values():
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def job(waiting: object, arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The run that nothing disturbs, while the others start."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    result = run("quantize", *arguments, "-o", str(output))
    assert result.exit_code == 0, result.output
    return Job(arguments=arguments, undisturbed=without_report(output), directory=output)


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "Terminated"), (signal.SIGINT, 130, "Interrupted")]
)
def test_a_signal_leaves_what_is_finished_and_the_way_to_go_on(
    number: signal.Signals,
    code: int,
    word: str,
    job: Job,
    waiting: dict[signal.Signals, tuple[Path, WarmProcess]],
) -> None:
    output, process = waiting[number]
    assert process.stdout.readline() == "a block is finished\n"
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code
    assert errors.strip().splitlines()[-1] == (
        f"{word}; 1 finished block kept in {output.with_name('.out.work')}: give --resume to go on from there."
    )
    assert "Traceback" not in errors
    assert [path.name for path in output.parent.iterdir()] == [".out.work"]
    job.finish(output)


def test_a_full_disk_leaves_what_is_finished_and_the_way_to_go_on(job: Job, tmp_path: Path) -> None:
    output = tmp_path / "out"
    second = [info.start for name, info in open_tensors(job.directory).items() if ".layers.1." in name]
    limit = min(second) + 1000
    message = refused_where_files_end(limit, *job.arguments, "-o", str(output))
    for part in ("failed after", "Free space", "1 finished block kept in", "give --resume"):
        assert part in message
    assert not output.exists()
    job.finish(output)


def test_going_on_with_what_is_finished_ends_quietly(job: Job) -> None:
    result = run("quantize", *job.arguments, "-o", str(job.directory), "--resume")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "finished already" in result.stderr
    assert without_report(job.directory) == job.undisturbed
    result = run("quantize", *job.arguments, "-o", str(job.directory), "--resume", "--samples", "1")
    assert result.exit_code == 1
    assert "made with another recipe and another calibration data" in result.stderr
