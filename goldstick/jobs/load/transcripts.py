"""Transcripts: what the decoder of an encoder–decoder is given beside a recording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import DataError
from goldstick.evaluation.tokenizer import read_tokenizer, tokenized


class Transcripts:
    """The decoder's token ids for a transcript: its tokens, shifted to the right behind the decoder's first token.

    Args:
        model: The model.
        directory: Where its tokenizer lies.
        longest: The most tokens of a transcript.

    Attributes:
        wanted: Whether the model has a decoder that reads them.
    """

    def __init__(self, model: nn.Module, directory: Path, longest: int) -> None:
        config: Any = getattr(model, "config", None)
        self.wanted = bool(getattr(config, "is_encoder_decoder", False))
        self._model, self._directory = model, directory
        limit = getattr(config, "max_target_positions", None)
        self._longest = min(longest, limit) if isinstance(limit, int) else longest
        self._tokenizer: Any = None

    def of(self, text: str | None) -> Mapping[str, Tensor]:
        """``decoder_input_ids`` [1, tokens] of a transcript, the first token alone where there is none; nothing for a
        model that has no decoder.

        Raises:
            DataError: The config does not say which token a decoder begins with.
        """
        if not self.wanted:
            return {}
        if text is None:
            return {"decoder_input_ids": torch.tensor([[self._first()]])}
        self._tokenizer = self._tokenizer or read_tokenizer(self._directory)
        labels: list[int] = list(tokenized(self._tokenizer, text)["input_ids"])
        own = getattr(self._model, "prepare_decoder_input_ids_from_labels", None)
        if own is not None and labels:
            ids: Tensor = own(labels=torch.tensor([labels]))
        else:
            behind = (
                labels[1:] if labels and labels[0] == self._first() else labels
            )  # the tokenizer begins with it, too
            ids = torch.tensor([[self._first(), *behind[:-1]]])
        return {"decoder_input_ids": ids[:, : self._longest]}

    def _first(self) -> int:
        for owner in (self._model.config, getattr(self._model, "generation_config", None)):
            first = getattr(owner, "decoder_start_token_id", None)
            if isinstance(first, int):
                return first
        raise DataError(
            f"{self._directory}/config.json names no decoder_start_token_id, so nothing says what the decoder of "
            f"{type(self._model).__name__} begins with; add it there"
        )
