"""Quantize with bitsandbytes through transformers: ``PYTHON write_bitsandbytes.py SPEC.json``, by its Python.

Beside every checkpoint lie its tokens and logits: of plain transformers in float32 on the weights that bitsandbytes'
own functions give for what the files hold, in float32 as well. Its layers multiply in 16 bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.functional import QuantState, dequantize_4bit, int8_vectorwise_dequant
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from write_autogptq import note_answer

TOOL = "bitsandbytes"


def main() -> None:
    """Make a checkpoint of ``model`` for each of ``cases``."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    ids = load_file(spec["ids"])["ids"]
    for name, options in spec["cases"].items():
        folder = Path(spec["output"]) / name
        settings: Any = BitsAndBytesConfig(**options)
        AutoModelForCausalLM.from_pretrained(
            spec["model"], dtype=torch.float16, quantization_config=settings
        ).save_pretrained(folder)
        plain = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32).eval()
        plain.load_state_dict(dequantized(load_file(folder / "model.safetensors")))
        note_answer(plain, ids, folder, TOOL)


def dequantized(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float32 tensors that those of a file stand for, by bitsandbytes' own code."""
    found = {}
    for name, value in stored.items():
        stats = {key: part for key, part in stored.items() if key.startswith(f"{name}.")}
        if stats:
            state = QuantState.from_dict(stats, torch.device("cpu"))
            state.dtype = torch.float32
            found[name] = dequantize_4bit(value, state)
        elif value.dtype is torch.int8:
            found[name] = int8_vectorwise_dequant(value, stored[name.replace(".weight", ".SCB")])
        elif value.is_floating_point() and ".weight." not in name and not name.endswith(".SCB"):
            found[name] = value.float()
    return found


if __name__ == "__main__":
    main()
