"""Round with HQQ: ``PYTHON run_hqq.py SPEC.json``, by the Python that has it installed; it takes no data.

Its own solver and defaults but for bits and groups, which run along the inputs as those of other tools do. The weights
that its codes stand for are stored, so that the comparison depends on no reader.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from transformers import AutoModelForCausalLM


def main() -> None:
    """Round, save, and write how long it took."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32)
    settings = BaseQuantizeConfig(nbits=spec["bits"], group_size=spec["group_size"], axis=1)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith("_proj"):
            rounded = HQQLinear(module, settings, compute_dtype=torch.float32, device="cpu", del_orig=False)
            module.weight.data = rounded.dequantize()
    model.save_pretrained(spec["output"])
    times = {"quantize_and_write": time.perf_counter() - began, "processor_seconds": time.process_time()}
    versions = {name: version(name) for name in ("hqq", "transformers", "torch")}
    Path(spec["times"]).write_text(json.dumps({**times, "versions": versions}))


if __name__ == "__main__":
    main()
