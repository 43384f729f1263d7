"""What is bad is refused with OpenAI's error object and the status that is right, and the server goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from goldstick.evaluation.language_model import LanguageModel
from goldstick.jobs.serve.host_names import for_this_machine
from goldstick.jobs.serve.limits import Limits
from goldstick.jobs.serve.server import listening_socket
from tests.support.served import NAME, PROXY, Served, served, wait_until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEAD = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
SAID: list[dict[str, Any]] = [{"role": "user", "content": "Where?"}]

#: Path, fields, status, and what the message says.
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    (COMPLETIONS, {}, 400, "prompt: Field required"),
    (COMPLETIONS, {"prompt": "a", "model": "another"}, 404, "There is no model 'another' here, only 'tested'"),
    (COMPLETIONS, {"prompt": "a", "model": None}, 400, "model: Input should be a valid string"),
    (COMPLETIONS, {"prompt": 7}, 400, "prompt"),
    (COMPLETIONS, {"prompt": []}, 400, "no prompts or tokens"),
    (COMPLETIONS, {"prompt": [[]]}, 400, "no prompts or tokens"),
    (COMPLETIONS, {"prompt": [1, "a"]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [3072]}, 400, "from 0 to 3071"),
    (COMPLETIONS, {"prompt": [-1]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [2**40]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": ["a"] * 17}, 400, "may ask for 16 answers"),
    (COMPLETIONS, {"prompt": ["a"] * 9, "n": 2}, 400, "may ask for 16 answers"),
    (COMPLETIONS, {"prompt": "a", "n": 0}, 400, "n: Input should be greater than or equal to 1"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 512}, 400, "1 tokens and 512 are asked for, and the context holds 512"),
    (COMPLETIONS, {"prompt": "river " * 600}, 400, "the context holds 512"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": "5"}, 400, "max_tokens: Input should be a valid integer"),
    (COMPLETIONS, {"prompt": "a", "temperature": 2.5}, 400, "temperature"),
    (COMPLETIONS, {"prompt": "a", "temperature": float("nan")}, 400, "temperature"),
    (COMPLETIONS, {"prompt": "a", "top_p": 0}, 400, "top_p"),
    (COMPLETIONS, {"prompt": "a", "stop": ""}, 400, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": ["x"] * 17}, 400, "stop"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 21}, 400, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"3": 5}}, 400, "'logit_bias' is not supported"),
    (COMPLETIONS, {"prompt": "a", "frequency_penalty": 0.5}, 400, "'frequency_penalty' is not supported"),
    (COMPLETIONS, {"prompt": "a", "echo": True}, 400, "'echo' is not supported"),
    (COMPLETIONS, {"prompt": "a", "temprature": 1}, 400, "'temprature' is no field that this server knows"),
    (COMPLETIONS, {"prompt": "a", "stream": "yes"}, 400, "stream"),
    (COMPLETIONS, {"prompt": None}, 400, "prompt: Input should be a valid string, or: Input should be a valid list."),
    (COMPLETIONS, {"prompt": "a", "stop": 5}, 400, "stop: Input should be a valid string, or: Input should be a valid"),
    (COMPLETIONS, {"prompt": [1] * 512}, 400, "the context holds 512 together: shorten the prompt."),
    (COMPLETIONS, {"prompt": [1] * 510, "max_tokens": 3}, 400, "shorten the prompt, or ask for fewer tokens."),
    (COMPLETIONS, {"prompt": "\ud800"}, 400, "unicode string"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": "hello"}, 400, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages.0.content"),
    (CHAT, {"messages": [{"role": "tool", "content": "4"}]}, 400, "messages.0.role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400,
     "'image_url' are not read here, only text"),
    (CHAT, {"messages": SAID, "tools": [{"type": "function"}]}, 400, "'tools' is not supported"),
    (CHAT, {"messages": SAID, "response_format": {"type": "json_object"}}, 400, "'response_format' is not supported"),
    (CHAT, {"messages": SAID, "top_logprobs": 2}, 400, "needs logprobs=true"),
    (CHAT, {"messages": SAID, "stream_options": {"include_all": True}}, 400, "stream_options.include_all"),
    (CHAT, {"messages": SAID, "max_completion_tokens": 600}, 400, "600 are asked for"),
]  # fmt: skip


def is_error(body: Any) -> str:
    """OpenAI's error object, and nothing else; its message."""
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    message: str = body["error"]["message"]
    assert 10 < len(message) < 1000 and "Traceback" not in message
    return message


@pytest.mark.parametrize(("path", "fields", "status", "says"), BAD)
def test_a_bad_request_is_refused_with_its_reason(
    server: Served, path: str, fields: dict[str, Any], status: int, says: str
) -> None:
    found, body = server.post(path, **fields)
    assert says in is_error(body)
    assert found == status


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "says"),
    [
        ("POST", COMPLETIONS, b"{", None, 400, "is no JSON"),
        ("POST", COMPLETIONS, b"\xff\xfe", None, 400, "is no JSON"),
        ("POST", COMPLETIONS, b"[" * 100_000, None, 400, "is no JSON"),
        ("POST", COMPLETIONS, b"[1]", None, 400, "valid dictionary"),
        ("POST", COMPLETIONS, b"", None, 400, "required"),
        ("POST", COMPLETIONS, b"{}", {"Content-Type": "text/plain"}, 415, "Send JSON"),
        ("GET", COMPLETIONS, None, None, 405, "Method Not Allowed"),
        ("GET", "/v1/engines", None, None, 404, "Not Found. The paths here are"),
        ("GET", "/v1/models/another", None, None, 404, "no model 'another'"),
        ("GET", "/docs", None, None, 404, "Not Found"),
    ],
)
def test_what_is_no_request_is_refused(
    server: Served, method: str, path: str, body: bytes | None, headers: Any, status: int, says: str
) -> None:
    found, answer = server.raw(method, path, body, headers)
    assert says in is_error(answer)
    assert found == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:80", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("box.LOCALHOST.", 200),
        ("192.168.0.7:1", 200),
        (PROXY.upper(), 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("notlocalhost", 403),
        ("[evil]", 403),
        ("", 403),
    ],
)
def test_a_name_that_is_not_this_machines_is_refused(server: Served, host: str, status: int) -> None:
    """A page whose name was made to lead here sends that name; nothing it asks is answered."""
    body = json.dumps({"model": NAME, "prompt": "a", "max_tokens": 1}).encode()
    found, said = server.raw("POST", COMPLETIONS, body, {"Content-Type": "application/json", "Host": host})
    assert (found, server.raw("GET", "/v1/models", None, {"Host": host})[0]) == (status, status)
    assert status == 200 or "ask localhost" in said["error"]["message"]


def test_only_a_server_for_this_machine_minds_its_name() -> None:
    with listening_socket("127.0.0.1", 0) as here, listening_socket("0.0.0.0", 0) as everywhere:
        assert for_this_machine(here)
        assert not for_this_machine(everywhere)


def test_the_client_raises_what_belongs_to_the_status(server: Served) -> None:
    client = server.client()
    with pytest.raises(openai.NotFoundError, match="only 'tested'") as missing:
        client.completions.create(model="another", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="context holds 512") as long:
        client.completions.create(model=NAME, prompt="a", max_tokens=1000)
    assert long.value.code == "context_length_exceeded"


def test_fields_that_ask_for_nothing_are_taken(server: Served) -> None:
    usual = {"frequency_penalty": 0, "presence_penalty": 0.0, "user": "me", "metadata": {"a": "b"}, "logit_bias": None}
    status, _ = server.post(COMPLETIONS, prompt="a", max_tokens=1, best_of=1, echo=False, suffix=None, **usual)
    assert status == 200
    status, _ = server.post(CHAT, messages=SAID, max_tokens=1, tools=[], response_format={"type": "text"}, **usual)
    assert status == 200


def test_an_answer_that_a_client_sends_back_whole_is_taken(server: Served) -> None:
    client = server.client()
    asked: Any = {"model": NAME, "max_tokens": 2, "temperature": 0}
    answer = client.chat.completions.create(messages=SAID, **asked).choices[0].message  # type: ignore[arg-type]
    sent = {**answer.model_dump(), "annotations": []}
    assert {"tool_calls", "audio"} <= set(sent)
    assert client.chat.completions.create(messages=[*SAID, sent, *SAID], **asked).choices[0].finish_reason  # type: ignore[list-item]
    status, body = server.post(CHAT, messages=[{**SAID[0], "tool_calls": [{}]}])
    assert status == 400 and "messages.0.tool_calls" in is_error(body)


def test_the_usual_length_of_a_completion_is_cut_to_the_context(server: Served) -> None:
    status, body = server.post(COMPLETIONS, prompt=[9] * 505, temperature=0)
    assert status == 200
    assert body["usage"]["completion_tokens"] <= 7


@pytest.fixture(scope="module")
def strict(language_model: LanguageModel) -> Iterator[Served]:
    """A server that takes little."""
    limits = Limits(running=1, waiting=0, context=64, body_bytes=1000, body_seconds=0.3)
    with served(language_model, limits, template=None) as running:
        yield running


def test_a_request_that_is_too_large_is_not_read(strict: Served) -> None:
    status, body = strict.post(COMPLETIONS, prompt="a" * 1000)
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"258\r\n" + b"a" * 600 + b"\r\n") * 2)
        assert b" 413 " in connection.recv(100)


@pytest.mark.parametrize(("kind", "refused"), [("application/json", b" 413 "), ("text/plain", b" 415 ")])
def test_a_client_that_sends_before_it_listens_sees_why_it_is_refused(
    server: Served, kind: str, refused: bytes
) -> None:
    """More than the buffers of a connection hold; one that is closed with something unread loses what it said last."""
    head = HEAD.replace(b"application/json", kind.encode())
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head + b"Content-Length: 12000000\r\n\r\n" + b" " * 12_000_000)
        assert refused in connection.recv(100)


def test_a_client_that_asks_before_it_sends_is_answered_at_once(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(HEAD + b"Content-Length: 12000000\r\nExpect: 100-continue\r\n\r\n")
        assert b" 413 " in connection.recv(100)


def test_a_request_that_never_comes_whole_is_given_up(strict: Served) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b" 408 " in answer.partition(b"\r\n")[0]
    assert "0.3 seconds" in is_error(json.loads(answer.partition(b"\r\n\r\n")[2]))


def test_a_model_without_a_chat_template_says_so(strict: Served) -> None:
    status, body = strict.post(CHAT, messages=SAID)
    assert status == 400
    assert "no chat template" in is_error(body) and "/v1/completions" in is_error(body)


def test_more_answers_than_there_is_ever_room_for_are_not_to_be_asked_for_again(strict: Served) -> None:
    status, body = strict.post(COMPLETIONS, prompt=["a", "b"], max_tokens=1)
    assert status == 400
    assert "2 answers are asked for at once, and 1 may be: ask for fewer" in is_error(body)


def test_a_template_that_fails_is_an_error_of_the_request(language_model: LanguageModel) -> None:
    with served(language_model, template="{{ raise_exception('roles must alternate') }}") as running:
        status, body = running.post(CHAT, messages=SAID)
        assert status == 400
        assert "roles must alternate" in is_error(body)


def test_more_than_wait_are_told_to_come_again(strict: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client, decoder, go_on = strict.client(), strict.engine._decoder, threading.Event()
    advance = decoder.advance
    found: list[tuple[int, Any]] = []

    def held(*arguments: Any) -> Any:
        assert go_on.wait(60)
        return advance(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "advance", held)
        first = threading.Thread(target=lambda: found.append(strict.post(COMPLETIONS, prompt="a", max_tokens=1)))
        first.start()
        wait_until(lambda: strict.engine.unfinished == 1)
        with pytest.raises(openai.RateLimitError, match="ask again in a while") as full:
            client.completions.create(model=NAME, prompt="a")
        assert full.value.response.headers["retry-after"] == "1"
        go_on.set()
        first.join()
    assert found[0][0] == 200
    assert client.completions.create(model=NAME, prompt="a", max_tokens=1).choices


def test_an_answer_that_takes_too_long_is_an_error_whole_or_streamed(
    strict: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, client = strict.engine._decoder, strict.client()
    advance = decoder.advance

    def slow(*arguments: Any) -> Any:
        time.sleep(0.1)
        return advance(*arguments)

    monkeypatch.setattr(decoder, "advance", slow)
    monkeypatch.setattr(strict.engine, "limits", replace(strict.engine.limits, seconds=0.5))
    with pytest.raises(openai.APIStatusError, match=r"longer than 0\.5 seconds") as late:
        client.completions.create(model=NAME, prompt="a", max_tokens=60, temperature=0)
    assert late.value.status_code == 504
    with pytest.raises(openai.APIError, match=r"longer than 0\.5 seconds"):
        list(client.completions.create(model=NAME, prompt="a", max_tokens=60, temperature=0, stream=True))


def test_a_model_that_fails_is_an_error_of_the_server(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("the machine is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(server.engine._decoder, "advance", fails)
        status, body = server.post(COMPLETIONS, prompt="a")
    assert status == 500
    assert "the machine is on fire" in is_error(body)
    assert server.post(COMPLETIONS, prompt="a", max_tokens=1)[0] == 200
