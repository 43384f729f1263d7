"""SCOP on a CIFAR-10 ResNet, against pruning by |γ| and at random: `python -m benchmarks.scop [--epochs 30]`.

The float network is fine-tuned first, on the same JPEG copies it is measured on. SCOP then cuts a share of the
channels; the others cut until as many multiplications are left; all are fine-tuned alike. Each training leaves a
checkpoint after every epoch in --work, from which a stopped run goes on; results go to benchmarks/results/, with budget
and seed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn

import goldstick
from benchmarks.cifar import (
    ROOT,
    Augmented,
    Table,
    argument_parser,
    float_training,
    normalised,
    plain_training,
    pretrained,
    read_images,
    training_options,
)
from goldstick.algorithms import SCOP, Finetune, Stage
from goldstick.jobs.save.result import Result
from goldstick.recipes.prune import seconds_of
from goldstick.training import TrainingTask

#: Images of one forward whose time is measured.
_TIMED_IMAGES = 64


def main() -> None:
    """Measure and write the table."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    data = Augmented(**dict(zip(("images", "classes"), read_images("train", arguments.images), strict=True)))
    out = arguments.out or ROOT / "benchmarks" / "results" / f"scop-resnet{arguments.depth}.json"
    settings = {name: value for name, value in vars(arguments).items() if name not in ("work", "out")}
    table = Table(out, settings, len(data.images), arguments.test_images)

    def note(name: str, model: nn.Module, **more: Any) -> None:
        timed = seconds_of(model.eval(), (normalised(torch.zeros(_TIMED_IMAGES, 3, 32, 32)),), {})
        table.note(name, model, seconds=timed, timed_images=_TIMED_IMAGES, **more)

    def made(model: nn.Module, name: str, *stages: Stage) -> Result:
        started = time.perf_counter()
        task = TrainingTask(batches=data, directory=arguments.work / name)
        result = goldstick.apply(model, {"stages": list(stages)}, training=task, progress=_progress)
        more: dict[str, Any] = {"training_seconds": time.perf_counter() - started}
        for pruning in result.report.pruning:
            more |= {key: pruning[key] for key in ("parameters", "macs")}
            more["kept"] = {layer["name"]: [layer["kept"], layer["units"]] for layer in pruning["layers"]}
        note(name, result.model, losses=[one["losses"] for one in result.report.training], **more)
        return result

    finetune = Finetune(training=training_options(arguments))
    gates = plain_training(
        arguments, epochs=arguments.gate_epochs, rate=4e-3, betas=(0.5, 0.9), schedule="constant", norm_batches=0
    )
    base = pretrained(arguments.depth)
    note("float, as it came", base)
    tuned = made(base, "float", Finetune(training=float_training(arguments))).model
    scop = SCOP(rate=arguments.share, scope=arguments.scope, knockoffs=arguments.knockoffs, training=gates)
    (pruning,) = made(tuned, "scop", scop, finetune).report.pruning
    left = pruning["macs"][1] / pruning["macs"][0]
    for criterion in ("magnitude", "random"):
        other = SCOP(rate=None, macs=left, scope=arguments.scope, criterion=criterion, training=gates)
        made(tuned, criterion, other, finetune)


def _progress(description: str, done: int, total: int) -> None:
    if done and done % 50 == 0:
        print(f"{description}: step {done} of {total}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__, "scop")
    parser.add_argument("--share", type=float, default=0.45, help="of the channels of each layer that SCOP cuts")
    parser.add_argument("--scope", choices=("layer", "global"), default="layer")
    parser.add_argument("--knockoffs", choices=("shuffle", "gaussian"), default="shuffle")
    parser.add_argument("--gate-epochs", type=int, default=5, help="in which the gates learn")
    parser.add_argument("--test-images", type=int, help="measure on the first so many images")
    return parser.parse_args()


if __name__ == "__main__":
    main()
