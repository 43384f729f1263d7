"""Under which names a server on this machine alone may be asked."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from goldstick.jobs.serve.refusals import Refusal


class HostNames:
    """Refuses requests to names that no user of this machine would type.

    A stranger's page may let its own name resolve to 127.0.0.1 once it is open (DNS rebinding): to the browser the
    server here is then the page's own. Such a request still carries the page's name in its ``Host``. Addresses, which
    nobody resolves, and ``localhost`` cannot be taken over in that way.

    Args:
        app: What answers.
        names: Names that are taken besides addresses and ``localhost``.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app, self.names = app, {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """After ASGI."""
        name = _host(dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1"))
        if scope["type"] != "http" or name in self.names or name.endswith(".localhost") or _is_address(name):
            await self.app(scope, receive, send)
            return
        refusal = Refusal(
            status=403,
            message=f"This server is for this machine, and {name[:100]!r} is no name of it that it knows: "
            "ask localhost, or start it with --allow-host and that name.",
            code="unknown_host",
        )
        await JSONResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, send)


def for_this_machine(listener: socket.socket) -> bool:
    """Whether only this machine reaches a socket that listens."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _host(header: str) -> str:
    """The name in a ``Host`` header, without its port."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
