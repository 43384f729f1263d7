"""The process in which chat templates run: they come with a checkpoint, and are code.

A request of JSON on each line of standard input, an answer
on each line of standard output. transformers' sandbox keeps a template from files and from Python; this process keeps
it from time and memory: ``'a' * 10**12`` is one expression, which nothing inside of Python could interrupt.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

#: Seconds of processor time for one conversation: an error that names the template's line, and a second later the end.
SECONDS = 3
#: Bytes that may be taken for all conversations, beside what the process has when it starts.
MEMORY = 512 * 2**20
_MESSAGE_LIMIT = 500


def output_limit(request: str) -> int:
    """Characters that a template may write for a request: many times what it was given."""
    return 2**20 + 20 * len(request)


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"it runs longer than {SECONDS} seconds")


def _answer(line: str) -> dict[str, Any]:
    """What a template writes, or why it does not: ``text``, or ``error`` and ``line``."""
    from transformers.utils.chat_template_utils import render_jinja_template

    request: dict[str, Any] = json.loads(line)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS + 1)
    try:
        rendered: tuple[list[str], Any] = render_jinja_template(  # type: ignore[assignment]  # it says it gives text
            conversations=[request["messages"]], chat_template=request["template"], **request["variables"]
        )
        text = rendered[0][0]
        if len(text) > output_limit(line):
            return {"error": f"it writes more than {output_limit(line):,} characters", "line": None}
        return {"text": text}
    except Exception as error:
        words = str(error) if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        return {"error": " ".join(words[:_MESSAGE_LIMIT].split()), "line": _line(error)}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _line(error: BaseException) -> int | None:
    """The line of the template in which it failed, where that is known."""
    from jinja2 import TemplateSyntaxError

    found = error.lineno if isinstance(error, TemplateSyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _limit_memory() -> None:
    """Where the system says how much address space there is in use, and keeps to a limit: on Linux."""
    with suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = used + MEMORY if hard == resource.RLIM_INFINITY else min(used + MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def main() -> None:
    """Answer until there are no more requests, or memory ran out."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints is no answer
    _answer(json.dumps({"messages": [], "template": "", "variables": {}}))  # imports before the limit
    signal.signal(signal.SIGVTALRM, _out_of_time)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(line)) + "\n")
        answers.flush()
