"""The entries ``tokenizer.*`` of a GGUF file, from the tokenizer files beside a checkpoint.

Four kinds of tokenizer are written: byte-level BPE (``gpt2``), whose splitting of text llama.cpp knows by name,
sentencepiece BPE with byte fallback (``llama``), whose merges it finds by scores, sentencepiece's unigram models
(``t5``) and WordPiece (``bert``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from goldstick.checkpoint.gguf.unfit import UnfitTokenizerError
from goldstick.checkpoint.gguf.unigram import LEAST, unigram_metadata
from goldstick.checkpoint.gguf.wordpiece import to_ggml_piece, wordpiece_metadata
from goldstick.checkpoint.source import read_json
from goldstick.errors import FormatError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_GPT2 = "gpt-2"
#: How text is split before merging → the name llama.cpp knows it by.
SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+": "qwen2",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}"
    r"\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "gpt-4o",
}
#: The same of splittings that take several steps, each of them isolating what it finds.
SPLIT_SEQUENCES: dict[tuple[str, ...], str] = {
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "deepseek-v3",
}
#: Falcon's: punctuation, GPT-2's words, digits by threes.
FALCON_STEPS: tuple[Mapping[str, Any], ...] = (
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    {"type": "Digits", "individual_digits": False},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False},
)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_REMEDY = (
    "Remove the tokenizer files from the checkpoint to write a file without a tokenizer, which runs on token ids alone."
)


def tokenizer_metadata(directory: Path, vocab_size: int) -> dict[str, Any]:
    """The entries of the tokenizer in a checkpoint directory; those of none where it has none.

    Args:
        directory: The checkpoint.
        vocab_size: Rows of its embedding; tokens beyond the tokenizer's become unused ones.

    Raises:
        FormatError: llama.cpp would split text in another way, or there is no way to say how it is split.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        if any((directory / name).exists() for name in ("tokenizer.model", "vocab.json", "tokenizer_config.json")):
            raise FormatError(
                f"{directory} has a tokenizer and no tokenizer.json, which GGUF's is made from: load it with "
                f"transformers' AutoTokenizer and call save_pretrained there. {_REMEDY}"
            )
        return {"tokenizer.ggml.model": "none"}
    tokenizer = read_json(file, "no checkpoint")
    settings: Mapping[str, Any] = {}
    if (directory / "tokenizer_config.json").is_file():
        settings = read_json(directory / "tokenizer_config.json", "no checkpoint")
    try:
        return _metadata(directory, tokenizer, settings, vocab_size)
    except UnfitTokenizerError as error:
        raise _refused(str(error)) from error
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        raise _refused(f"tokenizer.json is not laid out as tokenizers are ({str(error)[:200]})") from error


def _metadata(
    directory: Path, tokenizer: Mapping[str, Any], settings: Mapping[str, Any], vocab_size: int
) -> dict[str, Any]:
    model = tokenizer.get("model") or {}
    kind = model.get("type")
    tokens, types = _tokens(tokenizer, vocab_size)
    specials = _special_ids(directory, settings, tokens) | _adds(tokenizer, settings)
    if kind == "WordPiece":
        found = wordpiece_metadata(tokenizer)
        specials |= _ends_of_pairs(settings, tokens)
        tokens = [to_ggml_piece(token) if types[number] == NORMAL else token for number, token in enumerate(tokens)]
    elif kind == "Unigram":
        splits = _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
        found = unigram_metadata(tokenizer, _steps(tokenizer.get("normalizer"), "normalizers"), splits)
        scores = found["tokenizer.ggml.scores"]
        found["tokenizer.ggml.scores"] = [scores.get(token, LEAST) for token in tokens]
    elif kind != "BPE":
        raise _refused(f"it is a {str(kind)[:50]} model, and goldstick writes BPE, Unigram and WordPiece")
    elif model.get("byte_fallback"):
        found = _sentencepiece(tokenizer)
        ranks = found["tokenizer.ggml.scores"]
        found["tokenizer.ggml.scores"] = [_score(token, kind, ranks) for token, kind in zip(tokens, types, strict=True)]
    else:
        found = _byte_level(tokenizer)
    found |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    return found | specials | _chat_template(directory, settings)


def _refused(reason: str) -> FormatError:
    return FormatError(f"GGUF cannot hold this tokenizer: {reason}. {_REMEDY}")


def _byte_level(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    steps = list(_steps(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    byte_level = next((step for step in steps if step.get("type") == "ByteLevel"), {})
    first = steps[0] if len(steps) == 2 else {}
    name = None
    if _like(steps, FALCON_STEPS):
        name = "falcon"
    elif not steps or steps[-1] is not byte_level:
        name = None
    elif len(steps) == 1 and byte_level.get("use_regex", True):
        name = _GPT2
    elif first.get("type") == "Digits" and first.get("individual_digits") and byte_level.get("use_regex", True):
        name = "smollm"
    elif not byte_level.get("use_regex", True):
        name = _name_of([step for step in steps if step is not byte_level])
    if not byte_level or byte_level.get("add_prefix_space") or name is None:
        raise _refused("its pre_tokenizer splits text in a way that goldstick has no name for in llama.cpp")
    if any(step.get("type") != "NFC" for step in _steps(tokenizer.get("normalizer"), "normalizers")):
        raise _refused("its normalizer changes text, and llama.cpp does not for this kind")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"].get("merges") or ()]
    if not merges:
        raise _refused("it has no merges, without which llama.cpp does not load it")
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name, "tokenizer.ggml.merges": merges}


def _name_of(steps: list[Mapping[str, Any]]) -> str | None:
    """What llama.cpp calls a splitting by regular expressions, each of which isolates what it finds."""
    if not all(step.get("type") == "Split" and step.get("behavior") == "Isolated" for step in steps):
        return None
    found = tuple(str((step.get("pattern") or {}).get("Regex")) for step in steps)
    patterns = tuple(pattern.replace("\r", r"\r").replace("\n", r"\n") for pattern in found)
    return SPLITS.get(patterns[0]) if len(patterns) == 1 else SPLIT_SEQUENCES.get(patterns)


def _like(steps: list[Mapping[str, Any]], usual: tuple[Mapping[str, Any], ...]) -> bool:
    """Whether steps are the usual ones; what one does not say is as usual."""
    return len(steps) == len(usual) and all(
        all(step.get(key, value) == value for key, value in expected.items()) and step.get("type") == expected["type"]
        for step, expected in zip(steps, usual, strict=True)
    )


def _sentencepiece(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    prefix = False
    for step in _steps(tokenizer.get("normalizer"), "normalizers"):
        if step.get("type") == "Prepend" and step.get("prepend") == "▁":
            prefix = True
        elif step.get("type") != "Replace" or step.get("content") != "▁":
            raise _refused(f"its normalizer has the step {shown(step.get('type'))}")
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        pattern = (step.get("pattern") or {}).get("String")
        if step.get("type") == "Split" and pattern == " ":
            continue  # of spaces, which the normalizer has replaced
        if step.get("type") != "Metaspace":
            raise _refused(f"its pre_tokenizer has the step {shown(step.get('type'))}")
        prefix = prefix or step.get("prepend_scheme", "always") != "never"
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(tokenizer["model"].get("merges") or ()):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(left + right, rank)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.scores": ranks,
    }


def _score(token: str, kind: int, ranks: Mapping[str, int]) -> float:
    """Of two merges, llama.cpp makes that of the higher score: minus the rank. What no merge makes comes last."""
    return float(-ranks.get(token, len(ranks))) if kind == NORMAL else 0.0


def _steps(stage: Any, key: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(stage, Mapping) and stage.get("type") == "Sequence":
        for step in stage.get(key) or ():
            yield from _steps(step, key)
    elif isinstance(stage, Mapping):
        yield stage


def _tokens(tokenizer: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    found: dict[int, tuple[str, int]] = {}
    unknown = tokenizer["model"].get("unk_token")
    fallback = bool(tokenizer["model"].get("byte_fallback"))
    vocabulary = tokenizer["model"].get("vocab") or {}
    if isinstance(vocabulary, list):  # of a unigram model, with scores
        unknown = vocabulary[tokenizer["model"]["unk_id"]][0]
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    for token, number in vocabulary.items():
        kind = BYTE if fallback and _BYTE_TOKEN.fullmatch(token) else NORMAL
        found[number] = (token, kind)
    for entry in tokenizer.get("added_tokens") or ():
        kind = CONTROL if entry.get("special") else USER_DEFINED
        found[entry["id"]] = (entry["content"], UNKNOWN if entry["content"] == unknown else kind)
    most = max(found, default=-1)
    if most >= vocab_size:
        raise _refused(f"it has a token {most}, and the model's embedding {vocab_size} rows")
    pairs = [found.get(number, (f"[PAD{number}]", UNUSED)) for number in range(vocab_size)]
    return [token for token, _ in pairs], [kind for _, kind in pairs]


def _special_ids(directory: Path, settings: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """The tokens that begin and end a text, by name in the tokenizer's files, or else by number in config.json.

    llama.cpp takes numbers of its own for those that a file does not name, and would not stop where a text ends.
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    former, config = (
        read_json(directory / name, "no checkpoint") if (directory / name).is_file() else {}
        for name in ("special_tokens_map.json", "config.json")
    )
    found: dict[str, Any] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = settings.get(f"{name}_token") or former.get(f"{name}_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        number = config.get(f"{name}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if token in numbers:
            found[f"tokenizer.ggml.{key}_token_id"] = numbers[token]
        elif type(number) is int and 0 <= number < len(tokens):
            found[f"tokenizer.ggml.{key}_token_id"] = number
    return found


def _ends_of_pairs(settings: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """The tokens that BERT's texts begin and end with, and the one that stands for a hidden word."""
    numbers = {token: number for number, token in enumerate(tokens)}
    found: dict[str, Any] = {}
    for name, keys in (("cls", ("bos", "cls")), ("sep", ("eos", "seperator")), ("mask", ("mask",))):
        token = settings.get(f"{name}_token", f"[{name.upper()}]")
        token = token.get("content") if isinstance(token, Mapping) else token
        if token in numbers:
            found |= {f"tokenizer.ggml.{key}_token_id": numbers[token] for key in keys}
    return found


def _adds(tokenizer: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a text begins and ends with those tokens."""
    template = next(
        (
            step
            for step in _steps(tokenizer.get("post_processor"), "processors")
            if step.get("type") == "TemplateProcessing"
        ),
        None,
    )
    around = [next(iter(piece)) for piece in template.get("single") or ()] if template else []
    if around:
        adds = {"bos": around[0] == "SpecialToken", "eos": around[-1] == "SpecialToken"}
    else:
        adds = {name: bool(settings.get(f"add_{name}_token")) for name in ("bos", "eos")}
    return {f"tokenizer.ggml.add_{name}_token": value for name, value in adds.items()}


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    file = directory / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    return {"tokenizer.chat_template": template} if isinstance(template, str) and template else {}
