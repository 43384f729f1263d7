"""What a GGUF file says of a model beside its tensors, from a transformers config, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.architectures import architecture_of_config, architecture_of_file
from goldstick.checkpoint.gguf.file import GgufFile
from goldstick.checkpoint.gguf.names import place_of
from goldstick.checkpoint.gguf.rope import (
    TRAINED_CONTEXT,
    head_width,
    local_rope_of,
    rope_metadata,
    rope_of,
    rope_of_file,
    unsaid,
)
from goldstick.checkpoint.gguf.tensors import head_counts
from goldstick.checkpoint.gguf.writer import gguf_package
from goldstick.checkpoint.source import read_json
from goldstick.errors import FormatError
from goldstick.formats.gguf_blocks import file_type_of

#: Keys whose values are float, whatever a config holds.
_FLOATS = ("scale", "softcapping", "freq_base_swa")
_SLIDING, _FULL = "sliding_attention", "full_attention"


def model_metadata(config: Mapping[str, Any], name: str, types: Sequence[str]) -> dict[str, Any]:
    """The entries ``general.*`` and ``ARCHITECTURE.*``: int for u32, float for f32, text.

    Args:
        config: The config of the model with its defaults filled in, as transformers' ``to_dict`` gives it.
        name: The model's name.
        types: ggml types of its matrices.

    Raises:
        FormatError: The model does something that the architecture does not.
    """
    architecture = architecture_of_config(config)
    if reason := _beyond(config, architecture):
        raise FormatError(f"GGUF files of the architecture {architecture.name!r} cannot say this: {reason}.")
    heads, kv_heads = head_counts_of(config, architecture)
    key, value, rotated = _widths(config, architecture)
    window = config.get("sliding_window") if architecture.window == "ignored" else None
    hidden, context, wide, layers = (
        config[architecture.renamed.get(setting, setting)]
        for setting in ("hidden_size", "max_position_embeddings", "intermediate_size", "num_hidden_layers")
    )
    rms = architecture.epsilon.endswith("rms_norm_eps")
    arch = architecture.name
    found: dict[str, Any] = {
        "general.type": "model",
        # transformers takes a file of exactly this name for an architecture that ggml does not have.
        "general.name": "Mistral" if name == "mistral" else name,
        "general.file_type": file_type_of(types),
        "general.quantization_version": 2,
        f"{arch}.block_count": int(layers),
        # llama.cpp looks at everything before a token, as a window does that nothing has left yet.
        f"{arch}.context_length": int(min(context, window or context)),
        f"{arch}.embedding_length": int(hidden),
        f"{arch}.feed_forward_length": int(wide or 4 * hidden),
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.key_length": key,
        f"{arch}.attention.value_length": value,
        f"{arch}.attention.layer_norm{'_rms' if rms else ''}_epsilon": float(config[architecture.epsilon]),
    }
    if architecture.rotary:
        found[f"{arch}.rope.dimension_count"] = rotated
        found[f"{arch}.rope.freq_base"] = float(rope_of(config)["rope_theta"])
    found[f"{arch}.vocab_size"] = int(config["vocab_size"])
    if architecture.rotary:
        found |= {f"{arch}.{entry}": value for entry, value in rope_metadata(config, architecture).items()}
    return found | _own_entries(config, architecture)


def config_of_file(file: GgufFile) -> dict[str, Any]:
    """A config.json for a GGUF file that came without one; everything is computed in float32.

    Raises:
        FormatError: The file does not say enough, or says something that goldstick does not read.
    """
    data = file.metadata
    architecture = architecture_of_file(data.get("general.architecture"), [*file.tensors, *data])
    arch = architecture.name

    def whole(key: str) -> int:
        value = data.get(f"{arch}.{key}")
        if type(value) is not int or not 0 < value < 1 << 31:
            raise FormatError(f"{file.path} declares {value!r} as {arch}.{key}; it is damaged or incomplete.")
        return value

    heads, kv_heads = head_counts(file, architecture)
    hidden = whole("embedding_length")
    (stored,) = place_of(f"{architecture.outer[0]}.weight", architecture).names
    embedding = file.tensors.get(stored)
    if embedding is None or len(embedding.shape) != 2:
        raise FormatError(f"{file.path} lacks the matrix {stored!r}.")
    width = data.get(f"{arch}.attention.key_length", data.get(f"{arch}.rope.dimension_count", hidden // heads))
    rotated = data.get(f"{arch}.rope.dimension_count", width)
    rms = architecture.epsilon.endswith("rms_norm_eps")
    epsilon = float(data.get(f"{arch}.attention.layer_norm{'_rms' if rms else ''}_epsilon", 1e-6))
    usual: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": whole("feed_forward_length"),
        "num_hidden_layers": whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "max_position_embeddings": whole("context_length"),
    }
    config = {
        "architectures": [architecture.classes[0]],
        "model_type": architecture.model_type,
        "dtype": "float32",
        "vocab_size": embedding.shape[0],
        **{own: value for name, value in usual.items() if (own := architecture.renamed.get(name, name))},
        architecture.epsilon: epsilon,
        **_own_settings(file, architecture, width, rotated),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **{name: kept[0] if isinstance(kept, tuple) else kept for name, kept in architecture.fixed.items()},
    }
    config |= {name: tensor in file.tensors for name, tensor in architecture.told_by.items()}
    if architecture.scaled_by_width is not None:
        config["query_pre_attn_scalar"] = _attention_scale(config, architecture)
    for token in ("bos", "eos", "pad"):
        value = data.get(f"tokenizer.ggml.{'padding' if token == 'pad' else token}_token_id")
        config[f"{token}_token_id"] = value if type(value) is int else None
    return config | dict(architecture.read_as)


def pooling_metadata(directory: Path, architecture: Architecture) -> dict[str, Any]:
    """How an encoder's last states become one vector, where sentence-transformers' files beside it say so."""
    file = directory / "1_Pooling" / "config.json"
    if not file.is_file() or architecture.says.get("Attention.CAUSAL") is not False:
        return {}
    modes = read_json(file, "no checkpoint")
    kinds = gguf_package("GGUF files are written").PoolingType
    for mode, kind in (("mean_tokens", kinds.MEAN), ("cls_token", kinds.CLS), ("lasttoken", kinds.LAST)):
        if modes.get(f"pooling_mode_{mode}") is True:
            return {_key("LLM.POOLING_TYPE", architecture): int(kind)}
    raise FormatError(f"{file} pools states as llama.cpp does not: it takes their mean, the first or the last.")


def head_counts_of(config: Mapping[str, Any], architecture: Architecture) -> tuple[int, int]:
    """Numbers of heads and of key-value heads."""
    heads, kv_heads = (
        config.get(architecture.renamed.get(name, name)) for name in ("num_attention_heads", "num_key_value_heads")
    )
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    return int(heads or 0), int(kv_heads or heads or 0)


def _widths(config: Mapping[str, Any], architecture: Architecture) -> tuple[int, int, int]:
    """Numbers of a head's key, of its value, and how many of the key are rotated."""
    if "kv_lora_rank" in config:
        rotated = int(config["qk_rope_head_dim"])
        return int(config["qk_nope_head_dim"]) + rotated, int(config["v_head_dim"]), rotated
    width = head_width(config, architecture)
    return width, width, int(width * rope_of(config).get("partial_rotary_factor", 1.0))


def _own_entries(config: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    """What the entries of an architecture are beyond those that all have."""
    found = {_key(path, architecture): value for path, value in architecture.says.items()}
    for setting, path in architecture.keys.items():
        if setting not in config:
            raise FormatError(f"Its config says nothing of {setting}, which a GGUF file of {architecture.name} says.")
        value, key = config[setting], _key(path, architecture)
        value = 0 if value is None and setting in architecture.or_zero else value
        if value is not None:
            found[key] = float(value) if key.endswith(_FLOATS) else value
    if architecture.window == "layers" and config.get("sliding_window"):
        found[f"{architecture.name}.attention.sliding_window"] = int(config["sliding_window"])
        pattern = _pattern_of(config)
        if pattern != _pattern(architecture.period, len(pattern)):
            found[f"{architecture.name}.attention.sliding_window_pattern"] = pattern
    if (local := local_rope_of(config)) is not None:
        found[f"{architecture.name}.rope.freq_base_swa"] = float(local["rope_theta"])
    return found


def _own_settings(file: GgufFile, architecture: Architecture, width: int, rotated: int) -> dict[str, Any]:
    """The settings of a config beyond those that all have."""
    data, arch = file.metadata, architecture.name
    found: dict[str, Any] = {}
    for path, usual in architecture.says.items():
        if (said := data.get(_key(path, architecture), usual)) != usual:
            raise FormatError(
                f"{file.path} says {said!r} as {_key(path, architecture)}, and goldstick reads models of this kind "
                f"({architecture.classes[0]}) with {usual!r}."
            )
    if (
        architecture.rotary
        and not architecture.partly
        and rotated != width
        and "Attention.KV_LORA_RANK" not in (architecture.keys.values())
    ):
        raise FormatError(
            f"{file.path} rotates {rotated!r} of the {width!r} numbers of a head, and goldstick reads files of the "
            f"architecture {arch!r} that rotate all."
        )
    for setting, path in architecture.keys.items():
        value = data.get(_key(path, architecture))
        if type(value) in (int, float, bool):
            found[setting] = None if setting in architecture.or_zero and value == 0 else value
    if architecture.rotary:
        found["rope_parameters"] = rope_of_file(file, architecture, rotated)
        if (trained := found["rope_parameters"].get(TRAINED_CONTEXT)) and "longrope" in architecture.scalings:
            found[TRAINED_CONTEXT] = trained  # transformers takes that of the whole config first
        if architecture.partly:
            found["rope_parameters"]["partial_rotary_factor"] = rotated / width
    if architecture.window == "layers":
        window, pattern = (data.get(f"{arch}.attention.sliding_window{end}") for end in ("", "_pattern"))
        if not isinstance(pattern, list):
            period = pattern if type(pattern) is int else architecture.period
            pattern = _pattern(period, data[f"{arch}.block_count"])
        found["sliding_window"] = window
        found["layer_types"] = [_SLIDING if kind else _FULL for kind in pattern]
    if f"{arch}.rope.freq_base_swa" in data:
        local = {"rope_type": "default", "rope_theta": float(data[f"{arch}.rope.freq_base_swa"])}
        found["rope_parameters"] = {_FULL: found["rope_parameters"], _SLIDING: local}
    if f"{arch}.attention.kv_lora_rank" in data:
        found |= {"qk_rope_head_dim": rotated, "qk_nope_head_dim": width - rotated, "head_dim": rotated}
        found["v_head_dim"] = data.get(f"{arch}.attention.value_length", width)
    return found


def _beyond(config: Mapping[str, Any], architecture: Architecture) -> str | None:
    """What a model does that llama.cpp does not, or ``None``."""
    for name, kept in architecture.fixed.items():
        usual = kept if isinstance(kept, tuple) else (kept,)
        value = config.get(name, usual[0])
        if value not in usual and not (value is None and usual[0] is False):
            if "act" in name:
                return f"the activation {value!r}; it has {usual[0]}"
            return f"{name} = {value!r}; llama.cpp computes with {usual[0]!r}"
    if config.get("query_pre_attn_scalar", scale := _attention_scale(config, architecture)) != scale:
        return "attention that is scaled by another number than the width of a head"
    for name in architecture.needed:
        if config.get(name) is None:
            return f"no {name}; llama.cpp computes with one"
    if architecture.rotary and (reason := unsaid(config, architecture)):
        return reason
    through = set(config.get("layer_types") or ()) - {_FULL}
    if architecture.window == "layers":
        through -= {_SLIDING}
    if config.get("use_sliding_window") or (through and architecture.window != "ignored"):
        return "attention through a sliding window"
    pattern = _pattern_of(config)
    told = architecture.lists_windows or pattern == _pattern(architecture.period, len(pattern))
    if architecture.window == "layers" and config.get("sliding_window") and not told:
        step = architecture.period
        return f"windows in other layers than in all but the layers {step}, {2 * step}, {3 * step} and so on"
    return None


def _pattern_of(config: Mapping[str, Any]) -> list[bool]:
    """Which layers look through a window; empty where the config does not say."""
    return [kind == _SLIDING for kind in config.get("layer_types") or ()]


def _pattern(period: int, layers: int) -> list[bool]:
    """Which layers look through a window, where all but each of a number do; 0: all."""
    return [period == 0 or layer % period < period - 1 for layer in range(layers)]


def _attention_scale(config: Mapping[str, Any], architecture: Architecture) -> int | None:
    """The width by whose root llama.cpp divides attention, where a config has a word in it."""
    if architecture.scaled_by_width is None:
        return None
    if config["num_hidden_layers"] == architecture.scaled_by_width:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return head_width(config, architecture)


def _key(path: str, architecture: Architecture) -> str:
    """A key of ``gguf.Keys``, such as ``LLM.EXPERT_COUNT``."""
    group, _, name = path.partition(".")
    key: str = getattr(getattr(gguf_package("GGUF files are read and written").Keys, group), name)
    return key.format(arch=architecture.name)
