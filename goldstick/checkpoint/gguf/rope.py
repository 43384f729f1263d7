"""Rotary embeddings: what a GGUF file says of them, and the factors that it holds as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.file import GgufFile
from goldstick.checkpoint.gguf.tensors import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from goldstick.errors import FormatError

#: The rotary scalings of Llama 3.1, 3.2 and 3.3: those that a file's factors are looked up in.
_LLAMA3 = tuple(
    {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    for factor in (8.0, 32.0)
)
#: How a config calls the length that rotary embeddings were trained on.
TRAINED_CONTEXT = "original_max_position_embeddings"


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding of a config: ``rope_type``, ``rope_theta`` and what the type takes.

    Where layers that look through a window have one of their own, that of the others.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = dict(given.get("full_attention") or given)
    found.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    found.setdefault("rope_type", found.pop("type", "default"))
    return found


def local_rope_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """That of layers that look through a window, where they have one of their own."""
    found = (config.get("rope_parameters") or {}).get("sliding_attention")
    return found if isinstance(found, Mapping) else None


def head_width(config: Mapping[str, Any], architecture: Architecture) -> int:
    """Width of a head."""
    hidden, heads = (config[architecture.renamed.get(name, name)] for name in ("hidden_size", "num_attention_heads"))
    return int(config.get("head_dim") or hidden // heads)


def unsaid(config: Mapping[str, Any], architecture: Architecture) -> str | None:
    """What of a rotary embedding a file cannot say, or ``None``."""
    rope, local = rope_of(config), local_rope_of(config)
    kind = rope["rope_type"]
    if kind not in ("default", "linear", "llama3", *architecture.scalings):
        return f"rotary embeddings scaled by {kind!r}"
    if local is not None and local.get("rope_type", "default") != "default":
        return f"rotary embeddings scaled by {local['rope_type']!r} in layers that look through a window"
    if kind == "yarn" and (rope.get("truncate", True) is not architecture.truncates or TRAINED_CONTEXT not in rope):
        return "rotary embeddings scaled by 'yarn' with another 'truncate', or without the length they were trained on"
    if kind == "yarn" and (rope.get("mscale") != rope.get("mscale_all_dim")):
        return "rotary embeddings scaled by 'yarn' with an mscale that is not mscale_all_dim"
    if kind == "yarn" and "mscale_all_dim" not in rope and "kv_lora_rank" in config:
        return "rotary embeddings scaled by 'yarn' without an mscale_all_dim"
    if rope.get("partial_rotary_factor", 1.0) != 1.0 and not architecture.partly:
        return "a part of each head that is not rotated"
    return None


def rope_metadata(config: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    """The entries ``ARCHITECTURE.rope.scaling.*``, less the architecture."""
    rope = rope_of(config)
    kind = rope["rope_type"]
    found: dict[str, Any] = {}
    if kind in ("linear", "yarn", "longrope"):
        found["rope.scaling.type"] = kind
    if kind in ("linear", "yarn"):
        found["rope.scaling.factor"] = float(rope["factor"])
    if kind in ("yarn", "longrope"):
        found["rope.scaling.original_context_length"] = int(rope.get(TRAINED_CONTEXT) or config[TRAINED_CONTEXT])
    if kind == "yarn":
        log = 0.1 * math.log(rope["factor"]) + 1.0 if rope["factor"] > 1 else 1.0
        if rope.get("attention_factor") is not None:  # llama.cpp multiplies that of the paper with it
            found["rope.scaling.attn_factor"] = float(rope["attention_factor"]) / log
        if rope.get("mscale_all_dim") is not None:
            found["rope.scaling.yarn_log_multiplier"] = 0.1 * float(rope["mscale_all_dim"])
        for name in ("beta_fast", "beta_slow"):
            if rope.get(name) is not None:
                found[f"rope.scaling.yarn_{name}"] = float(rope[name])
    if kind == "longrope":
        found["rope.scaling.attn_factor"] = _long_factor(config, rope)
    return found


def rope_of_file(file: GgufFile, architecture: Architecture, width: int) -> dict[str, Any]:
    """The ``rope_parameters`` of a file's model.

    Args:
        file: The file.
        architecture: Its architecture.
        width: Numbers of a head that are rotated.

    Raises:
        FormatError: It scales rotary embeddings in a way that goldstick does not read.
    """
    data, arch = file.metadata, architecture.name
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(data.get(f"{arch}.rope.freq_base", 10000.0))}
    factor = float(data.get(f"{arch}.rope.scaling.factor", data.get(f"{arch}.rope.scale_linear", 0.0))) or 1.0
    scaling = data.get(f"{arch}.rope.scaling.type", "none" if factor == 1.0 else "linear")
    if scaling in ("linear", "yarn"):
        rope |= {"rope_type": scaling, "factor": factor}
    elif scaling not in ("none", "longrope"):
        raise FormatError(
            f"{file.path} scales rotary embeddings by {scaling!r}, which goldstick does not read from GGUF files."
        )
    if scaling == "yarn":
        rope |= _yarn_of_file(data, arch)
        rope |= {} if architecture.truncates else {"truncate": False}
    if scaling == "longrope":
        rope |= _longrope_of_file(file, arch)
    multiplied = data.get(f"{arch}.rope.scaling.attn_factor", 1.0)
    if scaling in ("none", "linear") and multiplied != 1.0:
        raise FormatError(
            f"{file.path} multiplies rotary embeddings by {multiplied!r} ({arch}.rope.scaling.attn_factor), which "
            f"goldstick reads with the scalings yarn and longrope, and not with {scaling!r}."
        )
    if ROPE_FACTORS not in file.tensors:
        return rope
    found = read_factors(file, ROPE_FACTORS)
    for candidate in _LLAMA3:
        trial = rope | {"rope_type": "llama3"} | candidate
        factors = _llama3_factors(trial, width)
        if factors.shape == found.shape and torch.allclose(factors, found, rtol=1e-6, atol=0):
            return trial
    raise FormatError(
        f"{file.path} divides rotary frequencies by factors ({ROPE_FACTORS}) that are not those of Llama 3.1 to 3.3. "
        "Put the config.json of the float model beside the file, in a directory of their own, and name the directory."
    )


def factor_tensors(config: Mapping[str, Any], architecture: Architecture) -> dict[str, Tensor]:
    """The tensors of rotary factors of a model's file, float32 [rotated / 2]."""
    if not architecture.rotary:
        return {}
    rope = rope_of(config)
    if rope["rope_type"] == "longrope":
        factors = {LONG_FACTORS: rope["long_factor"], SHORT_FACTORS: rope["short_factor"]}
        return {name: torch.tensor(values, dtype=torch.float32) for name, values in factors.items()}
    found = rope_factors(config, architecture)
    return {} if found is None else {ROPE_FACTORS: found}


def rope_factors(config: Mapping[str, Any], architecture: Architecture) -> Tensor | None:
    """What ``rope_freqs.weight`` holds for the scaling of Llama 3, float32 [head / 2]; ``None`` for other scalings."""
    rope = rope_of(config)
    return _llama3_factors(rope, head_width(config, architecture)) if rope["rope_type"] == "llama3" else None


def _llama3_factors(rope: Mapping[str, Any], width: int) -> Tensor:
    """Llama 3's factors.

    A rotary frequency f of wavelength l = 2π / f is divided by 1 where l < context / high, by ``factor`` where
    l > context / low, and by 1 / ((1 − s) / factor + s), s = (context / l − low) / (high − low), between.
    """
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope[TRAINED_CONTEXT]
    frequencies = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    found = []
    for frequency in frequencies:
        length = 2 * math.pi / frequency
        smooth = (context / length - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if length < context / high else factor if length > context / low else between)
    return torch.tensor(found, dtype=torch.float32)


def _long_factor(config: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    """What cosines and sines of a longrope are multiplied with: √(1 + ln(longer / trained) / ln(trained))."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    trained = rope.get(TRAINED_CONTEXT) or config[TRAINED_CONTEXT]
    longer = rope.get("factor") or config["max_position_embeddings"] / trained
    return math.sqrt(1 + math.log(longer) / math.log(trained)) if longer > 1 else 1.0


def _trained_context(data: Mapping[str, Any], arch: str) -> Any:
    """The length that rotary embeddings were trained on: the model's, where the file does not say."""
    return data.get(f"{arch}.rope.scaling.original_context_length", data[f"{arch}.context_length"])


def _yarn_of_file(data: Mapping[str, Any], arch: str) -> dict[str, Any]:
    scaling = f"{arch}.rope.scaling"
    found: dict[str, Any] = {
        TRAINED_CONTEXT: data.get(f"{scaling}.original_context_length", data[f"{arch}.context_length"])
    }
    for name in ("beta_fast", "beta_slow"):
        if f"{scaling}.yarn_{name}" in data:
            found[name] = float(data[f"{scaling}.yarn_{name}"])
    if f"{scaling}.attn_factor" in data:
        factor = float(data.get(f"{scaling}.factor", 1.0))
        log = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        found["attention_factor"] = float(data[f"{scaling}.attn_factor"]) * log
    if f"{scaling}.yarn_log_multiplier" in data:
        both = round(10 * float(data[f"{scaling}.yarn_log_multiplier"]), 6)
        found |= {"mscale": both, "mscale_all_dim": both}
    return found


def _longrope_of_file(file: GgufFile, arch: str) -> dict[str, Any]:
    if LONG_FACTORS not in file.tensors or SHORT_FACTORS not in file.tensors:
        raise FormatError(f"{file.path} scales rotary embeddings by factors and lacks {LONG_FACTORS}.")
    found: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": read_factors(file, LONG_FACTORS).tolist(),
        "short_factor": read_factors(file, SHORT_FACTORS).tolist(),
        TRAINED_CONTEXT: _trained_context(file.metadata, arch),
    }
    if f"{arch}.rope.scaling.attn_factor" in file.metadata:
        found["attention_factor"] = float(file.metadata[f"{arch}.rope.scaling.attn_factor"])
    return found


def read_factors(file: GgufFile, name: str) -> Tensor:
    """Factors of a file, float32 [rotated / 2]."""
    stored = file.tensors[name]
    if stored.type != "F32" or stored.nbytes > 1 << 20:
        raise FormatError(f"{file.path}: {name} is stored as {stored.type} {list(stored.shape)}, and should be F32.")
    with file.path.open("rb") as stream:
        stream.seek(stored.start)
        return torch.frombuffer(bytearray(stream.read(stored.nbytes)), dtype=torch.float32)
