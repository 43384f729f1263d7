"""A server: an engine, its interface over HTTP, and an end that lets answers finish."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import uvicorn

from goldstick.errors import UsageError
from goldstick.jobs.serve.app import make_app
from goldstick.jobs.serve.engine import Engine
from goldstick.jobs.serve.host_names import for_this_machine
from goldstick.jobs.serve.prompts import Prompts

#: Seconds that an idle connection stays open: longer than clients keep theirs, or a request meets one that just closes.
_KEEP_ALIVE = 75


class Server(uvicorn.Server):
    """Serves until SIGINT or SIGTERM; then nothing new is taken, and answers get the engine's grace to end.

    Args:
        engine: The model at work.
        prompts: What makes token ids of words.
        name: What the model is called in requests.
        hosts: Names by which this machine may be asked besides its own; any name where ``None``.
    """

    def __init__(self, engine: Engine, prompts: Prompts, name: str, hosts: Collection[str] | None = None) -> None:
        app = make_app(engine, prompts, name, hosts)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
        )
        super().__init__(config)
        self.engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Give the answers that are being written their time, and end."""
        self.engine.stop(self.engine.limits.grace_seconds)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that end a server, and give them back afterwards: it did what it was told."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        known = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in known}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port that is taken is known before a model is loaded.

    Raises:
        UsageError: The address is taken, or not of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=2048, reuse_port=False)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"Nothing can listen at {host}:{port} ({reason}): give another --host or --port.") from error
    return made


def serve(
    engine: Engine,
    prompts: Prompts,
    name: str,
    listener: socket.socket,
    hosts: Collection[str] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM comes.

    Args:
        engine: The model at work.
        prompts: What makes token ids of words.
        name: What the model is called in requests.
        listener: A socket that listens. Where only this machine reaches it, only names of this machine are taken.
        hosts: Names that are taken as this machine's besides.
        ready: Called before requests are taken.
    """
    ready()
    Server(engine, prompts, name, hosts if for_this_machine(listener) else None).run(sockets=[listener])
