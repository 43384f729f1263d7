"""A Llama whose widths are filled up with zeros to whole superblocks, and which computes what it did.

K-quants round rows in superblocks of 256 weights, and the widths of a very small model are less. Further channels,
heads and neurons have weights of 0, and stand behind the others, so that groups of 32 hold weights of one kind. A norm
divides by the mean square of four times as many channels, or sixteen: its weight and its epsilon make up for that.
"""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from goldstick.core.grid import SUPERBLOCK


def padded(source: Path, folder: Path) -> Path:
    """The model of ``source``, filled up, as a checkpoint in ``folder`` with the tokenizer of the source."""
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    before = model.config
    hidden = _whole(before.hidden_size)
    times = hidden / before.hidden_size
    if not math.log2(times).is_integer() or not math.sqrt(times).is_integer():
        raise SystemExit(f"{before.hidden_size} channels become {hidden}, which is no power of 4 times as many.")
    config = copy.deepcopy(before)
    config.hidden_size, config.intermediate_size = hidden, _whole(before.intermediate_size)
    config.head_dim = before.head_dim or before.hidden_size // before.num_attention_heads
    config.num_attention_heads = _whole(before.num_attention_heads * config.head_dim) // config.head_dim
    group = before.num_attention_heads // before.num_key_value_heads
    config.num_key_value_heads = config.num_attention_heads // group
    config.rms_norm_eps = before.rms_norm_eps / times
    wide: Any = LlamaForCausalLM(config)
    given = model.state_dict()
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            value = given[name] / math.sqrt(times) if "norm" in name else given[name]
            parameter.copy_(_filled(value, parameter.shape))
    wide.save_pretrained(folder)
    for file in source.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def _whole(width: int) -> int:
    return -(-width // SUPERBLOCK) * SUPERBLOCK


def _filled(value: Tensor, shape: torch.Size) -> Tensor:
    found = torch.zeros(shape)
    found[tuple(slice(0, size) for size in value.shape)] = value
    return found
