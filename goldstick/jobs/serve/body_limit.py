"""Requests no larger and no slower than a server takes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from goldstick.jobs.serve.limits import Limits
from goldstick.jobs.serve.refusals import Refusal

#: Bytes of a refused request that are read and dropped, in those of one that is taken.
_DROPPED = 16


class BodyLimit:
    """Reads a request whole before anything is made of it, and refuses one that is too large, too slow or no JSON.

    A browser sends other sites' JSON only where it was asked to allow that, which this server never does; so pages of
    strangers cannot ask a model on localhost (nor under a name of their own: :class:`HostNames`).

    Args:
        app: What answers.
        limits: How large and how slow.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """After ASGI."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            refusal = Refusal(
                status=408, message=f"The request took longer than {self.limits.body_seconds:g} seconds to arrive."
            )
            await self._refuse(refusal, scope, receive, send)
            return
        except Refusal as refusal:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limits.body_seconds):
                    await self._drop(scope, receive)
            await self._refuse(refusal, scope, receive, send)
            return
        if body is None:
            return
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(status=415, message="Send JSON, with the header 'Content-Type: application/json'.")
        body = bytearray()
        declared = headers.get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        while True:
            if max(size, len(body)) > self.limits.body_bytes:
                raise Refusal(
                    status=413,
                    message=f"The request has more than {self.limits.body_bytes:,} bytes, which is what is taken here.",
                    code="request_too_large",
                )
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            size = len(body)
            if not message.get("more_body", False):
                return bytes(body)

    async def _drop(self, scope: Scope, receive: Receive) -> None:
        """Read on for a while what is not kept: a client that still sends when its connection is closed never sees the
        answer. One that asks before it sends has sent nothing."""
        left = 0 if b"expect" in dict(scope["headers"]) else _DROPPED * self.limits.body_bytes
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b"")) if message.get("more_body", False) else left

    @staticmethod
    async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {**refusal.headers, "connection": "close"}  # the rest of its body is not read
        await JSONResponse(refusal.body, refusal.status, headers)(scope, receive, send)
