"""The model families that GGUF files are written and read for: names of tensors and order of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from goldstick.errors import FormatError


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that one ggml architecture runs.

    Attributes:
        architecture: Name of the architecture in a GGUF file.
        classes: Their classes in transformers; the first is what a file without a config is read as.
        model_type: The model type of the first.
        turned: Whether rows of q and k are stored pair by pair. transformers rotates the two halves of a head against
            each other, ggml's ``llama`` neighbouring rows.
        biases: Modules of a block that may have a bias.
    """

    architecture: str
    classes: tuple[str, ...]
    model_type: str
    turned: bool = False
    biases: tuple[str, ...] = ()


_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
FAMILIES = (
    Family(
        architecture="llama",
        classes=("LlamaForCausalLM", "MistralForCausalLM"),
        model_type="llama",
        turned=True,
        biases=(*_ATTENTION, "self_attn.o_proj", *_MLP),
    ),
    Family(architecture="qwen2", classes=("Qwen2ForCausalLM",), model_type="qwen2", biases=_ATTENTION),
    Family(architecture="qwen3", classes=("Qwen3ForCausalLM",), model_type="qwen3"),
)

_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_BLOCK = re.compile(r"model\.layers\.(0|[1-9]\d*)\.(.+)")
_GGML_BLOCK = re.compile(r"blk\.(0|[1-9]\d*)\.(.+)")
_OUTER_BACK = {value: key for key, value in _OUTER.items()}
_INNER_BACK = {value: key for key, value in _INNER.items()}


def family_of_config(config: Mapping[str, Any]) -> Family:
    """The family of a config.json.

    Raises:
        FormatError: It is none of those known here.
    """
    classes = config.get("architectures") or []
    for family in FAMILIES:
        if set(classes) & set(family.classes):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.classes)
    named = " or ".join(map(str, classes)) or "a model without a class"
    raise FormatError(
        f"goldstick writes GGUF files of {known}, and not of {named}. Use --format compressed-tensors or native."
    )


def family_of_architecture(name: object) -> Family:
    """The family of a GGUF file's architecture.

    Raises:
        FormatError: It is none of those known here.
    """
    for family in FAMILIES:
        if family.architecture == name:
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    raise FormatError(
        f"The file holds a model of the architecture {name!r}, and goldstick reads {known} from GGUF files."
    )


def to_ggml(name: str, family: Family) -> str:
    """The name in a GGUF file of a tensor of transformers' checkpoints.

    Raises:
        FormatError: The architecture has no such tensor.
    """
    module, _, leaf = name.rpartition(".")
    match = _BLOCK.fullmatch(module)
    inner = match[2] if match else module
    found = f"blk.{match[1]}.{_INNER[inner]}" if match and inner in _INNER else _OUTER.get(module)
    if found is None or leaf not in ("weight", "bias") or (leaf == "bias" and inner not in family.biases):
        raise FormatError(
            f"The architecture {family.architecture!r} of GGUF files has no place for the tensor {name!r}. Use "
            "--format compressed-tensors or native."
        )
    return f"{found}.{leaf}"


def to_transformers(name: str, family: Family) -> str:
    """The name in transformers' checkpoints of a tensor of a GGUF file.

    Raises:
        FormatError: The architecture has no such tensor.
    """
    module, _, leaf = name.rpartition(".")
    match = _GGML_BLOCK.fullmatch(module)
    inner = _INNER_BACK.get(match[2]) if match else None
    found = f"model.layers.{match[1]}.{inner}" if match and inner else _OUTER_BACK.get(module)
    if found is None or leaf not in ("weight", "bias") or (leaf == "bias" and inner not in family.biases):
        raise FormatError(
            f"The file holds the tensor {name!r}, which the architecture {family.architecture!r} does not have."
        )
    return f"{found}.{leaf}"


def turned_heads(name: str, family: Family, heads: int, kv_heads: int) -> int | None:
    """How many heads of rows a tensor of a GGUF file holds pair by pair; ``None`` where rows lie as in transformers."""
    if not family.turned:
        return None
    inner = name.split(".")[2] if name.startswith("blk.") else ""
    return {"attn_q": heads, "attn_k": kv_heads}.get(inner)


def rows_to_ggml(tensor: Tensor, heads: int | None) -> Tensor:
    """Rows of each head from two halves, [heads, 2, half], to pairs, [heads, half, 2]."""
    if heads is None:
        return tensor
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def rows_to_transformers(tensor: Tensor, heads: int | None) -> Tensor:
    """The inverse of :func:`rows_to_ggml`."""
    if heads is None:
        return tensor
    return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
