"""Words: what the sentence of a recipe is made of, and sentences to begin with."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

Slot = Literal[
    "rotation", "smoothing", "scaling", "method", "reconstruction", "distillation", "scheme", "mixed", "cache"
]
#: The places of a sentence, in their order. Each holds one word at most, ``scheme`` several.
SLOTS: tuple[Slot, ...] = get_args(Slot)


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a sentence.

    Attributes:
        slot: The place where it may stand.
        title: What descriptions of recipes call it.
        does: What it does, as docs/recipes.md says it.
        stage: The algorithm it stands for; empty for a word that changes the stage of another.
        options: Options of that stage.
        below_8_bits: Further options where weights have fewer than 8 bits and activations stay float.
        for_blocks: Further options where the scheme is a block type of GGUF files.
        asymmetric: Whether its schemes are asymmetric without saying so.
    """

    slot: Slot
    title: str
    does: str
    stage: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    below_8_bits: Mapping[str, Any] = field(default_factory=dict)
    for_blocks: Mapping[str, Any] = field(default_factory=dict)
    asymmetric: bool = False


_WORDS = {
    "fold": Word(
        slot="rotation", stage="fold_batch_norm", title="folded batch norms",
        does="lets convolutions take over their [batch norms](structure.md#batch-norms), for networks in memory",
    ),
    "rotate": Word(
        slot="rotation", stage="rotate", title="rotation",
        does="[rotates](rotation.md) the network by Hadamard matrices, so that no channel stands out",
    ),
    "smoothquant": Word(
        slot="smoothing", stage="smoothquant", options={"alpha": 0.5}, title="SmoothQuant",
        does="moves outliers of the activations into the weights, for 8-bit activations",
    ),
    "awq": Word(
        slot="scaling", stage="awq", options={"quantize": False}, title="AWQ",
        does="scales weights by the activations that read them; rounds, too, where no method is named",
    ),
    "rtn": Word(
        slot="method", stage="rtn", below_8_bits={"range_search": "mse"}, for_blocks={"range_search": "ggml"},
        title="rounding to nearest",
        does="rounds to nearest; weights below 8 bits with ranges of least squared error",
    ),
    "imatrix": Word(
        slot="method", stage="rtn", options={"range_search": "imatrix"}, for_blocks={"range_search": "ggml-imatrix"},
        title="rounding with an importance matrix",
        does="rounds to nearest, with ranges searched on calibration data",
    ),
    "hqq": Word(
        slot="method", stage="rtn", options={"range_search": "hqq"}, asymmetric=True, title="HQQ",
        does="rounds to nearest with fractional zero points: always asymmetric, native format only",
    ),
    "gptq": Word(
        slot="method", stage="gptq", for_blocks={"range_search": "ggml-imatrix"}, title="GPTQ",
        does="rounds column by column; each column makes up for the errors of those before it",
    ),
    "gptaq": Word(
        slot="method", stage="gptq", options={"gptaq": True}, for_blocks={"range_search": "ggml-imatrix"},
        title="GPTAQ",
        does="GPTQ that also makes up for the errors of earlier layers; observes twice the activations",
    ),
    "descent": Word(
        slot="method", stage="descent", for_blocks={"range_search": "ggml-imatrix"}, title="coordinate descent",
        does="rounds to nearest, then moves codes and scales one by one to the least error of each layer's output",
    ),
    "slb": Word(slot="method", stage="slb", title="SLB", does="finds codes by [training](training.md)"),
    "slb_finish": Word(
        slot="reconstruction", stage="slb_finish", options={"steps": 200}, title="SLB as block reconstruction",
        does="searches better codes, [block by block](training.md#slb-as-block-reconstruction)",
    ),
    "learn": Word(
        slot="reconstruction", stage="learn", title="learned rounding",
        does="[learns](learn.md) codes and scales of each block, judged on rows held out",
    ),
    "distill": Word(
        slot="distillation", stage="distill", title="distilled scales",
        does="[trains scales and norms](distill.md) for what the float network predicts; codes stay",
    ),
    "down8": Word(
        slot="mixed", title="down projections at 8 bits",
        does="gives the down projections (`*down_proj`) 8 bits and one scale per output channel",
    ),
    "kv8": Word(
        slot="cache", stage="kv_cache", title="8-bit KV cache",
        does="stores [keys and values](kv-cache.md) in 8 bits with static scales",
    ),
    "kv4": Word(
        slot="cache", stage="kv_cache", options={"dtype": "int4", "rotate": True}, title="4-bit KV cache",
        does="stores [keys and values](kv-cache.md#in-four-bits) in 4 bits, turned by a Hadamard transform",
    ),
}  # fmt: skip

#: The method where a sentence names none.
DEFAULT_METHOD = "rtn"

#: How the words of a scheme are put together; :meth:`Scheme.parse` reads them.
SCHEME_LINES = (
    "w<1..8>a16 or w<1..8>a8-<dynamic|static>, then -g<group size> or",
    "-channel, then -asym: w4a16-g128, w8a8-dynamic, w3a16-channel-asym",
)

#: Names from before sentences that are none.
OLD_NAMES = {"rtn-mixed-w4-w8": "rtn-w4a16-g64-down8"}

#: Sentence → when to take it.
RECOMMENDED = {
    "rtn-w8a16": "half the size, hardly any loss; needs no data",
    "rtn-w4a16-g128": "a quarter of the size; needs no data",
    "imatrix-w4a16-g128": "better ranges than rtn, from calibration data",
    "gptq-w4a16-g128": "the common choice for size",
    "awq-gptq-w4a16-g128": "often a little better than gptq; takes longer",
    "gptq-q4_k_m": "GGUF files for llama.cpp (--format gguf)",
    "gptq-w4a16-g128-kv8": "long contexts: the KV cache at half its size",
    "gptq-w4a16-g64-down8": "4 bits, the sensitive down projections at 8",
    "gptq-w3a16-g32": "smaller than 4 bits, with some loss",
    "gptq-slb_finish-w2a16-g32": "the most accurate 2 bits; takes long",
    "rtn-w8a8-dynamic": "8-bit products; needs no data",
    "fold-rtn-w8a8-static-shifted": "convolutional networks: 8-bit products",
    "smoothquant-gptq-w8a8-dynamic": "8-bit products where activations have outliers",
    "smoothquant-gptq-w8a8-static": "the same with input scales fixed beforehand",
}


def vocabulary() -> dict[str, Word]:
    """Every word but those of schemes: the table's, and the names of other packages' algorithms that fit a place.

    Algorithms, and torch with them, are imported only where another package has some.
    """
    return _WORDS | further_words() if _others_have_some(tuple(sys.path)) else dict(_WORDS)


@functools.cache
def _others_have_some(folders: tuple[str, ...]) -> bool:
    """Whether a package in these folders of ``sys.path`` registers algorithms; an error asks thousands of times."""
    return bool(entry_points(group="goldstick.algorithms"))


def further_words() -> dict[str, Word]:
    """The names of algorithms that are not in the table and fit a place, by their kind."""
    from goldstick.algorithms import ALGORITHMS, BlockReconstruction, Quantizer, Smoother

    slots: dict[Any, Slot] = {Smoother: "smoothing", Quantizer: "method", BlockReconstruction: "reconstruction"}
    listed = {word.stage for word in _WORDS.values()}
    return {
        name: Word(
            slot=slot, stage=name, title=name, does=(algorithm.__doc__ or name).strip().partition("\n")[0].rstrip(".")
        )
        for name, algorithm in ALGORITHMS.items()
        for kind, slot in slots.items()
        if name not in listed and issubclass(algorithm, kind)
    }


def grammar() -> str:
    """The order of words in a sentence; what stands in brackets may be left out."""
    known = vocabulary()
    parts = []
    for slot in SLOTS:
        words = [name for name, word in known.items() if word.slot == slot]
        text = {"method": "METHOD", "reconstruction": "FINISH", "scheme": "SCHEME"}.get(slot, "|".join(words))
        before = SLOTS.index(slot) < SLOTS.index("scheme")
        parts.append(text if slot == "scheme" else f"[{text}-]" if before else f"[-{text}]")
    return "".join(parts)
