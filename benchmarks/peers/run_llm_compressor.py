"""Quantize with llm-compressor: ``PYTHON run_llm_compressor.py SPEC.json``, by the Python that has it installed.

Everything is the tool's default but for the scheme, the layers that stay float, the data (as given, in order,
unshuffled) and the number of windows that pass the model together.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from given import batches, float_layers, load_model
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

LINEARS = "(q|k|v|o|gate|up|down)_proj"


def main() -> None:
    """Quantize, save, and write how long each part took."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    # AWQ pins memory for a faster copy to a GPU, which fails on a host without one.
    IntermediatesCache.pin_memory = lambda *_, **__: None  # type: ignore[method-assign]
    began = time.perf_counter()
    model = load_model(spec)
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    given = batches(spec)
    loaded = time.perf_counter()
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=DataLoader(given, batch_size=None),
        recipe=recipe(spec, float_layers(spec, model)),
    )
    quantized = time.perf_counter()
    model.save_pretrained(spec["output"], save_compressed=True)
    tokenizer.save_pretrained(spec["output"])
    saved = time.perf_counter()
    times = {"load": loaded - began, "quantize": quantized - loaded, "write": saved - quantized}
    versions = {name: version(name) for name in ("llmcompressor", "compressed-tensors", "transformers", "torch")}
    if torch.cuda.is_available():
        times["device_peak_bytes"] = torch.cuda.max_memory_allocated()
    times |= {"quantize_and_write": saved - began, "processor_seconds": time.process_time()}
    Path(spec["times"]).write_text(json.dumps({**times, "versions": versions}))


def recipe(spec: dict[str, Any], left: list[str]) -> list[Any]:
    """The modifiers of a method, which leave some layers as they are."""
    scheme: dict[str, Any] = {"ignore": left}
    if spec.get("preset"):
        scheme |= {"targets": "Linear", "scheme": spec["preset"]}
    else:
        scheme["config_groups"] = groups(spec)
    if spec["method"] == "autoround":
        from llmcompressor.modifiers.autoround import AutoRoundModifier  # takes seconds

        # It compiles each block by default, which takes most of its time on a small model.
        return [AutoRoundModifier(**scheme, enable_torch_compile=False)]
    gptq, rounding = GPTQModifier(**scheme), QuantizationModifier(**scheme)
    return {
        "rtn": [rounding],
        "gptq": [gptq],
        "awq": [AWQModifier(), rounding],
        "awq-gptq": [AWQModifier(), gptq],
        "smoothquant-gptq": [SmoothQuantModifier(smoothing_strength=0.8), gptq],
    }[spec["method"]]


def groups(spec: dict[str, Any]) -> dict[str, Any]:
    """The scheme; layers whose inputs the group size does not divide get a scale for each row."""
    activations = None
    if spec["activation_bits"]:
        activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}

    def group(targets: list[str], size: int | None) -> dict[str, Any]:
        weights = {
            "num_bits": spec["bits"],
            "type": "int",
            "symmetric": True,
            "strategy": "group" if size else "channel",
            "group_size": size,
            **spec["options"],
        }
        return {"targets": targets, "weights": weights, "input_activations": activations}

    if not spec["by_row"]:
        return {"group_0": group(["Linear"], spec["group_size"])}
    rest = "|".join(spec["by_row"])
    return {
        "group_0": group([f"re:.*\\.(?!({rest})$){LINEARS}$"], spec["group_size"]),
        "group_1": group([f"re:.*\\.({rest})$"], None),
    }


if __name__ == "__main__":
    main()
