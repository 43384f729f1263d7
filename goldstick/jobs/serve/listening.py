"""Answers on their way from the engine's thread to a client, who may leave at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from starlette.requests import Request

from goldstick.jobs.serve.answer import Answer
from goldstick.jobs.serve.engine import Engine
from goldstick.jobs.serve.sequence import Part, Question

_Heard = tuple[int, Part | BaseException]


class ClientGoneError(Exception):
    """Nobody is there to be answered."""


class Listening:
    """The answers to one request, whose client is watched: when it leaves, they are cancelled.

    To be used in an ``async with`` statement, whose end cancels what is not finished.

    Args:
        engine: Who answers.
        request: Whose client is watched.
        questions: What is asked, all or none.
    """

    def __init__(self, engine: Engine, request: Request, questions: Sequence[Question]) -> None:
        self._engine, self._request, self._questions = engine, request, questions
        self._heard: asyncio.Queue[_Heard] = asyncio.Queue()
        self._answers: list[Answer] = []
        self._first: _Heard | None = None

    async def open(self) -> None:
        """Ask, and wait until the first is heard, so that what fails at once has a status of its own.

        Raises:
            ClientGoneError: The client left before.
            GoldstickError: The questions are not taken, or the first answer failed.
        """
        loop = asyncio.get_running_loop()

        def listener(number: int) -> Callable[[Part | BaseException], None]:
            def hear(part: Part | BaseException) -> None:
                loop.call_soon_threadsafe(self._heard.put_nowait, (number, part))

            return hear

        self._answers = self._engine.ask([(one, listener(number)) for number, one in enumerate(self._questions)])
        self._watcher = asyncio.create_task(self._watch())
        try:
            self._first = await self._next()
        except BaseException:
            await self.close()
            raise

    async def parts(self) -> AsyncIterator[tuple[int, Part]]:
        """Number of the answer and its next part, until all are finished.

        Raises:
            ClientGoneError: The client left.
            GoldstickError: An answer failed.
        """
        left = len(self._answers)
        while left:
            number, part = self._first or await self._next()
            self._first = None
            assert isinstance(part, Part)
            left -= part.ending is not None
            yield number, part

    async def close(self) -> None:
        """Cancel what is not finished."""
        for answer in self._answers:
            answer.cancel()
        self._watcher.cancel()
        with suppress(asyncio.CancelledError):
            await self._watcher

    async def _next(self) -> _Heard:
        number, part = await self._heard.get()
        if isinstance(part, BaseException):
            raise part
        return number, part

    async def _watch(self) -> None:
        """Wait for the client to leave, and let the answers end at once."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        for answer in self._answers:
            answer.cancel()
        self._heard.put_nowait((0, ClientGoneError()))
