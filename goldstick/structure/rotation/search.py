"""Find out how a network can be rotated without changing what it computes, and prove it in float64.

Rotating the residual by an orthogonal Q (R1 of QuaRot, arXiv 2404.00456, and SpinQuant, arXiv 2405.16406): norms hand
their gains to the matrices that read them, these turn back by Q what they read, writers and embeddings turn by Q what
they write. Heads (R2): the values of every head are turned, and turned back where the output projection reads them.
Inputs (R4): linear layers that write to the residual turn what they are given themselves when they run.

No model family is named here. What reads and writes the residual is tried on a copy with one block of each kind; and
a plan is handed out only after the copy has given the same output with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from goldstick.core.edits import RotateInput
from goldstick.core.input_rotation import SMALLEST_TRANSFORM, transform_size
from goldstick.core.layout import Layout
from goldstick.errors import StructureError
from goldstick.structure.blocks import block_of
from goldstick.structure.network import Network
from goldstick.structure.plain_layers import Reading
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
    online: bool = False,
    block_size: int | None = None,
    seed: int = 0,
) -> RotationPlan:
    """What a rotation of ``network`` touches, proven to leave its output as it is.

    Args:
        network: The model, in memory or on the meta device (random weights then stand in); not changed.
        inputs: Keyword arguments for its forward; some dozens of tokens are enough.
        residual: Whether the residual is to be rotated (R1).
        heads: Whether heads are to be turned where they can be (R2).
        online: Whether layers that write to the residual are to turn their input at run time (R4).
        block_size: Channels that are mixed with each other at the most; ``None`` for as many as there are.
        seed: Seed of the rotation that the proof is made with.

    Raises:
        StructureError: The model cannot be rotated; the message says where the proof failed, and what was found.
    """
    first_of: dict[object, str] = {}
    kinds = {block: first_of.setdefault(block_signature(network, block), block) for block in network.blocks}
    if not kinds:
        raise StructureError("This model has no repeated blocks: there is no residual to rotate.")
    layers = _layers_with_inputs(network) if online else frozenset()
    model, inputs = double_copy(network, set(kinds.values())), small_inputs(inputs)
    with double_precision():
        captured = capture_inputs(model, list(dict.fromkeys(kinds.values())), inputs)
        trials = {path: RotationTrial(model.get_submodule(path), path, *given) for path, given in captured.items()}
        width = next(iter(trials.values())).residual.shape[-1]
        if block_size and width % block_size:
            raise StructureError(
                f"The residual of this model has {width} channels, which are no whole blocks of {block_size}: give "
                "another block_size, or leave it out."
            )
        probed = {
            path: _find_in_block(
                _on_random_residual(trial, width), residual=residual, heads=heads, layers=layers, block_size=block_size
            )
            for path, trial in trials.items()
        }
        whole = RotationTrial(model, "", (), inputs)
        plan = RotationPlan(
            width=width,
            keeps_ones=residual and _subtracts_mean(whole, width),
            residual=residual,
            blocks=tuple(probed.values()),
            block_size=block_size,
        )
        if not residual and not any(block.heads or block.inputs for block in plan.blocks):
            raise StructureError(
                "No block of this model has values and an output projection between which its heads can be turned "
                "alike"
                + (", nor a linear layer that writes to the residual" if online else "")
                + ", so nothing would be rotated; leave the stage out."
            )
        if online and not plan.inputs:
            writers = [name for block in plan.blocks for name in block.inputs_left]
            raise StructureError(
                "No input of this model can be turned at run time: "
                + (f"{writers[0]} and its like are" if writers else "there is")
                + f" no linear layer that writes to the residual and whose inputs {SMALLEST_TRANSFORM} or a larger "
                "power of two divides. Leave rotate's 'online' out."
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
    """What two layers share would be turned twice, and of a norm of several blocks the first would take the gain."""
    ties = network.tied()
    shared = (set(ties) | set(ties.values())) - set(plan.embeddings) - set(plan.unties)  # which can be told apart
    gains: set[str] = set()
    for edit in plan.edits(0):
        turned = [*(turn.parameter for turn in edit.turns), *(one.parameter for one in edit.inputs)]
        fused = {ties.get(name, name): name for name in (f"{norm.norm}.weight" for norm in edit.norms)}
        twice = [name for name in turned if name in shared] + [fused[owner] for owner in fused if owner in gains]
        for name in twice:
            raise StructureError(
                f"This model cannot be rotated: {name} is shared between layers, and would be turned for each of them."
            )
        gains |= fused.keys()


def _on_random_residual(trial: RotationTrial, width: int) -> RotationTrial:
    shape = trial.residual.shape
    if shape[-1] != width:
        raise StructureError(
            f"Block {trial.path} is given {shape[-1]} channels and the first block {width}: there is no one residual "
            "that runs through this model and could be rotated."
        )
    generator = torch.Generator().manual_seed(0)
    return trial.with_residual(torch.randn(shape, generator=generator, dtype=torch.float64).to(trial.residual.device))


def _layers_with_inputs(network: Network) -> frozenset[str]:
    """Names of the weights of layers that are one product with what they are given."""
    return frozenset(
        site.parameter_name
        for site in network.sites
        if site.layout.multiplied and site.reading is Reading.INPUT and site.parameter == "weight"
    )


def _find_in_block(
    trial: RotationTrial, *, residual: bool, heads: bool, layers: Collection[str], block_size: int | None
) -> BlockRotation:
    """What can be turned in a block; of ``layers``, those whose inputs."""
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
    widths = {name: matrix.shape[-1] for name, _, matrix, _ in trial.matrices()}
    sizes = {name: transform_size(widths[name], block_size) if name in layers else 0 for name in writers}
    return BlockRotation(
        block=trial.path,
        norms=norms if residual else (),
        writers=writers if residual else (),
        heads=find_heads(trial) if heads else (),
        inputs=tuple(RotateInput(parameter=name, size=size) for name, size in sizes.items() if size),
        inputs_left=tuple(name for name, size in sizes.items() if not size) if layers else (),
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
