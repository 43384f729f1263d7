"""Requests after OpenAI's interface: what is understood, what may be ignored, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from goldstick.jobs.serve.refusals import Refusal

#: Fields that change nothing in an answer of one model.
_IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "modalities",
}

#: Fields that would change the answer, and the values that ask for no change.
_NOT_DONE: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "reasoning_effort": (),
    "verbosity": (),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}

_Text = Annotated[str, Field(max_length=10**8)]
_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False
    include_obfuscation: bool = False


class Asking(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="allow", strict=True)
    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    seed: int | None = None
    n: Annotated[int, Field(ge=1)] | None = 1
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    def refuse_unknown(self) -> None:
        """Refuse fields that nothing here would act on.

        Raises:
            Refusal: With the field's name.
        """
        for name, value in (self.model_extra or {}).items():
            if value is None or name in _IGNORED or any(value == usual for usual in _NOT_DONE.get(name, ())):
                continue
            known = name in _NOT_DONE
            reason = "is not supported by this server" if known else "is no field that this server knows"
            raise Refusal(
                status=400,
                message=f"{name[:100]!r} {reason}: leave it out.",
                code="unsupported_parameter" if known else "unknown_parameter",
                param=name[:100],
            )

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings before which an answer ends."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class TextPart(BaseModel):
    """A part of a message: text, since no other is read."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: _Text


class Message(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | list[TextPart]
    name: str | None = None
    refusal: None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, message: Any) -> Any:
        """Clients send back answers with all that an answer may have: calls and sound that it has not."""
        if not isinstance(message, dict):
            return message
        return {name: value for name, value in message.items() if name in cls.model_fields or value not in (None, [])}

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise ValueError(f"parts of type {kind[:50]!r} are not read here, only text")
        return content

    def plain(self) -> Mapping[str, Any]:
        """As chat templates take it; what developers say is the system's."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text, **({} if self.name is None else {"name": self.name})}


class ChatRequest(Asking):
    """``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class CompletionRequest(Asking):
    """``/v1/completions``."""

    prompt: _Text | list[_Text] | list[_Token] | list[list[_Token]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
