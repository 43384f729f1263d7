"""ONNX files in onnxruntime and OpenVINO: ``python -m tools.consumers.graphs --python PYTHON``.

A small encoder, a classifier of convolutions and one of attention are compressed and exported; both runtimes run the
files on the inputs of the proof, and their outputs are compared with those of goldstick's plain backend.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file

import goldstick
from goldstick.jobs.export import graph
from tools.consumers.results import RESULTS, begun, keep

HERE = Path(__file__).parent
_TEXT: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
    "max_position_embeddings": 64,
}  # fmt: skip
_PATCHES: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "num_labels": 4,
}  # fmt: skip
MODELS = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**_TEXT)),
    "resnet": lambda: hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=4)
    ),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**_PATCHES)),
}
SCHEMES = ("w4a16-g32", "w8a16", "w8a8-static", "w8a8-dynamic", "w4a8-dynamic-g32")


def main() -> int:
    """Print a line for each file and runtime, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python that has onnxruntime and OpenVINO")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kept = begun(arguments.out)
    with tempfile.TemporaryDirectory(prefix="goldstick-graphs-") as name:
        folder = Path(name)
        graphs = {}
        for model in arguments.models:
            graphs |= exported(model, folder / model)
        spec, out = folder / "spec.json", folder / "found.json"
        spec.write_text(json.dumps({"graphs": graphs, "out": str(out)}))
        subprocess.run([arguments.python, str(HERE / "graph_worker.py"), str(spec)], check=True)
        told = json.loads(out.read_text())
    kept.setdefault("graphs", {}).update(told["graphs"])
    kept["graph_versions"] = told["versions"]
    for file, answers in told["graphs"].items():
        for runtime, one in answers.items():
            print(f"{file:28} {runtime:12} {one.get('error') or one['squared_error_share']}", flush=True)
    keep(arguments.out, kept)
    return 0


def exported(model: str, folder: Path) -> dict[str, str]:
    """The files of a model, each with its inputs and outputs beside it."""
    torch.manual_seed(0)
    MODELS[model]().eval().save_pretrained(folder / "float")
    shape = (8, 3, 32, 32) if model == "vit" else (8, 3, 64, 64)
    text = {"input_ids": torch.randint(0, 512, (8, 16))}
    save_file(text if model == "bert" else {"pixel_values": torch.randn(shape)}, folder / "seen.safetensors")
    graphs = {}
    for scheme in SCHEMES:
        recipe: dict[str, Any] = {"stages": [{"rtn": {"scheme": scheme, "group_size_mismatch": "channel"}}]}
        if static := "static" in scheme:
            recipe["calibration"] = {"dataset": str(folder / "seen.safetensors"), "samples": 8}
        packed = folder / scheme
        goldstick.quantize(folder / "float", recipe, output=packed, proof="outputs" if static else "tensors")
        made = goldstick.export(packed, "onnx", output=folder / f"{scheme}-onnx")
        path = made.directory / "model.onnx"
        loaded = graph._runnable(packed)
        inputs = graph._inputs_of(loaded)
        np.savez(path.with_suffix(".inputs.npz"), **{name: value.numpy() for name, value in inputs.items()})
        outputs = {name: value.numpy() for name, value in graph._outputs(loaded, inputs).items()}
        np.savez(path.with_suffix(".outputs.npz"), **outputs)
        graphs[f"{model}/{scheme}"] = str(path)
    return graphs


if __name__ == "__main__":
    sys.exit(main())
