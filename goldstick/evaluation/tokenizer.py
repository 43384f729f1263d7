"""Tokenizers: reading one from a model's directory, what it does in a hash, and the context it goes with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from torch import nn

from goldstick.errors import DataError, SourceError
from goldstick.evaluation.processors import no_foreign_code

CONTEXT_ATTRIBUTES = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len", "seq_length")
DEFAULT_CONTEXT = 2048
#: Files that hold a tokenizer's vocabulary.
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


def read_tokenizer(directory: Path | str) -> Any:
    """Return the tokenizer in ``directory``: no downloads, and no code of its own is run.

    Raises SourceError where there is no such directory or no tokenizer that transformers can read.
    """
    from transformers import AutoTokenizer

    if not Path(directory).is_dir():
        raise SourceError(f"{directory}: no such directory, so no tokenizer can be read from it")
    try:
        with no_foreign_code():
            return AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its parser, written in Rust, raises nothing more specific
        if not has_vocabulary(Path(directory)):
            raise SourceError(
                f"{directory}: its tokenizer cannot be read, since its files are missing (tokenizer.json, "
                "tokenizer.model or vocab.json). Copy the tokenizer files of the model it was made from beside its "
                "weights; without them it can be given no text"
            ) from error
        reason = " ".join(str(error).split())[:500]
        raise SourceError(
            f"{directory}: its tokenizer cannot be read ({reason}); fetch its files again, or a transformers that "
            "knows them"
        ) from error


def has_vocabulary(directory: Path) -> bool:
    """Whether a directory holds a file that tokenizers keep their vocabulary in."""
    return any(any(directory.glob(pattern)) for pattern in VOCABULARIES)


def tokenized(tokenizer: Any, *texts: str, **options: Any) -> Any:
    """What a tokenizer makes of one text, or of two that belong together.

    Raises:
        DataError: A text holds half of a character, which is none.
        SourceError: The tokenizer breaks off: its own patterns, which come with a checkpoint, take too many steps.
    """
    try:
        for text in texts:
            text.encode()
        return tokenizer(*texts, **options)
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(f"a text holds {half!r}, half of a character (a lone surrogate), which is no text") from error
    except BaseException as error:  # a panic of its parser, written in Rust, is no Exception
        if type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        home = getattr(tokenizer, "name_or_path", "") or "use"
        raise SourceError(
            f"the tokenizer in {home} breaks off on a text ({reason}); fetch its files again, or use others"
        ) from error


def token_ids(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    """The token ids of a text, with the special tokens that the tokenizer adds by itself or without them."""
    return [int(token) for token in tokenized(tokenizer, text, add_special_tokens=special, verbose=False)["input_ids"]]


def special_tokens_around(tokenizer: Any, text: str) -> tuple[list[int], list[int]] | None:
    """The special tokens that a tokenizer adds in front of texts, and those behind them.

    They are found by comparing what becomes of ``text``, or of a letter, with them and without. ``None`` where that
    leaves open on which side they stand, as of a text that consists of them.
    """
    for probe in (text, "a"):
        whole, plain = (token_ids(tokenizer, probe, special=special) for special in (True, False))
        starts = range(len(whole) - len(plain) + 1)
        places = [start for start in starts if whole[start : start + len(plain)] == plain]
        if len(places) == 1:
            return whole[: places[0]], whole[places[0] + len(plain) :]
    return None


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 of what a tokenizer does: equal hashes, equal token ids for every text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        state.pop("truncation", None)  # set by calls, not by the tokenizer
        state.pop("padding", None)
    else:
        state = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def find_context_length(model: nn.Module, tokenizer: Any) -> int:
    """Return the context that the configuration or its text part names, else the tokenizer's."""
    configuration = model.config
    for owner in (configuration, getattr(configuration, "text_config", None)):
        for name in CONTEXT_ATTRIBUTES:
            value = getattr(owner, name, None)
            if isinstance(value, int) and value > 1:
                return value
    limit = getattr(tokenizer, "model_max_length", None)
    return limit if isinstance(limit, int) and 1 < limit < 10**9 else DEFAULT_CONTEXT


def require_room(continuation: str, tokens: int, context_length: int, place: str = "") -> None:
    """Raise DataError, naming the place, where a text to be scored has more tokens than a forward pass may see."""
    if tokens > context_length:
        raise DataError(
            f"{place}{': ' if place else ''}{shown(continuation)} has {tokens} tokens, and the model's context holds "
            f"{context_length}, so that only its end would be scored; leave out the question that it belongs to"
        )
