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
from given import load_model, to_quantize
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear


def main() -> None:
    """Round, save, and write how long it took."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    began = time.perf_counter()
    model = load_model(spec, torch.float32)
    settings = BaseQuantizeConfig(nbits=spec["bits"], group_size=spec["group_size"], axis=1)
    for name in to_quantize(spec, model):
        module = model.get_submodule(name)
        rounded = HQQLinear(module, settings, compute_dtype=torch.float32, device="cpu", del_orig=False)
        module.weight.data = rounded.dequantize()
    model.save_pretrained(spec["output"])
    times = {"quantize_and_write": time.perf_counter() - began, "processor_seconds": time.process_time()}
    versions = {name: version(name) for name in ("hqq", "transformers", "torch")}
    Path(spec["times"]).write_text(json.dumps({**times, "versions": versions}))


if __name__ == "__main__":
    main()
