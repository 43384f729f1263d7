"""Quantize with llm-compressor: ``PYTHON write_llm_compressor.py SPEC.json``, by the Python that has it installed.

Rounding to nearest for the weights that each case describes in compressed-tensors' own words; no data are needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM


def main() -> None:
    """Make a checkpoint of ``model`` for each of ``cases``."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    for name, group in spec["cases"].items():
        model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype="auto")
        groups = {"group_0": {"targets": ["Linear"], **group}}
        oneshot(model=model, recipe=[QuantizationModifier(config_groups=groups, ignore=["lm_head"])])
        model.save_pretrained(Path(spec["output"]) / name, save_compressed=True)


if __name__ == "__main__":
    main()
