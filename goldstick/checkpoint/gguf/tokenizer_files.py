"""Tokenizer files from the entries ``tokenizer.*`` of a GGUF file: what ``gguf/tokenizer.py`` does, reversed.

The files say what llama.cpp does with the same entries. It knows the splitting of text by name, and for sentencepiece
models it has no list of merges: any two pieces that make a piece are merged, the best score first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import Any

from goldstick.checkpoint.gguf.file import GgufFile
from goldstick.checkpoint.gguf.tokenizer import (
    BYTE,
    CONTROL,
    FALCON_STEPS,
    NORMAL,
    SPLIT_SEQUENCES,
    SPLITS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from goldstick.checkpoint.gguf.unfit import UnfitTokenizerError
from goldstick.checkpoint.gguf.unigram import unigram_tokenizer
from goldstick.checkpoint.gguf.wordpiece import wordpiece_tokenizer
from goldstick.errors import FormatError

#: Any of these beside a checkpoint is its tokenizer.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
_PATTERNS = {name: (pattern,) for pattern, name in SPLITS.items()} | {
    name: patterns for patterns, name in SPLIT_SEQUENCES.items()
}
#: Other names that llama.cpp has for a splitting.
_SAME_AS = {
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), "llama-bpe"),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez"), "qwen2"),
    **dict.fromkeys(("starcoder", "refact", "command-r"), "smollm"),
    **dict.fromkeys(("phi-2", "mpt", "olmo", "jais"), "gpt-2"),
    **dict.fromkeys(("llama4", "kanana2"), "gpt-4o"),
}
#: Splittings of which llama.cpp takes a whole word that is a token before it looks at merges, and begins every text.
_WHOLE_WORDS = ("llama-bpe", "tekken")
_LONGEST_PIECE = 512
_PADDING = re.compile(r"\[PAD\d+\]")
_SPACE = "▁"


def tokenizer_files(file: GgufFile) -> dict[str, str]:
    """The tokenizer files of the model in a GGUF file, as transformers reads them.

    Returns:
        File name → text: tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja.

    Raises:
        FormatError: The file has no tokenizer, or one that goldstick cannot make files of.
    """
    data = file.metadata
    kind = data.get("tokenizer.ggml.model", "none")
    build = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _unigram, "bert": _wordpiece}.get(str(kind))
    if build is None:
        if kind == "none":
            raise _refused(file, "it holds no tokenizer")
        raise _refused(file, f"it holds one of the kind {shown(kind)}, and goldstick reads gpt2, llama, t5 and bert")
    tokens, types = _tokens(file)
    specials = _specials(file, tokens, types)
    added = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": types[number] != USER_DEFINED}
        for number, token in enumerate(tokens)
        if types[number] in (CONTROL, UNKNOWN, USER_DEFINED)
    ]
    always = kind in ("llama", "bert") or _split_of(data) in _WHOLE_WORDS
    ends_always = kind in ("t5", "bert")
    begins = specials.get("bos_token") if data.get("tokenizer.ggml.add_bos_token", always) is True else None
    ends = specials.get("eos_token") if data.get("tokenizer.ggml.add_eos_token", ends_always) is True else None
    try:
        parts = build(file, tokens, types)
    except UnfitTokenizerError as error:
        raise _refused(file, str(error)) from error
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **parts,
        "post_processor": _template(tokens, begins, ends),
    }
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **specials,
    }
    context = data.get(f"{data.get('general.architecture')}.context_length")
    if type(context) is int:
        settings["model_max_length"] = context
    found = {"tokenizer.json": _dumped(tokenizer), "tokenizer_config.json": _dumped(settings)}
    template = data.get("tokenizer.chat_template")
    return found | ({"chat_template.jinja": template} if isinstance(template, str) and template else {})


def _refused(file: GgufFile, reason: str) -> FormatError:
    return FormatError(
        f"There is no tokenizer for {file.path.name}: {reason}. Put the tokenizer files of the float model beside the "
        "file, in a directory of their own, and name the directory."
    )


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _list(file: GgufFile, key: str, of: type, length: int | None = None) -> list[Any]:
    found = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list) or not all(type(value) is of for value in found):
        raise _refused(file, f"its entry tokenizer.ggml.{key} is no list of type {of.__name__}")
    if length is not None and len(found) != length:
        raise _refused(file, f"it has {length} tokens, and {len(found)} values in tokenizer.ggml.{key}")
    return found


def _tokens(file: GgufFile) -> tuple[list[str], list[int]]:
    tokens = _list(file, "tokens", str)
    if len(set(tokens)) != len(tokens):
        raise _refused(file, "two of its tokens are the same")
    rows = file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else len(tokens)
    if len(tokens) > rows:
        raise _refused(file, f"it has {len(tokens)} tokens, and the model's embedding {rows} rows")
    if "tokenizer.ggml.token_type" not in file.metadata:
        return tokens, [NORMAL] * len(tokens)
    return tokens, _list(file, "token_type", int, len(tokens))


def _specials(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, str]:
    # What llama.cpp takes where nothing is said, if it is special.
    usual = {"unknown": 0, "bos": 1, "eos": 2} if file.metadata["tokenizer.ggml.model"] == "llama" else {}
    usual = {key: number for key, number in usual.items() if types[number : number + 1] in ([CONTROL], [UNKNOWN])}
    found = {}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        number = file.metadata.get(f"tokenizer.ggml.{key}_token_id", usual.get(key))
        if number is None:
            continue
        if type(number) is not int or not 0 <= number < len(tokens):
            raise _refused(file, f"its {key} token has the number {shown(number)}, and there are {len(tokens)} tokens")
        found[f"{name}_token"] = tokens[number]
    return found


def _template(tokens: Sequence[str], begins: str | None, ends: str | None) -> dict[str, Any] | None:
    around = [token for token in (begins, ends) if token is not None]
    if not around:
        return None

    def piece(name: str, kind: int) -> list[dict[str, Any]]:
        sequence = [{"Sequence": {"id": name, "type_id": kind}}]
        before = [{"SpecialToken": {"id": begins, "type_id": kind}}] if begins is not None else []
        after = [{"SpecialToken": {"id": ends, "type_id": kind}}] if ends is not None else []
        return before + sequence + after

    special = {token: {"id": token, "ids": [tokens.index(token)], "tokens": [token]} for token in around}
    return {
        "type": "TemplateProcessing",
        "single": piece("A", 0),
        "pair": piece("A", 0) + piece("B", 1),
        "special_tokens": special,
    }


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Every token but those that only fill the embedding up."""
    return {
        token: number for number, token in enumerate(tokens) if types[number] != UNUSED or not _PADDING.fullmatch(token)
    }


def _split_of(data: Mapping[str, Any]) -> str | None:
    name = data.get("tokenizer.ggml.pre")
    return _SAME_AS.get(name, name) if isinstance(name, str) else None


def _byte_level(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    name = _split_of(file.metadata)
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": name not in _PATTERNS}
    first: list[Mapping[str, Any]] = []
    last: list[Mapping[str, Any]] = [step]
    if name in _PATTERNS:
        split = {"type": "Split", "behavior": "Isolated", "invert": False}
        first = [split | {"pattern": {"Regex": pattern}} for pattern in _PATTERNS[name]]
    elif name == "falcon":
        first, last = list(FALCON_STEPS), []
    elif name == "smollm":
        first = [{"type": "Digits", "individual_digits": True}]
    elif name != "gpt-2":
        known = ", ".join(sorted({"falcon", "gpt-2", "smollm", *_PATTERNS, *_SAME_AS}))
        given = file.metadata.get("tokenizer.ggml.pre")
        raise _refused(file, f"it splits text as {shown(given)}, and goldstick knows {known}")
    vocabulary = _vocabulary(tokens, types)
    merges = []
    for merge in _list(file, "merges", str):
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise _refused(file, f"its merge {merge[:80]!r} is not of two tokens that make a third")
        merges.append([left, right])
    return {
        # llama.cpp does not; what is named so was trained on composed letters, and files of the models say so.
        "normalizer": {"type": "NFC"} if file.metadata["tokenizer.ggml.pre"] == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*first, *last]} if first else step,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _model(vocabulary, merges) | {"ignore_merges": name in _WHOLE_WORDS},
    }


def _sentencepiece(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    scores = _list(file, "scores", float, len(tokens))
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    steps: list[dict[str, Any]] = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    strip: list[dict[str, Any]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    model = _model(_vocabulary(tokens, types), _merges(file, tokens, types, scores))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*steps, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": model | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": BYTE in types},
    }


def _unigram(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    unknown = _number(file, "unknown", types)
    count, scores = _used(tokens, types), _list(file, "scores", float, len(tokens))
    return unigram_tokenizer(file.metadata, tokens[:count], scores[:count], unknown)


def _wordpiece(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    unknown = tokens[_number(file, "unknown", types)]
    count = _used(tokens, types)
    return wordpiece_tokenizer(file.metadata, tokens[:count], [kind == NORMAL for kind in types[:count]], unknown)


def _used(tokens: Sequence[str], types: Sequence[int]) -> int:
    """Number of the tokens less those at the end that only fill the embedding up."""
    return 1 + max(_vocabulary(tokens, types).values(), default=-1)


def _number(file: GgufFile, name: str, types: Sequence[int]) -> int:
    found = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if type(found) is not int and UNKNOWN in types:
        found = types.index(UNKNOWN)
    if type(found) is not int or not 0 <= found < len(types):
        raise _refused(file, f"its entry tokenizer.ggml.{name}_token_id is no token")
    return found


def _merges(file: GgufFile, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Every two pieces that make a piece, the best score first."""
    pieces = {token: number for number, token in enumerate(tokens) if types[number] == NORMAL}
    longest = max(map(len, pieces), default=0)
    if longest > _LONGEST_PIECE:
        raise _refused(file, f"it has a token of {longest} letters; goldstick reads up to {_LONGEST_PIECE}")
    ranked = sorted(pieces, key=lambda token: (-scores[pieces[token]], pieces[token]))
    return [
        [token[:place], token[place:]]
        for token in ranked
        for place in range(1, len(token))
        if token[:place] in pieces and token[place:] in pieces
    ]


def _model(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": dict(vocabulary),
        "merges": list(merges),
    }
