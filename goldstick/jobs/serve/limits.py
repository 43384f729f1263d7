"""What a server takes at most."""

from __future__ import annotations

from dataclasses import dataclass, fields

from goldstick.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is taken and done at once; beyond it, whoever asks is told so.

    Attributes:
        running: Answers written at a time.
        waiting: Answers that may wait for their turn.
        choices: Answers that one request may ask for, its prompts times ``n``.
        context: Tokens of a prompt and its answer together; the model's context where 0.
        body_bytes: Bytes of a request.
        body_seconds: Seconds that a request may take to arrive.
        seconds: Seconds that an answer may take, waiting included.
        prefix_bytes: Bytes of keys and values kept of prompts that were read, for prompts that begin alike.
        grace_seconds: Seconds that answers get to end when the server is told to stop.

    Raises:
        UsageError: A limit leaves nothing that could be done.
    """

    running: int = 8
    waiting: int = 128
    choices: int = 16
    context: int = 0
    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    seconds: float = 600.0
    prefix_bytes: int = 256 * 2**20
    grace_seconds: float = 5.0

    def __post_init__(self) -> None:
        may_be_0 = {"waiting", "context", "prefix_bytes", "grace_seconds"}
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in may_be_0):
                raise UsageError(f"{field.name}={value} must be {'0 or more' if field.name in may_be_0 else 'above 0'}")
