"""A copy of a checkpoint with activation outliers planted in it; what the model computes stays.

``python -m tools.planted_outliers SOURCE OUTPUT`` multiplies a few channels of every norm that the structure probe
finds a fold for by 20 to 100, and divides the columns that read them; with ``--behind linear`` those of the layers
before down and output projections. Large models have such channels by themselves; small ones do not, and then nothing
shows what smoothing and rotation are good for.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from goldstick import surgery
from goldstick.core.edits import Fold
from goldstick.hf.example_inputs import fixed_inputs
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.proof.observation import first_output
from goldstick.structure.network import Network
from goldstick.structure.probe.input_groups import probe_network


def main() -> None:
    """Read, plant, write, and print how far the outputs moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--share", type=float, default=0.02, help="part of the channels (0.01 to 0.05)")
    parser.add_argument("--least", type=float, default=20.0, help="smallest factor")
    parser.add_argument("--most", type=float, default=100.0, help="largest factor")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--behind", choices=("norm", "linear"), default="norm", help="what gives the channels")
    arguments = parser.parse_args()
    quiet_libraries()
    model = AutoModelForCausalLM.from_pretrained(arguments.source, dtype=torch.float32).eval()
    before = logits(model)
    factors = arguments.least, arguments.most
    folds = plant(model, arguments.share, factors, arguments.seed, behind=arguments.behind)
    after = logits(model)
    write(model, arguments.source, arguments.output)
    for fold in folds:
        print(f"{fold.producer}: {int((fold.scale != 1).sum())} of {fold.scale.numel()} channels")
    difference = float((after - before).norm() / before.norm())
    print(f"the logits differ by {difference:.1e} of their norm, {float((after - before).abs().max()):.1e} at most")


@torch.no_grad()
def plant(
    model: nn.Module,
    share: float,
    factors: tuple[float, float],
    seed: int,
    *,
    behind: Literal["norm", "linear"] = "norm",
) -> list[Fold]:
    """Plant outliers in place: for every norm with a fold, ``share`` of its channels times a factor.

    Args:
        model: A transformers model with float32 weights.
        share: Part of the channels; at least one is taken.
        factors: The factors are log-uniform between these two.
        seed: Seed of channels and factors.
        behind: What gives the channels: norms, or linear layers, such as those before down and output projections.

    Returns:
        What was folded: the scales are 1 / factor.

    Raises:
        ValueError: The structure probe finds nothing of the kind that can absorb a scale.
    """
    network = Network(model)
    generator = torch.Generator().manual_seed(seed)
    folds = []
    for block in probe_network(network, fixed_inputs(model)).values():
        for pair in block.folds:
            if pair.kind != behind:
                continue
            channels = network.by_name[pair.consumers[0]].in_features
            chosen = torch.randperm(channels, generator=generator)[: max(1, round(share * channels))]
            least, most = factors
            exponents = torch.rand(len(chosen), generator=generator)
            scale = torch.ones(channels)
            scale[chosen] = 1 / (least * (most / least) ** exponents)
            folds.append(pair.fold(scale))
    if not folds:
        raise ValueError(f"No {behind} of this model can absorb a scale, so no outlier can be planted.")
    surgery.apply(network, folds)
    return folds


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    """The model's output on fixed inputs."""
    return first_output(model(**fixed_inputs(model)))


def write(model: nn.Module, source: Path, output: Path) -> None:
    """Write the model in float32, and beside it every other file of its source."""
    output.mkdir(parents=True)
    model.save_pretrained(output)
    for file in sorted(source.iterdir()):
        if not (output / file.name).exists() and not file.name.endswith((".safetensors", ".safetensors.index.json")):
            (shutil.copytree if file.is_dir() else shutil.copyfile)(file, output / file.name)


if __name__ == "__main__":
    main()
