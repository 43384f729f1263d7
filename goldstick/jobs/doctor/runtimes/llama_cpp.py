"""llama.cpp: which GGUF files it loads."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.formats.gguf import GGUF
from goldstick.jobs.doctor.runtimes.runtime import HARDWARE, Answers, Rule, Runtime, names_in, refused, yes
from goldstick.jobs.doctor.runtimes.subject import Subject

_MODEL, _SPLITTING, _TOKENS = "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens"


def _parts(subject: Subject) -> Iterator[tuple[str, Answers]]:
    if subject.gguf is not None or subject.method == GGUF.method:
        yield "GGUF", {hardware: yes("any; also Apple's and by Vulkan") for hardware in HARDWARE}
    else:
        yield subject.method or "float weights", refused("it reads GGUF files alone")


def _architecture(subject: Subject) -> Iterator[str]:
    if subject.gguf is not None:
        name = subject.gguf.metadata.get("general.architecture")
        if name not in names_in("llama_cpp"):
            yield f"general.architecture {name}"


def _tokenizer(subject: Subject) -> Iterator[str]:
    if subject.gguf is None:
        return
    model = subject.gguf.metadata.get(_MODEL)
    if model not in names_in("llama_cpp_tokenizers"):
        yield f"{_MODEL} {model}"
    elif names_in("llama_cpp_tokenizers")[model] != "without" and not subject.gguf.metadata.get(_TOKENS):
        yield f"{_TOKENS} is missing"


def _named_splitting(subject: Subject) -> str | None:
    """How texts are split before merging, by the file; ``""`` where it does not say so, ``None`` where none is."""
    entries = subject.gguf.metadata if subject.gguf is not None else {}
    merges = names_in("llama_cpp_tokenizers").get(str(entries.get(_MODEL))) == "pairs"
    return str(entries.get(_SPLITTING) or "") if merges else None


def _splitting(subject: Subject) -> Iterator[str]:
    name = _named_splitting(subject)
    if name and name not in names_in("llama_cpp_splittings"):
        yield f"{_SPLITTING} {name}"


def _no_splitting(subject: Subject) -> Iterator[str]:
    if _named_splitting(subject) == "":
        yield f"{_SPLITTING} is missing"


LLAMA_CPP = Runtime(
    name="llama.cpp",
    title="llama.cpp",
    version="0c1e570 (2026-10-01)",
    formats=(GGUF,),
    splits=False,
    parts=_parts,
    read_in="src/llama-model-loader.cpp",
    remedy="convert it: 'goldstick export DIRECTORY --format gguf', or llama.cpp's convert_hf_to_gguf.py",
    rules=(
        Rule(
            check="architecture",
            severity="fault",
            what="llama.cpp knows no such architecture",
            remedy="take a later llama.cpp, which may know it",
            read_in="src/llama-arch.cpp (LLM_ARCH_NAMES)",
            find=_architecture,
        ),
        Rule(
            check="tokenizer",
            severity="fault",
            what="the file holds no tokenizer that llama.cpp knows",
            remedy="convert the model again, with its tokenizer files beside it",
            read_in="src/llama-vocab.cpp (load)",
            find=_tokenizer,
        ),
        Rule(
            check="splitting",
            severity="fault",
            what="llama.cpp knows no such way to split texts before merging (an unknown pre-tokenizer type)",
            remedy="take a later llama.cpp, or set tokenizer.ggml.pre to the name that it has for this tokenizer",
            read_in="src/llama-vocab.cpp (load)",
            find=_splitting,
        ),
        Rule(
            check="splitting",
            severity="remark",
            what="the file does not say how texts are split before merging, and llama.cpp takes its default, "
            "which mostly is not the tokenizer's",
            remedy="convert the model again with a later converter",
            read_in="src/llama-vocab.cpp (load)",
            find=_no_splitting,
        ),
    ),
)
