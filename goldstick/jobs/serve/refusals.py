"""Errors as OpenAI's interface gives them: a status, and an object that says what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from goldstick.errors import DataError, GoldstickError, UsageError
from goldstick.jobs.serve.sequence import FullError, StoppingError, TimedOutError


@dataclass(kw_only=True, eq=False)  # not frozen: Python writes into exceptions that are raised
class Refusal(Exception):  # noqa: N818  # an answer, and no error of the program
    """Why a request is not answered.

    Attributes:
        status: Of HTTP.
        message: What is wrong, and the remedy.
        code: A word for programs.
        param: The field that is wrong.
        again: Whether it may be worth the client's while to ask the same again.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    again: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The object that is sent."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """What tells clients whether to ask again."""
        return {"x-should-retry": "true", "retry-after": "1"} if self.again else {"x-should-retry": "false"}


def refusal_of(error: BaseException) -> Refusal:
    """What is said of an error that was raised while a question was answered."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, FullError):
        return Refusal(status=429, message=str(error), code="too_many_requests", again=True)
    if isinstance(error, TimedOutError):
        return Refusal(status=504, message=f"{error} Ask for fewer tokens.", code="timeout")
    if isinstance(error, StoppingError):
        return Refusal(status=503, message=str(error), code="stopping")
    if isinstance(error, UsageError | DataError):
        return Refusal(status=400, message=str(error), code="invalid_value")
    if isinstance(error, GoldstickError):
        return Refusal(status=500, message=str(error), code="model_failed")
    words = " ".join(str(error).split())[:300]
    return Refusal(status=500, message=f"The model failed ({type(error).__name__}: {words}).", code="model_failed")
