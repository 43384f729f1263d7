"""A server in a thread of the test's process, and clients for it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from goldstick.evaluation.language_model import LanguageModel
from goldstick.jobs.serve.engine import Engine
from goldstick.jobs.serve.limits import Limits
from goldstick.jobs.serve.prompts import Prompts
from goldstick.jobs.serve.server import Server, listening_socket

NAME = "tested"
PROXY = "models.example"
TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }} {% endfor %}"


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that runs."""

    engine: Engine
    port: int

    def client(self, **options: Any) -> OpenAI:
        """The official client, which does not ask again."""
        options = {"max_retries": 0, "timeout": 60, **options}
        return OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", **options)

    def raw(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """A request of whatever bytes: the status, and the JSON that came back."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            kind = {"Content-Type": "application/json"} if body is not None and headers is None else {}
            connection.request(method, path, body, headers or kind)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """A request of JSON to the model."""
        return self.raw("POST", path, json.dumps({"model": NAME, **fields}).encode())


@contextmanager
def served(
    language_model: LanguageModel, limits: Limits | None = None, template: str | None = TEMPLATE
) -> Iterator[Served]:
    """Serve a model at a free port of this machine."""
    with (
        Engine(language_model, limits) as engine,
        Prompts(language_model, engine.tokenizer_lock, template) as prompts,
        listening_socket("127.0.0.1", 0) as listener,
    ):
        server = Server(engine, prompts, NAME, hosts=[PROXY])
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield Served(engine=engine, port=listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def wait_until(happened: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that happens in another thread."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"it did not happen in {seconds} seconds"
        time.sleep(0.01)
