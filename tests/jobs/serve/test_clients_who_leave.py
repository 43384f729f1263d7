"""Clients who leave end their answers; and nothing that comes and goes makes the server larger."""

from __future__ import annotations

import gc
import json
import socket

import psutil
import pytest
import torch

from goldstick.jobs.serve.answer import Answer
from tests.support.served import NAME, Served, wait_until

LONG = {"model": NAME, "prompt": "The harbour", "max_tokens": 500, "temperature": 2.0, "seed": 1}


def sent(server: Served, **fields: object) -> socket.socket:
    """A connection that has asked."""
    body = json.dumps({**LONG, **fields}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_when_its_client_leaves(server: Served, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[int] = []
    finish = server.engine._finish

    def noted(answer: Answer, last: object) -> None:
        finished.append(len(answer.ids))
        finish(answer, last)  # type: ignore[arg-type]

    monkeypatch.setattr(server.engine, "_finish", noted)
    connection = sent(server, stream=stream, n=2)
    wait_until(lambda: server.engine.unfinished == 2)
    if stream:
        assert connection.recv(10)
    connection.close()
    wait_until(lambda: server.engine.unfinished == 0)
    wait_until(lambda: len(finished) == 2)
    assert max(finished) < 400


def test_a_client_that_closes_its_stream_ends_the_answer(server: Served) -> None:
    with server.client() as client:
        stream = client.completions.create(stream=True, **LONG)  # type: ignore[call-overload]
        assert next(iter(stream)).choices
        assert server.engine.unfinished == 1
        stream.close()
    wait_until(lambda: server.engine.unfinished == 0)
    assert server.engine.alive


def test_memory_does_not_grow_with_what_was_asked(server: Served) -> None:
    """Neither tensors nor answers are left, whole ones and those that were given up; and the process stays its size."""

    def asked(times: int) -> None:
        for time in range(times):
            server.post("/v1/completions", prompt=f"The harbour {time % 7} " * 12, max_tokens=8, temperature=0)
            connection = sent(server, stream=bool(time % 2))
            wait_until(lambda: server.engine.unfinished > 0)
            connection.close()
            wait_until(lambda: server.engine.unfinished == 0)

    def held() -> tuple[int, int]:
        gc.collect()
        kinds = [type(one) for one in gc.get_objects()]
        return sum(issubclass(kind, torch.Tensor) for kind in kinds), kinds.count(Answer)

    asked(14)
    before, size = held(), psutil.Process().memory_info().rss
    asked(28)
    tensors, answers = held()
    assert answers <= before[1] + 1
    assert tensors <= before[0] + 8
    assert psutil.Process().memory_info().rss < size + 64 * 2**20
