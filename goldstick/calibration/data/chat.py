"""Conversations: rows of messages, and how a checkpoint's own chat template writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from goldstick.calibration.data.chat_template import ChatTemplates
from goldstick.errors import DataError
from goldstick.evaluation.tokenizer import tokenized

Message = Mapping[str, Any]

_FIELDS_SHOWN, _FIELD_SHOWN = 10, 50

#: What the speakers of ShareGPT rows are called in chat templates.
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
}


def read_messages(value: Any, place: str) -> tuple[Message, ...]:
    """Messages {role, content} from a row's ``messages``, or from ``conversations`` in ShareGPT's {from, value}.

    Other fields of a message (such as ``tool_calls``) go on to the template; those that are null do not.

    Args:
        value: The field as it was read.
        place: File and row, for errors.

    Raises:
        DataError: It is no list of such messages.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DataError(f"{place}: a conversation is a list of messages, not {type(value).__name__}")
    return tuple(_message(message, f"{place}, message {number}") for number, message in enumerate(value, start=1))


def speaker_role(message: Mapping[str, Any], place: str) -> str:
    """The role of who speaks a message, given as ``role`` or, in ShareGPT's rows, as ``from``.

    Raises:
        DataError: It has neither, or nobody knows the role.
    """
    role = message.get("role")
    speaker = message.get("from")
    role = _ROLES.get(speaker) if role is None and isinstance(speaker, str) else role
    if not isinstance(role, str):
        raise DataError(f"{place}: a message of no role that is known ({shown(speaker)}); known: {', '.join(_ROLES)}")
    return role


def some_names(row: Mapping[str, Any]) -> str:
    """The fields of a row or message for an error: the first of them."""
    more = ", …" if len(row) > _FIELDS_SHOWN else ""
    return ", ".join(name[:_FIELD_SHOWN] for name in list(row)[:_FIELDS_SHOWN]) + more or "nothing"


def _message(message: Any, place: str) -> Message:
    if not isinstance(message, Mapping):
        raise DataError(f"{place}: a message has fields role and content, and this is {type(message).__name__}")
    given = {name: value for name, value in message.items() if value is not None}
    if "role" not in given and "from" in given:
        speaker = given.pop("from")
        if not isinstance(speaker, str) or speaker not in _ROLES:
            raise DataError(f"{place}: nobody knows the role of {shown(speaker)}; known: {', '.join(_ROLES)}")
        given = {"role": _ROLES[speaker], "content": given.pop("value", None), **given}
    if not isinstance(given.get("role"), str):
        raise DataError(f"{place}: no role, only {some_names(message)}")
    content = given.get("content", "" if "tool_calls" in given else None)
    if not isinstance(content, str):
        kind = "missing" if content is None else f"{type(content).__name__} instead of text"
        raise DataError(f"{place}: its content is {kind}")
    return {**given, "content": content}


def chat_ids(tokenizer: Any, messages: Sequence[Message], place: str, templates: ChatTemplates) -> list[int]:
    """Token ids of a conversation, as the tokenizer's chat template writes it, special tokens and all.

    Args:
        tokenizer: One of transformers'.
        messages: The conversation.
        place: File and row, for errors.
        templates: Where the template runs.

    Raises:
        DataError: The tokenizer has no template, or the template refuses the conversation.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(
            f"{place} is a conversation, and the tokenizer in {getattr(tokenizer, 'name_or_path', '') or 'use'} has no "
            "chat template: give a checkpoint that was tuned for chat, or rows with a field 'text' (or --text-field)"
        )
    try:
        template = tokenizer.get_chat_template()
        text = templates.write(template, messages, tokenizer.special_tokens_map)
        text.encode()
    except (DataError, ValueError) as error:  # templates without a default are a ValueError, half a character is one
        raise DataError(
            f"{place}: the chat template in {_origin(tokenizer)} refuses this conversation ({error})"
        ) from error
    return [int(token) for token in tokenized(tokenizer, text, add_special_tokens=False)["input_ids"]]


def _origin(tokenizer: Any) -> str:
    """The file that a tokenizer's chat template lies in, where it was read from a directory."""
    home = Path(getattr(tokenizer, "name_or_path", "") or "")
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (home / name).is_file():
            return str(home / name)
    return "use"
