"""What a record of an architecture holds: what the ``gguf`` package does not know of it.

Names of tensors and keys of metadata are the package's. A record holds which of the names transformers uses, what
happens to rows and numbers on the way, which settings of a config a file says under which key, and which it cannot say
because llama.cpp computes in one way only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from goldstick.checkpoint.gguf.arrangement import Split
from goldstick.checkpoint.gguf.rows import RowOrder, key_pairs, query_pairs


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Models that llama.cpp runs under one name, and how transformers writes them.

    Attributes:
        name: Name in a GGUF file; several records may share it.
        classes: Classes in transformers; the first is what a file without a config is read as.
        model_type: The model type of the first.
        modules: Modules of a block that have a weight; ``{}`` stands for the number of an expert.
        outer: Those outside the blocks.
        block: Name of a block.
        biases: Those of ``modules`` and ``outer`` that may have a bias.
        loose: Tensors of a block with names of their own, ``{}`` as above → the name in the file.
        outside: The same of tensors outside the blocks.
        splits: Tensors that hold the rows of two of the file, ``{}`` as above → how, and the names of the two.
        rows: Name in the file, less ``.weight`` → the order of its rows.
        one_more: Whether norms multiply with 1 + weight in transformers, which is what files hold.
        transposed: Names in the file of matrices that transformers stores as [in, out].
        epsilon: The config's name for the epsilon of norms; those that end in ``rms_norm_eps`` have no mean.
        renamed: Usual name of a setting → the config's; empty where it has none.
        keys: Setting → key in ``gguf.Keys``, beyond what every model has.
        or_zero: Those of them that a file holds as 0 where the config has none.
        needed: Those of them that a config has to have: llama.cpp has a number of its own where a file does not say.
        says: Key in ``gguf.Keys`` → value that every file has.
        fixed: Setting → what llama.cpp computes with: a value, or several that it does not tell apart.
        told_by: Setting → tensor that a file has where it is true.
        when: Setting → value that tells this record from others of the same class.
        read_as: Setting → value in the config made of a file.
        rotary: Whether heads are rotated.
        partly: Whether a part of each head may stay as it is.
        scalings: Scalings of rotary embeddings beside the linear one and Llama 3's.
        truncates: Whether the range of YaRN's ramp is rounded outwards.
        window: What becomes of attention through a window: llama.cpp looks at everything (``ignored``), so that the
            context ends with the window; or knows it by layer (``layers``); or there must be none.
        period: Where a file does not say which layers have a window, every layer but each of this number has one.
        lists_windows: Whether llama.cpp takes a list of the layers that have a window from a file.
        scaled_by_width: Whether attention is scaled by the width of a head, which ``query_pre_attn_scalar`` has to be,
            but by hidden_size / heads in the model of as many blocks as this; ``None`` where there is no such setting.
        needs_head: Whether llama.cpp asks for a head beside the embedding.
        multiplies: Whether llama.cpp's graph multiplies the products of all matrices of a block with the number beside
            them, as NVFP4 needs it; elsewhere it reads the number and drops it.
        marker: End of the name of a tensor or entry that only files of this record have, among those of its name.
    """

    name: str
    classes: tuple[str, ...]
    model_type: str
    modules: tuple[str, ...]
    outer: tuple[str, ...] = ("model.embed_tokens", "model.norm", "lm_head")
    block: str = "model.layers"
    biases: Collection[str] = ()
    loose: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, tuple[Split, str, str]] = field(default_factory=dict)
    rows: Mapping[str, RowOrder] = field(default_factory=dict)
    one_more: bool = False
    transposed: tuple[str, ...] = ()
    epsilon: str = "rms_norm_eps"
    renamed: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    or_zero: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    says: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    told_by: Mapping[str, str] = field(default_factory=dict)
    when: Mapping[str, Any] = field(default_factory=dict)
    read_as: Mapping[str, Any] = field(default_factory=dict)
    rotary: bool = True
    partly: bool = False
    scalings: tuple[str, ...] = ("yarn",)
    truncates: bool = True
    window: Literal["none", "ignored", "layers"] = "none"
    period: int = 1
    lists_windows: bool = False
    scaled_by_width: int | None = None
    needs_head: bool = False
    multiplies: bool = False
    marker: str = ""


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ATTENTION = (*QKV, "self_attn.o_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
BLOCK = (*NORMS, *ATTENTION, *MLP)
PAIRS: Mapping[str, RowOrder] = {"attn_q": query_pairs, "attn_k": key_pairs}
SILU = {"hidden_act": ("silu", "swish")}
#: llama.cpp has the approximation by tanh, and its own converter takes it for the exact function, too.
GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")
