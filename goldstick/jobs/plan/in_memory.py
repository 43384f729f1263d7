"""The stages that act on a network as a whole, rotation and KV cache, around those that act on layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from goldstick.algorithms import DataRequirement, Distill
from goldstick.algorithms.stage import CacheQuantizer
from goldstick.calibration.kv_ranges import KVRecorder
from goldstick.core.edits import Prune
from goldstick.core.progress import Progress
from goldstick.core.references import deep_copy
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.example_inputs import inputs_for as inputs_for
from goldstick.recipes.distill import Before, distill
from goldstick.recipes.found_rotation import FoundRotation
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.rotate import rotate
from goldstick.recipes.run import Measured, SiteResult, run
from goldstick.recipes.train import train_stages
from goldstick.structure.network import Network
from goldstick.training import TrainingTask


@dataclass(frozen=True, kw_only=True)
class InMemoryResult:
    """What a recipe did to a network.

    Attributes:
        network: The network as it is now.
        resolution: What the recipe means for it.
        results: What became of each site.
        account: The report's account of the rotation, the training, the pruning and the KV cache.
        cuts: What was cut out of it.
    """

    network: Network
    resolution: Resolution
    results: dict[str, SiteResult]
    account: dict[str, Any]
    cuts: tuple[Prune, ...]


def run_on_whole(
    network: Network,
    resolution: Resolution,
    rotation: FoundRotation | None,
    batches: Sequence[Mapping[str, Tensor]],
    progress: Progress,
    training: TrainingTask | None = None,
    measured: Measured | None = None,
    states: Path | None = None,
) -> InMemoryResult:
    """Do all that a recipe says to a network in memory, in place.

    Args:
        network: The network.
        resolution: What its recipe means.
        rotation: What is to be turned first.
        batches: Calibration data.
        progress: Told what is done.
        training: What stages train on that train; the calibration data where ``None``.
        measured: Told how large the inputs of each site are that a stage looks at.
        states: Where distillation leaves its state after each epoch, and goes on from it; ``None`` for nowhere.
    """
    account: dict[str, Any] = {}
    if rotation is not None:
        inputs = inputs_for(network.model, batches)
        assert inputs is not None  # the rotation was found with them
        network, error = rotate(network, rotation, inputs)
        account["rotation"] = rotation.to_dict(error)
    if training is None and batches and resolution.trains:
        training = TrainingTask(batches=batches)
    trained = train_stages(network, resolution, training, progress)
    network, resolution = trained.network, trained.resolution
    if trained.accounts:
        account["training"] = trained.accounts
    if trained.pruning:
        account["pruning"] = trained.pruning
    stage = resolution.first(CacheQuantizer)
    recorder = KVRecorder() if stage is not None and stage.data_requirement is not DataRequirement.NONE else None
    distilling = resolution.first(Distill)
    before = None if distilling is None else Before.of(distilling, deep_copy(network.model), batches)
    weights = None if before is None else before.weights
    results = run(network, resolution, progress, batches, recorder, trained.results, measured, weights)
    if before is not None:
        account.setdefault("training", []).append(distill(network, resolution, results, before, states, progress))
    if stage is not None:
        use_quantized_cache(network.model, stage.solve(recorder.ranges if recorder is not None else {}))
        account["kv_cache"] = {"scheme": stage.scheme.label}
    return InMemoryResult(network=network, resolution=resolution, results=results, account=account, cuts=trained.edits)
