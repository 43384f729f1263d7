"""What is asked in words, as token ids: texts, and conversations through a chat template."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from goldstick.calibration.data.chat_template import ChatTemplates
from goldstick.errors import DataError, UsageError
from goldstick.evaluation.forward import require_row
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.tokenizer import tokenized

#: Bytes of a chat template's file.
_MOST_BYTES = 2**20


class Prompts:
    """Makes token ids; from any thread. To be used in a ``with`` statement, whose end ends the template's process.

    Args:
        language_model: The model and its tokenizer.
        lock: Held while the tokenizer is used, which does not bear two threads.
        template: A chat template in the place of the tokenizer's own.
    """

    def __init__(self, language_model: LanguageModel, lock: threading.Lock, template: str | None = None) -> None:
        self._language_model, self._lock, self._template = language_model, lock, template
        self._templates, self._template_lock = ChatTemplates(), threading.Lock()

    def __enter__(self) -> Prompts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._templates.__exit__(kind, error, trace)

    def of_text(self, text: str) -> list[int]:
        """Token ids of a text with the special tokens its tokenizer adds in front; of none, what begins every text.

        Raises:
            DataError: It holds half of a character, or the tokenizer is another model's.
        """
        with self._lock:
            return self._known(self._language_model.encode_prompt(text))

    def of_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation up to where the model's answer begins.

        Raises:
            UsageError: There is no chat template.
            DataError: The template refuses the conversation.
        """
        tokenizer = self._language_model.tokenizer
        try:
            template = self._template or tokenizer.get_chat_template()
        except ValueError as error:
            raise UsageError(
                "This model has no chat template, so it was not tuned for conversations: ask it to go on from a text "
                "(/v1/completions, goldstick generate), or give a template with --chat-template FILE."
            ) from error
        variables = {**tokenizer.special_tokens_map, "add_generation_prompt": True}
        with self._template_lock:
            try:
                text = self._templates.write(template, messages, variables)
            except DataError as error:
                raise DataError(f"The chat template refuses this conversation: {error}") from error
        with self._lock:
            ids = tokenized(tokenizer, text, add_special_tokens=False, verbose=False)["input_ids"]
        return self._known([int(token) for token in ids])

    def _known(self, ids: list[int]) -> list[int]:
        require_row(self._language_model.model, max(ids, default=0))
        return ids or [self._language_model.prefix_id()]


def read_template(file: Path | None) -> str | None:
    """A chat template from a file, or ``None`` for the tokenizer's own.

    Raises:
        DataError: It is no text, too large or empty.
    """
    if file is None:
        return None
    content = file.read_bytes()
    if not content.strip():
        raise DataError(f"{file} is empty: give a chat template as text")
    if len(content) > _MOST_BYTES:
        raise DataError(f"{file} has {len(content):,} bytes, and a chat template at most {_MOST_BYTES:,}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: give a chat template as text") from error
