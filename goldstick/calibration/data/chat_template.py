"""Chat templates, run where they can take neither much time nor much memory."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from goldstick.calibration.data.template_worker import MEMORY, SECONDS
from goldstick.core.fresh_process import fresh_command, fresh_environment
from goldstick.errors import DataError


class ChatTemplates:
    """Runs chat templates in a process of its own, which it starts when the first conversation comes.

    To be used in a ``with`` statement, whose end ends the process.
    """

    def __init__(self) -> None:
        self._worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> ChatTemplates:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._end()

    def write(self, template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """What a template writes for a conversation, as transformers runs it.

        Args:
            template: The template's text.
            messages: The conversation.
            variables: What else the template sees, such as the tokenizer's special tokens.

        Raises:
            DataError: The template fails, takes too long or too much memory, or writes too much; the message names its
                line where that is known.
        """
        try:
            request = json.dumps(
                {"template": template, "messages": messages, "variables": variables},
                default=lambda value: f"<{type(value).__name__}>",  # as transformers shows it to a template
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"the conversation is no plain data: {error}") from error
        answer = self._ask(request)
        if "text" not in answer:
            place = f", in line {answer['line']}" if answer["line"] else ""
            raise DataError(f"{answer['error']}{place}")
        text: str = answer["text"]
        return text

    def _ask(self, request: str) -> dict[str, Any]:
        requests, answers = self._pipes()
        line = ""
        with suppress(BrokenPipeError):
            requests.write(request + "\n")
            requests.flush()
            line = answers.readline()
        if not line.endswith("\n"):
            raise DataError(self._why_it_ended())
        answer: dict[str, Any] = json.loads(line)
        if answer.get("error", "").startswith("MemoryError"):
            self._end()
            raise DataError(f"it takes more than {MEMORY // 2**20} MiB of memory")
        return answer

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._worker is None:
            self._worker = _started()
        assert self._worker.stdin is not None and self._worker.stdout is not None
        return self._worker.stdin, self._worker.stdout

    def _why_it_ended(self) -> str:
        code = self._end()
        if code == -signal.SIGPROF:
            return f"it runs longer than {SECONDS} seconds"
        return f"the process that runs it ended with code {code}"

    def _end(self) -> int | None:
        if self._worker is None:
            return None
        worker, self._worker = self._worker, None
        assert worker.stdin is not None and worker.stdout is not None
        with suppress(BrokenPipeError):
            worker.stdin.close()
        worker.stdout.close()
        return worker.wait()


def _started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        fresh_command("goldstick.calibration.data.template_worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="ascii",
        env=fresh_environment(),
    )
