"""What checkpoints answer to the same tokens: ``PYTHON logits.py SPEC.json``, by the Python whose reader is asked.

Plain transformers loads every directory in float32, with whatever package the checkpoint's format calls for: gptqmodel
and optimum for GPTQ and AWQ, compressed-tensors for its own. Nothing of goldstick is imported.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

PACKAGES = ("gptqmodel", "llmcompressor", "compressed-tensors", "optimum", "transformers", "torch")


def main() -> None:
    """Write the logits of each of ``checkpoints`` beside the class of its layers, and the versions of who read them."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    ids = load_file(spec["ids"])["ids"]
    found, layers = {}, {}
    for name, directory in spec["checkpoints"].items():
        options = {"quantization_config": _dequantizing()} if _asymmetric(Path(directory)) else {}
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **options).eval()
        with torch.inference_mode():
            found[name] = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float().contiguous()
        layers[name] = type(model.model.layers[0].mlp.down_proj).__name__
    save_file(found, spec["logits"])
    Path(spec["result"]).write_text(json.dumps({"layers": layers, "versions": _versions()}))


def _asymmetric(directory: Path) -> bool:
    """Whether compressed-tensors' reader needs to be told to dequantize, since it fails on packed zeros otherwise."""
    table = json.loads((directory / "config.json").read_text())["quantization_config"]
    groups = table.get("config_groups", {}).values()
    return any(not group["weights"]["symmetric"] for group in groups) and "dequantize" not in table


def _dequantizing() -> object:
    from transformers import CompressedTensorsConfig

    return CompressedTensorsConfig(dequantize=True)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
