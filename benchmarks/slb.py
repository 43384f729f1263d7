"""SLB on a CIFAR-10 ResNet, against rounding and straight-through training: `python -m benchmarks.slb [--epochs 30]`.

The float network is fine-tuned first, on the same JPEG copies it is measured on, and at the end once more for as long
as the others were trained, so that what is due to training longer is seen. Each training leaves a checkpoint
after every epoch in --work, from which a stopped run goes on; results go to benchmarks/results/, with budget and seed.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import goldstick
from benchmarks.cifar import (
    ROOT,
    Augmented,
    Table,
    argument_parser,
    float_training,
    pretrained,
    read_images,
    training_options,
)
from benchmarks.straight_through import LearnedStep, StraightThrough
from goldstick.algorithms import SLB, Finetune, Stage
from goldstick.jobs.save.result import Result
from goldstick.training import TrainingTask

#: What of the search may be told: how its temperature rises, and how fast its logits learn.
_ANNEALING = ("temperature", "anneal_from", "discrete_from", "harden_at", "logits_rate")


def main() -> None:
    """Measure and write the table."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    data = Augmented(**dict(zip(("images", "classes"), read_images("train", arguments.images), strict=True)))
    out = arguments.out or ROOT / "benchmarks" / "results" / f"slb-resnet{arguments.depth}.json"
    settings = {name: value for name, value in vars(arguments).items() if name not in ("work", "out")}
    table = Table(out, settings, len(data.images), None)

    def trained(model: nn.Module, name: str, stage: Stage) -> Result:
        started = time.perf_counter()
        task = TrainingTask(batches=data, directory=arguments.work / name)
        result = goldstick.apply(model, {"stages": [stage]}, training=task, progress=_progress)
        (training,) = result.report.training
        table.note(
            name, result.model, seconds=time.perf_counter() - started, losses=training["losses"], **_bytes(result)
        )
        return result

    training = training_options(arguments)
    base = pretrained(arguments.depth)
    table.note("float, as it came", base)
    tuned = trained(base, "float", Finetune(training=float_training(arguments))).model
    for bits in arguments.bits:
        scheme = f"w{bits}a16-channel-asym"
        rounding = {"scheme": scheme, "range_search": "mse", "targets": {"include": ["layer*"]}}
        table.note(f"rtn w{bits}", goldstick.apply(tuned, {"stages": [{"rtn": rounding}]}).model)
        annealing = {name: value for name in _ANNEALING if (value := getattr(arguments, name)) is not None}
        trained(tuned, f"slb w{bits}", SLB(scheme=scheme, training=training, **annealing))
        trained(tuned, f"learned step w{bits}", LearnedStep(scheme=scheme, training=training))
        trained(tuned, f"straight-through w{bits}", StraightThrough(scheme=scheme, training=training))
    trained(tuned, "float, trained on", Finetune(training=training))


def _bytes(result: Result) -> dict[str, float]:
    layers = [layer for layer in result.report.layers if layer.scheme]
    if not layers:
        return {}
    before, after = sum(layer.bytes_before for layer in layers), sum(layer.bytes_after for layer in layers)
    sizes = {"bytes_before": before, "bytes_after": after}
    if not all("codes_moved" in layer.notes for layer in layers):
        return sizes
    moved = sum(layer.elements * float(layer.notes["codes_moved"]) for layer in layers)
    return sizes | {"codes_moved": moved / sum(layer.elements for layer in layers)}


def _progress(description: str, done: int, total: int) -> None:
    if done and done % 50 == 0:
        print(f"{description}: step {done} of {total}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__, "slb")
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 2, 1])
    for name in _ANNEALING:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, help="of the search; its own where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
