"""``goldstick serve`` as a process: it says where it is, answers, and ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from tests.support.commands import run
from tests.support.served import wait_until


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the bundled model, and its address."""
    command = [sys.executable, "-c", "from goldstick.cli import main; main(prog_name='goldstick')"]
    process = subprocess.Popen(
        [*command, "serve", "reference", "--port", "0", "--threads", "1", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.fullmatch(r"reference is served at (http://127\.0\.0\.1:\d+/v1); Ctrl-C stops it\n", said)
        assert found is not None, said + process.stdout.read()
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_it_answers_and_when_told_to_stop_answers_do_not_hold_it_for_ever() -> None:
    with serving("--grace", "0.2") as (process, address):
        client = openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=120)
        done = client.completions.create(model="reference", prompt="The harbour lies", max_tokens=5, temperature=0)
        assert done.choices[0].text == " on the river Luna."
        heard: list[str] = []

        def asks_for_much() -> None:
            try:
                client.completions.create(
                    model="reference", prompt="The harbour", max_tokens=500, temperature=2.0, seed=1, n=16
                )
            except openai.APIStatusError as error:
                heard.append(f"{error.status_code} {error.message}")

        asking = threading.Thread(target=asks_for_much)
        asking.start()
        health = f"{address.removesuffix('/v1')}/health"
        wait_until(lambda: '"unfinished":0' not in urllib.request.urlopen(health).read().decode())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        asking.join()
        assert len(heard) == 1 and heard[0].startswith("503")
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"


def test_a_port_that_is_taken_is_known_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from goldstick.jobs.serve import open_model

    monkeypatch.setattr(open_model, "open_model", lambda *_, **__: pytest.fail("it was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("serve", "reference", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "Nothing can listen at 127.0.0.1" in result.stderr and "give another" in result.stderr
    result = run("serve", "reference", "--host", "192.0.2.1", "--port", "0")
    assert result.exit_code == 2 and "Nothing can listen at 192.0.2.1" in result.stderr


def test_a_model_of_another_kind_is_refused(pristine: Path) -> None:
    result = run("serve", str(pristine), "--port", "0")
    assert result.exit_code == 1
    assert "its tokenizer cannot be read" in " ".join(result.stderr.split())


def test_a_context_beyond_the_models_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldstick.jobs.serve.server.serve", lambda *_: None)
    for asked, noted in (("99999", True), ("512", False)):
        done = run("serve", "reference", "--port", "0", "--max-context", asked)
        assert done.exit_code == 0, done.output
        assert ("the context stays at the model's 512 tokens" in done.stderr) == noted
