"""Find out how a network can be rotated without changing what it computes, and prove it in float64.

Rotating the residual by an orthogonal Q (R1 of QuaRot, arXiv 2404.00456, and SpinQuant, arXiv 2405.16406): norms hand
their gains to the matrices that read them, these turn back by Q what they read, writers and embeddings turn by Q what
they write. Heads (R2): the values of every head are turned, and turned back where the output projection reads them.

No model family is named here. What reads and writes the residual is tried on a copy with one block of each kind; and
a plan is handed out only after the copy has given the same output with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from goldstick.core.layout import Layout
from goldstick.errors import StructureError
from goldstick.structure.blocks import block_of
from goldstick.structure.network import Network
from goldstick.structure.probe.double import double_copy, double_precision, small_inputs
from goldstick.structure.probe.input_groups import block_signature
from goldstick.structure.rotation.heads import find_heads
from goldstick.structure.rotation.plan import BlockRotation, RotationPlan
from goldstick.structure.rotation.proof import prove_block, prove_model
from goldstick.structure.rotation.residual import ResidualNorm, norm_kind, readers_of, residual_norms, writers_of
from goldstick.structure.rotation.trial import RotationTrial
from goldstick.structure.trace import capture_inputs


def find_rotation(
    network: Network,
    inputs: Mapping[str, Any],
    *,
    residual: bool = True,
    heads: bool = True,
    seed: int = 0,
) -> RotationPlan:
    """What a rotation of ``network`` touches, proven to leave its output as it is.

    Args:
        network: The model, in memory or on the meta device (random weights then stand in); not changed.
        inputs: Keyword arguments for its forward; some dozens of tokens are enough.
        residual: Whether the residual is to be rotated (R1).
        heads: Whether heads are to be turned where they can be (R2).
        seed: Seed of the rotation that the proof is made with.

    Raises:
        StructureError: The model cannot be rotated; the message says where the proof failed, and what was found.
    """
    first_of: dict[object, str] = {}
    kinds = {block: first_of.setdefault(block_signature(network, block), block) for block in network.blocks}
    if not kinds:
        raise StructureError("This model has no repeated blocks: there is no residual to rotate.")
    model, inputs = double_copy(network, set(kinds.values())), small_inputs(inputs)
    with double_precision():
        captured = capture_inputs(model, list(dict.fromkeys(kinds.values())), inputs)
        trials = {path: RotationTrial(model.get_submodule(path), path, *given) for path, given in captured.items()}
        width = next(iter(trials.values())).residual.shape[-1]
        probed = {
            path: _find_in_block(_on_random_residual(trial, width), residual=residual, heads=heads)
            for path, trial in trials.items()
        }
        whole = RotationTrial(model, "", (), inputs)
        plan = RotationPlan(
            width=width,
            keeps_ones=residual and _subtracts_mean(whole, width),
            residual=residual,
            blocks=tuple(probed.values()),
        )
        if not residual and not any(block.heads for block in plan.blocks):
            raise StructureError(
                "No block of this model has values and an output projection between which its heads can be turned "
                "alike, so nothing would be rotated; leave the stage out."
            )
        if residual:
            plan = _find_outside(network, whole, plan)
        errors = {path: prove_block(_on_random_residual(trials[path], width), plan, seed) for path in probed}
        plan = replace(plan, error=prove_model(whole, plan, seed))
    plan = replace(plan, blocks=_every_block(kinds, probed, errors))
    _refuse_shared(network, plan)
    return plan


def _every_block(
    kinds: Mapping[str, str], probed: Mapping[str, BlockRotation], errors: Mapping[str, float]
) -> tuple[BlockRotation, ...]:
    blocks = {path: replace(found, error=errors[path]) for path, found in probed.items()}
    return tuple(blocks[first] if block == first else blocks[first].moved_to(block) for block, first in kinds.items())


def _refuse_shared(network: Network, plan: RotationPlan) -> None:
    """Weights that two layers share would be turned twice; only embeddings and heads can be told apart."""
    ties = network.tied()
    shared = (set(ties) | set(ties.values())) - set(plan.embeddings) - set(plan.unties)
    for edit in plan.edits(0):
        for turn in edit.turns:
            if turn.parameter in shared:
                raise StructureError(
                    f"This model cannot be rotated: {turn.parameter} is shared between layers, and would be turned for "
                    "each of them."
                )


def _on_random_residual(trial: RotationTrial, width: int) -> RotationTrial:
    shape = trial.residual.shape
    if shape[-1] != width:
        raise StructureError(
            f"Block {trial.path} is given {shape[-1]} channels and the first block {width}: there is no one residual "
            "that runs through this model and could be rotated."
        )
    generator = torch.Generator().manual_seed(0)
    return trial.with_residual(torch.randn(shape, generator=generator, dtype=torch.float64).to(trial.residual.device))


def _find_in_block(trial: RotationTrial, *, residual: bool, heads: bool) -> BlockRotation:
    found = residual_norms(trial)
    norms = tuple(
        ResidualNorm(
            norm=trial.absolute(path),
            unit_offset=unit_offset,
            subtracts_mean=subtracts_mean,
            readers=readers_of(trial, module, unit_offset=unit_offset),
        )
        for path, (module, unit_offset, subtracts_mean) in found.items()
    )
    writers = writers_of(trial, [module for module, *_ in found.values()])
    return BlockRotation(
        block=trial.path,
        norms=norms if residual else (),
        writers=writers if residual else (),
        heads=find_heads(trial) if heads else (),
    )


def _subtracts_mean(whole: RotationTrial, width: int) -> bool:
    kinds = (norm_kind(module, width) for module in whole.module.modules())
    return any(kind is not None and kind[1] for kind in kinds)


def _find_outside(network: Network, whole: RotationTrial, plan: RotationPlan) -> RotationPlan:
    """The plan with what lies outside the blocks: embeddings, the norms after the last block and their readers."""
    outside = [path for path, _ in whole.module.named_modules() if block_of(path, network.blocks) is None]
    norms = []
    for path in outside:
        module = whole.module.get_submodule(path)
        kind = norm_kind(module, plan.width)
        if kind is None:
            continue
        readers = readers_of(whole, module, unit_offset=kind[0], but_in=network.blocks)
        if readers:
            norms.append(ResidualNorm(norm=path, unit_offset=kind[0], subtracts_mean=kind[1], readers=readers))
    ties = network.tied()
    embeddings = [
        site.parameter_name
        for site in network.sites
        if site.layout is Layout.EMBEDDING and site.block is None and site.in_features == plan.width
    ]
    heads = {reader for norm in norms for reader in norm.readers}
    shared = {ties.get(name, name) for name in embeddings}
    return replace(
        plan,
        embeddings=tuple(name for name in embeddings if name not in ties),
        norms=tuple(norms),
        unties=tuple(sorted(head for head in heads if ties.get(head, head) in shared)),
    )
