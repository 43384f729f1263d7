"""What a GGUF file says of a model beside its tensors, from a transformers config, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.gguf.file import GgufFile
from goldstick.checkpoint.gguf.names import Family, family_of_architecture, family_of_config
from goldstick.checkpoint.gguf.tensors import ROPE_FACTORS, head_counts
from goldstick.errors import FormatError

#: ``general.file_type`` of a file whose matrices are mostly of a type, as llama.cpp numbers them.
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}
#: The rotary scalings of Llama 3.1, 3.2 and 3.3: those that a file's factors are looked up in.
_LLAMA3 = tuple(
    {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    for factor in (8.0, 32.0)
)


def model_metadata(config: Mapping[str, Any], name: str, types: Sequence[str]) -> dict[str, Any]:
    """The entries ``general.*`` and ``ARCHITECTURE.*``: int for u32, float for f32, text.

    Args:
        config: The config of the model with its defaults filled in, as transformers' ``to_dict`` gives it.
        name: The model's name.
        types: ggml types of its matrices.

    Raises:
        FormatError: The model does something that the architecture does not.
    """
    family = family_of_config(config)
    if reason := _beyond(config):
        raise FormatError(f"GGUF files of the architecture {family.architecture!r} cannot say this: {reason}.")
    arch, heads = family.architecture, int(config["num_attention_heads"])
    width = _head_width(config)
    rope = rope_of(config)
    window = config.get("sliding_window")
    limits = [int(config["max_position_embeddings"])]
    if "MistralForCausalLM" in (config.get("architectures") or []) and window:
        # The architecture llama looks at everything before a token, as a window does that nothing has left yet.
        limits.append(int(window))
    found: dict[str, Any] = {
        "general.type": "model",
        # transformers takes a file of exactly this name for an architecture that ggml does not have.
        "general.name": "Mistral" if name == "mistral" else name,
        "general.file_type": _FILE_TYPES[max(set(types), key=lambda kind: (list(types).count(kind), kind))],
        "general.quantization_version": 2,
        f"{arch}.block_count": int(config["num_hidden_layers"]),
        f"{arch}.context_length": min(limits),
        f"{arch}.embedding_length": int(config["hidden_size"]),
        f"{arch}.feed_forward_length": int(config["intermediate_size"]),
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": int(config.get("num_key_value_heads") or heads),
        f"{arch}.attention.key_length": width,
        f"{arch}.attention.value_length": width,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{arch}.rope.dimension_count": width,
        f"{arch}.rope.freq_base": float(rope["rope_theta"]),
        f"{arch}.vocab_size": int(config["vocab_size"]),
    }
    if rope["rope_type"] == "linear":
        found |= {f"{arch}.rope.scaling.type": "linear", f"{arch}.rope.scaling.factor": float(rope["factor"])}
    return found


def config_of_file(file: GgufFile) -> dict[str, Any]:
    """A config.json for a GGUF file that came without one; everything is computed in float32.

    Raises:
        FormatError: The file does not say enough, or says something that goldstick does not read.
    """
    data = file.metadata
    family = family_of_architecture(data.get("general.architecture"))
    arch = family.architecture

    def whole(key: str) -> int:
        value = data.get(f"{arch}.{key}")
        if type(value) is not int or not 0 < value < 1 << 31:
            raise FormatError(f"{file.path} declares {value!r} as {arch}.{key}; it is damaged or incomplete.")
        return value

    heads, kv_heads = head_counts(file, family)
    hidden = whole("embedding_length")
    width = data.get(f"{arch}.attention.key_length", data.get(f"{arch}.rope.dimension_count", hidden // heads))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise FormatError(f"{file.path} lacks the matrix 'token_embd.weight'.")
    config = {
        "architectures": [family.classes[0]],
        "model_type": family.model_type,
        "dtype": "float32",
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": whole("feed_forward_length"),
        "num_hidden_layers": whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "max_position_embeddings": whole("context_length"),
        "rms_norm_eps": float(data.get(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_parameters": _rope_of_file(file, family, width),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
    }
    if family.architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    for token in ("bos", "eos", "pad"):
        value = data.get(f"tokenizer.ggml.{'padding' if token == 'pad' else token}_token_id")
        config[f"{token}_token_id"] = value if type(value) is int else None
    return config


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding of a config: ``rope_type``, ``rope_theta`` and what the type takes."""
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    found.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    found.setdefault("rope_type", found.pop("type", "default"))
    return found


def rope_factors(config: Mapping[str, Any]) -> Tensor | None:
    """What ``rope_freqs.weight`` holds for the scaling of Llama 3, float32 [head / 2]; ``None`` for other scalings.

    A rotary frequency f of wavelength l = 2π / f is divided by 1 where l < context / high, by ``factor`` where
    l > context / low, and by 1 / ((1 − s) / factor + s), s = (context / l − low) / (high − low), between.
    """
    rope = rope_of(config)
    if rope["rope_type"] != "llama3":
        return None
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    context, width = rope["original_max_position_embeddings"], _head_width(config)
    frequencies = 1.0 / rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    found = []
    for frequency in frequencies:
        length = 2 * math.pi / frequency
        smooth = (context / length - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if length < context / high else factor if length > context / low else between)
    return torch.tensor(found, dtype=torch.float32)


def _rope_of_file(file: GgufFile, family: Family, width: int) -> dict[str, Any]:
    data, arch = file.metadata, family.architecture
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(data.get(f"{arch}.rope.freq_base", 10000.0))}
    scaling = data.get(f"{arch}.rope.scaling.type", "none")
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": float(data.get(f"{arch}.rope.scaling.factor", 1.0))}
    elif scaling != "none":
        raise FormatError(
            f"{file.path} scales rotary embeddings by {scaling!r}, which goldstick does not read from GGUF files."
        )
    stored = file.tensors.get(ROPE_FACTORS)
    if stored is None:
        return rope
    found = read_factors(file)
    for candidate in _LLAMA3:
        trial = rope | {"rope_type": "llama3"} | candidate
        factors = rope_factors({"head_dim": width, "rope_parameters": trial})
        if factors is not None and factors.shape == found.shape and torch.allclose(factors, found, rtol=1e-6, atol=0):
            return trial
    raise FormatError(
        f"{file.path} divides rotary frequencies by factors ({ROPE_FACTORS}) that are not those of Llama 3.1 to 3.3. "
        "Put the config.json of the float model beside the file, in a directory of their own, and name the directory."
    )


def read_factors(file: GgufFile) -> Tensor:
    """The factors of a file, float32 [head / 2]."""
    stored = file.tensors[ROPE_FACTORS]
    if stored.type != "F32" or stored.nbytes > 1 << 20:
        raise FormatError(
            f"{file.path}: {ROPE_FACTORS} is stored as {stored.type} {list(stored.shape)}, and should be F32."
        )
    with file.path.open("rb") as stream:
        stream.seek(stored.start)
        return torch.frombuffer(bytearray(stream.read(stored.nbytes)), dtype=torch.float32)


def _head_width(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _beyond(config: Mapping[str, Any]) -> str | None:
    """What a model does that the architecture in llama.cpp does not."""
    rope = rope_of(config)
    if rope["rope_type"] not in ("default", "linear", "llama3"):
        return f"rotary embeddings scaled by {rope['rope_type']!r}; goldstick writes 'linear' and 'llama3'"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "a part of each head that is not rotated"
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        return f"the activation {config['hidden_act']!r}; it has SiLU"
    mistral = "MistralForCausalLM" in (config.get("architectures") or [])
    if config.get("use_sliding_window") or (not mistral and set(config.get("layer_types") or ()) - {"full_attention"}):
        return "attention through a sliding window"
    if config.get("model_type") == "qwen3" and config.get("attention_bias"):
        return "biases of the attention"
    return None
