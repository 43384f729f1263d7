"""Whole convolutional networks, float32 beside what goldstick makes of them, by turns: milliseconds of one forward.

    python -m benchmarks.networks --threads 2

ResNet-20 with the weights of the data directory on 32 x 32 images; ResNet-50, MobileNet and MobileNetV2 of
transformers with random weights on 224 x 224. Batch norms are folded in the quantized networks, and in the float one
that is the harder to beat; "with norms" is the float network as it came. "Optimized" is what goldstick.optimize makes
of a network, and "with norms, optimized" of one whose norms were not folded before. "onnxruntime" runs the static
network as ``goldstick export --format onnx`` writes it: the same codes. The least time of all rounds
counts.
"""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
import json
import platform
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import goldstick
from benchmarks.cifar import ROOT, pretrained
from benchmarks.convolutions import Run, keep_memory, timed
from goldstick.core.json_files import write_atomically
from goldstick.formats import GRAPHS
from goldstick.jobs.export.graph import traced_graph
from goldstick.jobs.export.graph_layers import stand_in_for_layers
from goldstick.kernels.cpu import chosen_isa
from goldstick.recipes import Recipe
from goldstick.recipes.needs_data import needs_data

FLOAT = {"stages": ["fold_batch_norm"]}
RECIPES = {"w8a8-static": "fold-rtn-w8a8-static", "w8a8-dynamic": "fold-rtn-w8a8-dynamic", "w8a16": "fold-rtn-w8a16"}
KEPT = "rtn-w8a8-dynamic"


class Classifier(nn.Module):
    """A model of transformers as a plain module, which batch norms may be folded in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Images [images, 3, side, side] to logits [images, classes]."""
        logits: Tensor = self.model(images).logits
        return logits


def networks() -> dict[str, tuple[nn.Module, int]]:
    """Each with the side of its images."""
    torch.manual_seed(0)
    found = {
        "ResNet-50": transformers.ResNetForImageClassification(transformers.ResNetConfig()),
        "MobileNet": transformers.MobileNetV1ForImageClassification(transformers.MobileNetV1Config()),
        "MobileNetV2": transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config()),
    }
    return {"ResNet-20": (pretrained(20), 32), **{name: (Classifier(model), 224) for name, model in found.items()}}


def versions(model: nn.Module, calibration: list[Tensor]) -> dict[str, nn.Module]:
    """The network as it is and folded; quantized by each recipe, as that leaves it and optimized."""
    found = {"float32 with norms": model, "float32": goldstick.apply(model, FLOAT, data=calibration).model}
    for name, recipe in RECIPES.items():
        looks = needs_data(Recipe.load(recipe).stages)
        found[name] = goldstick.apply(model, recipe, data=calibration if looks else None).model
        found[f"{name} optimized"] = optimized(found[name], calibration[0])
    kept = goldstick.apply(model, KEPT).model
    found["w8a8-dynamic with norms, optimized"] = optimized(kept, calibration[0])
    return {name: one.eval() for name, one in found.items()}


def optimized(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy, rearranged to run faster."""
    faster = copy.deepcopy(model).eval()
    name = next(iter(inspect.signature(faster.forward).parameters))
    goldstick.optimize(faster, {name: images[:2]})
    return faster


def calls(versions: dict[str, nn.Module], x: Tensor) -> dict[str, Run]:
    """A forward of each, with channels first and last."""
    last = x.contiguous(memory_format=torch.channels_last)
    runs: dict[str, Run] = {}
    for name, model in versions.items():
        runs[name] = lambda model=model: model(x)
        runs[f"{name} channels last"] = lambda model=model: model(last)
    return runs


def exported(model: nn.Module, images: Tensor, threads: int) -> Callable[[Any], Any]:
    """onnxruntime on the graph of a quantized network, images with channels first."""
    import onnxruntime

    graph, held = GRAPHS["onnx"], copy.deepcopy(model).eval()
    layers = stand_in_for_layers(held)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / graph.file
        graph.write(traced_graph(held, {"images": images}, ("logits",), graph.version), layers, file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "0"
        )  # it would run on while others are timed
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, {"images": given})


def main() -> None:
    """Time all, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=8.0, help="for one network and batch at most")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "networks.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_memory()
    warnings.simplefilter("ignore")
    machine = {"processor": platform.machine(), "isa": chosen_isa(), "torch": torch.__version__}
    content: dict[str, Any] = {"machine": machine, "threads": arguments.threads, "ms": {}}
    for name, (model, side) in networks().items():
        calibration = torch.randn(8, 3, side, side)
        made = versions(model.eval(), [calibration])
        peer = exported(made["w8a8-static"], calibration, arguments.threads) if isinstance(model, Classifier) else None
        for batch in arguments.batches:
            images = torch.randn(batch, 3, side, side)
            runs = calls(made, images)
            if peer is not None:
                runs["onnxruntime"] = functools.partial(peer, images.numpy())
            least = timed(runs, arguments.rounds, arguments.seconds)
            content["ms"][f"{name}, batch {batch}"] = least
            print(f"{name}, batch {batch}: " + ", ".join(f"{one} {ms:.2f}" for one, ms in least.items()), flush=True)
    write_atomically(arguments.out, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
