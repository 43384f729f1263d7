"""Checkpoints as others publish them quantized, written by formulas of their own, with the numbers they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.support.tiny_mixtures import MIXTURES

Parts = dict[str, Tensor]
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=96, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def fp8_blocks(weight: Tensor, size: int, powers: torch.dtype | None = None) -> tuple[Parts, Tensor]:
    """Codes and scales of square blocks, the last of them cut off, and what they stand for in bfloat16.

    Scales are float32, or powers of two in a dtype that is given.
    """
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-weight.shape[0] // size), -(-weight.shape[1] // size))
    numbers = torch.empty(weight.shape, dtype=torch.bfloat16)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size))
            scales[i, j] = weight[block].abs().max() / 448
            if powers is not None:
                scales[i, j] = scales[i, j].log2().ceil().exp2()
            codes[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            numbers[block] = (codes[block].float() * scales[i, j]).to(torch.bfloat16)
    return {"": codes, "_scale_inv": scales.to(powers or torch.float32)}, numbers


def mxfp4(weight: Tensor) -> tuple[Parts, Tensor]:
    """Blocks and scales of experts [experts, in, out], and what they stand for in bfloat16."""
    groups = weight.transpose(1, 2).unflatten(-1, (-1, 32))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    codes = _fp4_codes(groups / exponents.exp2().unsqueeze(-1))
    numbers = (FP4[codes.long()] * exponents.exp2().unsqueeze(-1)).flatten(-2).transpose(1, 2)
    return {"_blocks": _in_bytes(codes), "_scales": (exponents + 127).to(torch.uint8)}, numbers.to(torch.bfloat16)


def nvfp4(weight: Tensor) -> tuple[Parts, Tensor]:
    """Model Optimizer's tensors of a matrix, and what they stand for in bfloat16."""
    groups = weight.unflatten(-1, (-1, 16))
    second = weight.abs().max() / (6 * 448)
    scales = (groups.abs().amax(-1) / 6 / second).to(torch.float8_e4m3fn)
    steps = (scales.float() * second).unsqueeze(-1)
    codes = _fp4_codes(groups / steps)
    numbers = (FP4[codes.long()] * steps).flatten(-2).to(torch.bfloat16)
    return {"": _in_bytes(codes).flatten(-2), "_scale": scales, "_scale_2": second}, numbers


def _fp4_codes(ratio: Tensor) -> Tensor:
    return (ratio.unsqueeze(-1) - FP4).abs().argmin(-1).to(torch.uint8)


def _in_bytes(codes: Tensor) -> Tensor:
    return codes[..., ::2] | codes[..., 1::2] << 4


def write(
    directory: Path,
    model: PreTrainedModel,
    config: dict[str, Any],
    quantize: Callable[[str, Tensor], tuple[Parts, Tensor] | None],
) -> dict[str, Tensor]:
    """Store a model in bfloat16 with what ``quantize`` makes of its tensors; returns the numbers that all stand for."""
    model.to(torch.bfloat16).save_pretrained(directory)
    file = directory / "model.safetensors"
    stored: dict[str, Tensor] = {}
    numbers: dict[str, Tensor] = {}
    for name, value in load_file(file).items():
        made = quantize(name, value.float())
        if made is None:
            stored[name] = numbers[name] = value
            continue
        parts, numbers[name] = made
        stored |= {name + suffix: part.contiguous() for suffix, part in parts.items()}
    save_file(stored, file, metadata={"format": "pt"})
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(settings | {"quantization_config": config}))
    return numbers


def deepseek_in_fp8(directory: Path, size: int = 16, powers: torch.dtype | None = None) -> dict[str, Tensor]:
    """A miniature DeepSeek-V3 as DeepSeek publishes it; routers, norms and embeddings are float.

    With ``powers`` as it publishes V3.1 (float32) and V4 (float8_e8m0fnu), whose scales are powers of two.

    It has a block beyond those that its config counts, which predicts further tokens and which transformers leaves out.
    """
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [size, size]}

    if powers is not None:
        config["scale_fmt"] = "ue8m0"

    def quantize(name: str, value: Tensor) -> tuple[Parts, Tensor] | None:
        layer = "_proj" in name and name.endswith(".weight") and value.ndim == 2
        return fp8_blocks(value, size, powers) if layer else None

    numbers = write(directory, MIXTURES["deepseek_v3"](), config, quantize)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    first, beyond = "model.layers.0.", "model.layers.61."
    save_file(tensors | {name.replace(first, beyond): tensors[name].clone() for name in tensors if first in name}, file)
    return numbers | {name.replace(first, beyond): numbers[name] for name in numbers if first in name}


def gpt_oss_in_mxfp4(directory: Path) -> dict[str, Tensor]:
    """A miniature GPT-OSS as OpenAI publishes it: experts in MXFP4, the rest float."""

    def quantize(name: str, value: Tensor) -> tuple[Parts, Tensor] | None:
        return mxfp4(value) if name.endswith((".gate_up_proj", ".down_proj")) else None

    return write(directory, MIXTURES["gpt_oss"](), {"quant_method": "mxfp4"}, quantize)


def llama_in_nvfp4(directory: Path) -> dict[str, Tensor]:
    """A miniature Llama as Model Optimizer writes it, weights only."""
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return write(directory, llama(), config, lambda name, value: nvfp4(value) if "_proj" in name else None)


SOURCES = {"fp8": deepseek_in_fp8, "mxfp4": gpt_oss_in_mxfp4, "modelopt": llama_in_nvfp4}
