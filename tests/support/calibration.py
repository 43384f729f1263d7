"""Calibration of tiny models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from goldstick.calibration.arguments import block_calls
from goldstick.calibration.block import BlockCalibration
from goldstick.calibration.block_loop import block_runs, calibrate, masks_of, starts
from goldstick.calibration.scale_fold_targets import ScaleFoldTargets, small
from goldstick.calibration.sweep import prepare_experts
from goldstick.calibration.task import Assignment
from goldstick.core.edits import Quantize
from goldstick.core.error import WeightError
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.run import calibrated_work
from goldstick.structure.network import Network
from tests.support.tiny_models import FAMILIES, VOCABULARY

Batches = list[dict[str, Tensor]]


def token_batches(count: int, rows: int = 4) -> Batches:
    """So many batches of rows of 16 tokens, drawn by chance, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(3, VOCABULARY, (rows, 16), generator=generator)} for _ in range(count)]


def seeded_llama() -> PreTrainedModel:
    """The tiny Llama, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FAMILIES["llama_gqa"]()


def batches_for(model: PreTrainedModel, *, count: int = 4, rows: int = 2, tokens: int = 24) -> Batches:
    """Random inputs of the kind that the model wants."""
    generator = torch.Generator().manual_seed(11)
    if model.main_input_name == "pixel_values":
        side = getattr(model.config, "image_size", 32)
        return [{"pixel_values": torch.randn(8, 3, side, side, generator=generator)} for _ in range(count)]
    ids = torch.randint(3, VOCABULARY, (count, rows, tokens), generator=generator)
    if model.config.is_encoder_decoder:
        return [{"input_ids": batch, "decoder_input_ids": batch[:, : tokens // 2] - 1} for batch in ids]
    return [{"input_ids": batch} for batch in ids]


def first_block(
    family: str, stages: list[dict[str, Any]], *, together: bool, change: Callable[[Any], None] | None = None
) -> tuple[dict[str, Quantize], list[Tensor]]:
    """The first block of a model calibrated: what was decided, and what it then gives."""
    model = FAMILIES[family]()
    if change is not None:
        change(model)
    network, batches = Network(model), batches_for(model)
    edits: dict[str, Quantize] = {}

    def note(task: Assignment, edit: Quantize, error: WeightError) -> None:
        edits[task.site.name] = edit

    work = calibrated_work(network, resolve(Recipe.load({"stages": stages}).stages, network), note)
    prepare_experts(network, work)
    block = network.blocks[0]
    with torch.no_grad():
        hidden, calls = starts(model, network.blocks, batches)
        fold_targets = ScaleFoldTargets(network, *block_calls(model, network.blocks, small(batches[0])))
        pairs = fold_targets.of(block) if work.smoothing else ()
        runs = block_runs(model.get_submodule(block), block, calls, hidden)
        outputs = calibrate(
            BlockCalibration(network, work.within(block), runs, masks_of(batches), pairs=pairs, together=together)
        )
    return edits, outputs


def uneven(model: Any) -> None:
    """Channels of very different size where o_proj reads, for its weights to be scaled by."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight[[0, 16]] *= 8
