"""``goldstick chat``: lines from a pipe, and a terminal with Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import run


@pytest.fixture
def template(tmp_path: Path) -> str:
    """A chat template that writes what was said."""
    file = tmp_path / "template.jinja"
    file.write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    return str(file)


def test_lines_are_said_one_after_the_other_and_remembered_until_reset(template: str) -> None:
    said = "The harbour lies\n\nIn the square\n/reset\nIn the square\n/quit\nnever\n"
    options = ("--chat-template", template, "--temperature", "0", "--max-new-tokens", "6")
    result = run("chat", "reference", *options, said=said)
    assert result.exit_code == 0, result.output

    def gone_on(text: str) -> str:
        found = run("generate", "reference", "--max-new-tokens", "6", "--prompt", text).stdout
        return found.removeprefix(text).removesuffix("\n")

    first = gone_on("The harbour lies ")
    second, third = gone_on(f"The harbour lies {first} In the square "), gone_on("In the square ")
    assert second != third
    assert result.stdout == f"{first}\n{second}\n{third}\n"
    assert result.stderr.count("(forgotten)") == 1


def test_a_conversation_that_outgrows_the_context_goes_on(template: str) -> None:
    long = "river " * 150
    options = ("--chat-template", template, "--temperature", "0", "--max-new-tokens", "6")
    result = run("chat", "reference", *options, said=f"{long}\n" * 4)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4
    assert "messages no longer fit" in result.stderr
    refused = run("chat", "reference", *options, said=f"{'river ' * 600}\n")
    assert refused.exit_code == 2
    assert "say it in fewer words" in " ".join(refused.stderr.split())


def test_what_is_no_command_is_said(template: str) -> None:
    result = run("chat", "reference", "--chat-template", template, said="/rest\n")
    assert result.exit_code == 0
    assert "There is no /rest. /reset forgets" in result.stderr


def test_a_model_without_a_chat_template_is_refused() -> None:
    result = run("chat", "reference", said="hello\n")
    assert result.exit_code == 2
    assert "no chat template" in " ".join(result.stderr.split())


def test_bytes_that_are_no_text_are_refused(template: str) -> None:
    result = run("chat", "reference", "--chat-template", template, said=b"\xff\n")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-c", "from goldstick.cli import main; main(prog_name='goldstick')", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def until(self, pattern: str, seconds: float = 120.0) -> str:
        """What is shown up to something; it is taken away."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < end, f"{pattern!r} does not come after {self.shown!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.shown += os.read(self.master, 4096).decode()
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())


def test_in_a_terminal_ctrl_c_stops_an_answer_each_time_and_quit_ends(template: str) -> None:
    terminal = Terminal(
        "chat", "reference", "--chat-template", template, "--max-new-tokens", "250", "--temperature", "2", "--seed", "1"
    )
    try:
        assert "/reset forgets" in terminal.until("> ")
        for _ in range(2):
            terminal.types("The harbour\n")
            terminal.until("The harbour\r\n.")
            terminal.process.send_signal(signal.SIGINT)
            terminal.until(r"\(stopped\)\r\n> ")
        terminal.types("/quit\n")
        assert terminal.process.wait(timeout=60) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
