"""Quantize with auto-round and store in its own format: ``PYTHON write_auto_round.py SPEC.json``, by its Python.

Two iterations for each block, since only what the files hold matters. Beside every checkpoint lie its tokens and
logits: of plain transformers in float32 on the weights that auto-round's own packed layer or dequantization gives, for
its reader needs more packages for asymmetric layers than there are on a processor.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from write_autogptq import note_answer


def main() -> None:
    """Make a checkpoint of ``model`` for each of ``cases``."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    tokens = load_file(spec["ids"])
    for name, options in spec["cases"].items():
        folder = Path(spec["output"]) / name
        model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype="auto")
        rows = tokens["calibration"]
        rounding = AutoRound(
            model,
            AutoTokenizer.from_pretrained(spec["model"]),
            scheme={"data_type": "int", "act_bits": 16, **options["scheme"]},
            layer_config=options.get("layers"),
            dataset=[{"input_ids": rows}],
            nsamples=len(rows),
            seqlen=rows.shape[1],
            batch_size=len(rows),
            iters=2,
            device_map="cpu",
        )
        rounding.quantize_and_save(str(folder), format="auto_round")
        for file in [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]:
            shutil.move(file, folder / file.name)
        plain = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32).eval()
        plain.load_state_dict(dequantized(folder))
        note_answer(plain, tokens["ids"], folder, "auto-round")


def dequantized(folder: Path) -> dict[str, Tensor]:
    """The float32 tensors that a checkpoint stands for, by auto-round's own code."""
    stored = load_file(folder / "model.safetensors")
    table = json.loads((folder / "config.json").read_text())["quantization_config"]
    parts = (".qweight", ".qzeros", ".scales")
    found = {name: value.float() for name, value in stored.items() if not name.endswith(parts)}
    for layer in [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]:
        said: dict[str, Any] = {**table, **table.get("extra_config", {}).get(layer, {})}
        bits, size = said["bits"], said["group_size"]
        words, zeros, scales = (stored[layer + part] for part in parts)
        if "awq" in table["packing_format"]:
            weight = dequantize_gemm(words, zeros, scales, bits, size)
        else:
            packed = QuantLinear(bits, size, words.shape[0] * 32 // bits, words.shape[1], False)
            packed.load_state_dict({"qweight": words, "qzeros": zeros, "scales": scales})
            packed.post_init()
            weight = packed(torch.eye(packed.infeatures).half())  # one input at a time: no sum is rounded
        found[layer + ".weight"] = weight.t().float().contiguous()
    return found


if __name__ == "__main__":
    main()
