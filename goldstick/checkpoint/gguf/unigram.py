"""Unigram tokenizers of sentencepiece (``t5``): pieces have scores, and texts are split for the largest sum."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any

from goldstick.checkpoint.gguf.unfit import UnfitTokenizerError

_SPACE = "▁"
#: The score of what only fills the embedding up.
LEAST = -10000.0


def unigram_metadata(
    tokenizer: Mapping[str, Any], normalizers: Iterable[Mapping[str, Any]], splits: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """The entries of a unigram tokenizer beside its tokens; ``scores`` are by token.

    Args:
        tokenizer: Its tokenizer.json.
        normalizers: Steps of its normalizer.
        splits: Steps of its pre_tokenizer.

    Raises:
        UnfitTokenizerError: It changes or splits text in a way that llama.cpp does not.
    """
    found: dict[str, Any] = {"tokenizer.ggml.model": "t5", "tokenizer.ggml.pre": "default"}
    merges, prefix = False, False
    for step in normalizers:
        pattern = step.get("pattern") or {}
        if step.get("type") == "Precompiled":
            found["tokenizer.ggml.precompiled_charsmap"] = b64decode(step["precompiled_charsmap"])
        elif step.get("type") == "Replace" and pattern.get("Regex") == " {2,}" and step.get("content") in (" ", _SPACE):
            merges = True
        elif not (step.get("type") == "Replace" and pattern.get("String") == " " and step.get("content") == _SPACE):
            raise UnfitTokenizerError(f"its normalizer has the step {shown(step.get('type'))}")
    for step in splits:
        if step.get("type") == "WhitespaceSplit":
            merges = True
        elif step.get("type") == "Metaspace":
            prefix = step.get("prepend_scheme", "always") != "never"
        else:
            raise UnfitTokenizerError(f"its pre_tokenizer has the step {shown(step.get('type'))}")
    return {
        **found,
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.remove_extra_whitespaces": merges,
        "tokenizer.ggml.scores": {token: float(score) for token, score in tokenizer["model"]["vocab"]},
    }


def unigram_tokenizer(
    data: Mapping[str, Any], tokens: Sequence[str], scores: Sequence[float], unknown: int
) -> dict[str, Any]:
    """The parts of tokenizer.json that make a unigram tokenizer of a file's entries.

    Args:
        data: The entries.
        tokens: Its tokens.
        scores: Theirs.
        unknown: Number of the token of what has no pieces.
    """
    prefix = data.get("tokenizer.ggml.add_space_prefix", True) is True
    metaspace = {"replacement": _SPACE, "prepend_scheme": "always" if prefix else "never", "split": True}
    charsmap = data.get("tokenizer.ggml.precompiled_charsmap")
    steps: list[dict[str, Any]] = []
    if isinstance(charsmap, list):
        steps.append({"type": "Precompiled", "precompiled_charsmap": b64encode(_bytes(charsmap)).decode()})
    if data.get("tokenizer.ggml.remove_extra_whitespaces") is True:
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {"type": "Metaspace"} | metaspace,
        "decoder": {"type": "Metaspace"} | metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": [[token, score] for token, score in zip(tokens, scores, strict=True)],
            "byte_fallback": False,
        },
    }


def _bytes(values: list[Any]) -> bytes:
    if not all(type(value) is int for value in values):
        raise UnfitTokenizerError("its precompiled_charsmap is no list of bytes")
    return bytes(value % 256 for value in values)
