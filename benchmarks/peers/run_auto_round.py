"""Quantize with auto-round: ``PYTHON run_auto_round.py SPEC.json``, by the Python that has it installed.

Its own defaults (200 iterations for each block, or as many as ``options`` say) but for the scheme, the data and the
device. It stores dequantized weights, so that the comparison depends on no reader's support for its formats. It leaves
some layers float without an error; that would be no comparison, so it is one here.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from auto_round import AutoRound
from given import batches, float_layers, load_model, load_processor, to_quantize, untouched
from safetensors.torch import load_file
from transformers import AutoTokenizer


def main() -> None:
    """Quantize, save, and write how long each part took."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    began = time.perf_counter()
    model = load_model(spec)
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    given = batches({**spec, "batch_size": 8})  # its own default
    layers = to_quantize(spec, model)
    rows = next(iter(given[0].values()))
    others = {name: {"bits": 16} for name in float_layers(spec, model) if spec.get("layers")}
    by_row = [
        name for name, _ in model.named_modules() if spec["group_size"] and name.rpartition(".")[2] in spec["by_row"]
    ]
    loaded = time.perf_counter()
    rounding = AutoRound(
        model,
        tokenizer,
        scheme={
            "bits": spec["bits"],
            "group_size": spec["group_size"] or -1,
            "sym": True,
            "data_type": spec.get("data_type", "int"),
            "act_bits": 16,
        },
        layer_config={name: {"bits": spec["bits"], "group_size": -1} for name in by_row} | others,
        dataset=given,
        nsamples=sum(len(next(iter(batch.values()))) for batch in given),
        seqlen=rows.shape[1],
        batch_size=len(rows),
        device_map="cpu",
        **load_processor(spec),
        **spec["options"],
    )
    rounding.quantize_and_save(spec["output"], format="fake")
    saved = time.perf_counter()
    refuse_float_layers(Path(spec["model"]), Path(spec["output"]), layers)
    times = {
        "load": loaded - began,
        "quantize_and_write": saved - began,
        "processor_seconds": time.process_time(),
    }
    versions = {name: version(name) for name in ("auto-round", "transformers", "torch")}
    Path(spec["times"]).write_text(json.dumps({**times, "versions": versions}))


def refuse_float_layers(source: Path, output: Path, layers: list[str]) -> None:
    """Stop where a layer that was to be quantized was stored as it was."""
    (file,) = output.rglob("model.safetensors")
    left = untouched(load_file(source / "model.safetensors"), load_file(file), layers)
    if left:
        sys.exit(f"auto-round left {len(left)} layers float, such as {left[0]}")


if __name__ == "__main__":
    main()
