"""Quantize with GPTQModel: ``PYTHON write_gptqmodel.py SPEC.json``, by the Python that has it installed.

Its own defaults but for what each case says (bits, groups, ``desc_act``, the file's format).
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # it starts two loaders, and on one core allows itself one worker

import torch
from gptqmodel import GPTQModel, QuantizeConfig
from safetensors.torch import load_file


def main() -> None:
    """Make a checkpoint of ``model`` for each of ``cases``; write how long that took where ``times`` is given."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    began = time.perf_counter()
    rows = load_file(spec["ids"])["calibration"]
    data = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in rows]
    for name, options in spec["cases"].items():
        config = QuantizeConfig(device="cpu", offload_to_disk=False, **options)
        model = GPTQModel.load(spec["model"], config, dtype=torch.float16)
        model.quantize(data, batch_size=4)
        model.save(str(Path(spec["output"]) / name))
    if "times" in spec:
        times = {"quantize_and_write": time.perf_counter() - began, "processor_seconds": time.process_time()}
        versions = {name: version(name) for name in ("gptqmodel", "transformers", "torch")}
        Path(spec["times"]).write_text(json.dumps({**times, "versions": versions}))


if __name__ == "__main__":
    main()
