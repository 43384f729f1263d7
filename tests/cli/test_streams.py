"""Standard streams that are closed, full or of few signs, and readers that leave: what is done stays done."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goldstick.errors import UsageError
from goldstick.jobs.save import finish
from tests.support.commands import run
from tests.support.proofs import prove_here

MAIN = [sys.executable, "-c", "from goldstick.cli import main; main()"]


@pytest.fixture(autouse=True, scope="module")
def proof_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        yield


def shell(redirection: str, *arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """Run a command under a shell's redirection."""
    line = f'"$@" {redirection}'
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = ["bash", "-c", line, "bash", *MAIN, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">&-", 1, "Error: Standard output cannot be written: Bad file descriptor.\n"),
        (">/dev/full", 1, "Error: Standard output cannot be written: No space left on device.\n"),
        (">/dev/full 2>/dev/full", 1, ""),
        (">&- 2>&- <&-", 1, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line_and_by_the_exit_code(redirection: str, code: int, said: str) -> None:
    done = shell(redirection, "--help")
    assert (done.returncode, done.stderr) == (code, said)


def test_a_table_that_nobody_reads_ends_silently() -> None:
    done = shell("| true; exit ${PIPESTATUS[0]}", "recipes", "list")
    assert (done.returncode, done.stderr) == (141, "")


def test_what_is_wrong_is_an_exit_code_where_nothing_can_be_said() -> None:
    assert shell("2>&-", "quantize", "--nonsense").returncode == 2
    assert shell("2>&1 >&- | true; exit ${PIPESTATUS[0]}", "quantize", "--nonsense").returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_takes_tables_and_json(encoding: str) -> None:
    script = """
import sys
sys.argv[1:] = ["both"]
from goldstick.cli import main
from goldstick.cli.console import console, print_json
@main.command()
def both():
    print_json({"σ": "×😀", "file": "a\\udcff"})
    console().print("3×4 σ 😀 \\udcff")
main()
"""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    text, _, table = done.stdout.decode(encoding).rpartition("}\n")
    assert json.loads(text + "}") == {"σ": "×😀", "file": "a\udcff"}
    assert table.startswith("3")


def test_a_closed_stream_is_not_the_next_file_that_is_opened(tmp_path: Path) -> None:
    """Else what a library prints would land in the file that is written."""
    script = """
import os, sys
sys.argv[1:] = ["write"]
from goldstick.cli import main
@main.command()
def write():
    with open("file", "w") as file:
        for number in (1, 2):
            try:
                os.write(number, b"noise")
            except OSError:
                pass
        file.write("content")
main()
"""
    command = ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", sys.executable, "-c", script]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "file").read_text() == "content"


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


#: Command → what shows its result, and what that lies in. ``{made}`` is a checkpoint, ``{source}`` a model.
SHOWN = {
    "quantize {source} -o {here}/out -r rtn-w4a16-g32": ("goldstick.report.terminal.print_report", "out"),
    "quantize {source} -o {here}/out -r rtn-w4a16-g32 --json": ("goldstick.cli.console.says_utf8", "out"),
    "export {made} --format native -o {here}/out --json": ("goldstick.cli.console.says_utf8", "out"),
    "compare {source} {made} --html {here}/page.html": (
        "goldstick.report.comparison_tree.print_model_comparison",
        "page.html",
    ),
    "compare {source} {made} --html {here}/page.html --json": ("goldstick.cli.console.says_utf8", "page.html"),
    "evaluate reference --tasks text --limit 1 --report {here}/report": (
        "goldstick.report.terminal.print_evaluation",
        "report/report.json",
    ),
}


@pytest.mark.parametrize("command", SHOWN)
def test_a_result_that_is_in_place_is_no_failure_where_it_cannot_be_shown(
    command: str, pristine: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows, place = SHOWN[command]
    monkeypatch.setattr(shows, no_space)
    result = run(*command.format(source=pristine, made=made, here=tmp_path).split())
    assert result.exit_code == 0, result.output
    assert "note: the result could not be shown ([Errno 28] No space left on device); see" in result.stderr
    assert str(tmp_path / place.split("/")[0]) in result.stderr
    assert (tmp_path / place).exists()


def test_a_result_that_lies_nowhere_else_is_lost_where_it_cannot_be_shown(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.cli.console.says_utf8", no_space)
    assert run("inspect", str(made), "--json").exit_code == 1


def test_a_failed_push_says_that_the_checkpoint_is_finished_and_how_to_push_it(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("quantize", str(pristine), "-r", "rtn-w4a16-g32", "--push-to-hub", "me/mine", "-o")
    result = run(*arguments, str(tmp_path / "out"))
    assert result.exit_code == 1
    message = f"The checkpoint is finished and lies in {tmp_path / 'out'}, but was not pushed to me/mine."
    assert message in result.stderr
    assert f"'hf upload me/mine {tmp_path / 'out'}' pushes it" in result.stderr

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("goldstick.checkpoint.hub.push_to_hub", interrupt)
    result = run(*arguments, str(tmp_path / "other"))
    assert result.exit_code == 130
    assert f"{tmp_path / 'other'} is finished and in its place" in result.stderr


def test_what_is_in_place_is_named_where_a_further_format_fails(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("goldstick.api.export", fail)
    formats = ("--format", "native", "--format", "compressed-tensors", "--push-to-hub", "me/mine")
    result = run("quantize", str(pristine), "-r", "rtn-w4a16-g32", "-o", str(tmp_path / "out"), *formats)
    assert result.exit_code == 143
    assert f"Terminated; {tmp_path / 'out'} is finished and in its place. Nothing was pushed" in result.stderr


@pytest.mark.parametrize("said", ["mend it there", "mend it there."])
def test_what_is_said_of_an_error_on_its_way_is_a_sentence_of_its_own(
    said: str, pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, end in ((UsageError, "mend it there. 2 blocks are kept.\n"), (RuntimeError, "kept. Run again with ")):

        def fail(*_: object, kind: type[Exception] = kind, **__: object) -> None:
            error = kind(said)
            error.add_note("2 blocks are kept.")
            raise error

        monkeypatch.setattr("goldstick.api.quantize", fail)
        result = run("quantize", str(pristine), "-r", "rtn-w4a16-g32", "-o", str(tmp_path / "out"))
        assert end in result.stderr and "mend it there. 2 blocks are kept." in result.stderr


def test_a_path_that_libraries_cannot_open_is_refused_before_any_work(pristine: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/out\xff")
    for arguments in ((str(pristine), "-o", odd), (odd, "-o", str(tmp_path / "out"))):
        result = run("quantize", *arguments, "-r", "rtn-w4a16-g32")
        assert result.exit_code == 2
        assert "out\\udcff has bytes that are not UTF-8" in result.stderr
    assert list(tmp_path.iterdir()) == []
