"""WordPiece tokenizers (``bert``): in tokenizer.json a piece that goes on begins with ##, in GGUF files one that begins
a word with ▁.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from goldstick.checkpoint.gguf.unfit import UnfitTokenizerError

_GOES_ON, _BEGINS = "##", "▁"
_LONGEST_WORD = 100


def wordpiece_metadata(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a WordPiece tokenizer beside its tokens.

    Raises:
        UnfitTokenizerError: It looks at text in another way than BERT's.
    """
    model, normalizer = tokenizer["model"], tokenizer.get("normalizer") or {}
    if model.get("continuing_subword_prefix") != _GOES_ON:
        raise UnfitTokenizerError("its pieces do not go on with ##")
    if (tokenizer.get("pre_tokenizer") or {}).get("type") != "BertPreTokenizer":
        raise UnfitTokenizerError("its pre_tokenizer is not BERT's")
    if normalizer.get("type") != "BertNormalizer" or not normalizer.get("handle_chinese_chars", True):
        raise UnfitTokenizerError("its normalizer is not BERT's")
    lower = bool(normalizer.get("lowercase", True))
    strip = normalizer.get("strip_accents")
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.normalizer.lowercase": lower,
        "tokenizer.ggml.normalizer.strip_accents": lower if strip is None else bool(strip),
    }


def to_ggml_piece(token: str) -> str:
    """A piece of text as GGUF files hold it."""
    return token.removeprefix(_GOES_ON) if token.startswith(_GOES_ON) else f"{_BEGINS}{token}"


def wordpiece_tokenizer(
    data: Mapping[str, Any], tokens: Sequence[str], text: Sequence[bool], unknown: str
) -> dict[str, Any]:
    """The parts of tokenizer.json that make a WordPiece tokenizer of a file's entries.

    Args:
        data: The entries.
        tokens: Its tokens.
        text: Which of them are pieces of text.
        unknown: The token of what has no pieces.
    """
    pieces = [_piece(token) if plain else token for token, plain in zip(tokens, text, strict=True)]
    if len(set(pieces)) != len(pieces):
        raise UnfitTokenizerError("two of its pieces are the same")
    lower = data.get("tokenizer.ggml.normalizer.lowercase", True) is True
    strip = data.get("tokenizer.ggml.normalizer.strip_accents", lower) is True
    model = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": _GOES_ON,
        "max_input_chars_per_word": _LONGEST_WORD,
        "vocab": {piece: number for number, piece in enumerate(pieces)},
    }
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    return {
        "normalizer": normalizer | {"strip_accents": strip, "lowercase": lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": _GOES_ON, "cleanup": True},
        "model": model,
    }


def _piece(token: str) -> str:
    return token.removeprefix(_BEGINS) if token.startswith(_BEGINS) else f"{_GOES_ON}{token}"
