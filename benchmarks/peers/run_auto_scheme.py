"""What auto-round's AutoScheme gives each layer: ``PYTHON run_auto_scheme.py SPEC.json``, by the Python that has it.

Its own scores and its own choice, for several sizes at once; nothing is rounded for good. The spec names the model, the
layers, the candidates as [bits, group size], the text as a JSON file of rows, and the average bits asked for, which
count the scales but no zeros, since the candidates are symmetric.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from auto_round.auto_scheme.gen_auto_scheme import AutoScheme, GenScheme
from auto_round.schemes import QuantizationScheme
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Score, choose, and write layer → [bits, group size] for each size."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    began = time.process_time()
    asked = AutoScheme(
        avg_bits=list(spec["bits"]),
        options=[
            QuantizationScheme(bits=bits, group_size=group, sym=True, data_type="int", act_bits=16)
            for bits, group in spec["candidates"]
        ],
        nsamples=spec["samples"],
        seqlen=spec["seq_len"],
        batch_size=1,
        dataset=spec["text"],
        device_map="cpu",
        low_gpu_mem_usage=False,
        low_cpu_mem_usage=False,
        enable_torch_compile=False,
    )
    for name, module in model.named_modules():
        module.global_name = name
    generated = GenScheme(
        asked, model, list(spec["layers"]), {}, dataset=spec["text"], device_map="cpu", tokenizer=tokenizer,
        enable_torch_compile=False,
    )  # fmt: skip
    found: dict[str, Any] = {
        str(bits): {name: [one["bits"], one["group_size"]] for name, one in layers.items() if name in spec["layers"]}
        for bits, layers in generated.get_layer_config().items()
    }
    versions = {name: version(name) for name in ("auto-round", "transformers", "torch")}
    Path(spec["output"]).write_text(
        json.dumps({"chosen": found, "processor_seconds": time.process_time() - began, "versions": versions})
    )


if __name__ == "__main__":
    main()
