"""The proof in float64 that a rotated block, or model, computes what it did before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goldstick.errors import StructureError
from goldstick.structure.network import Network
from goldstick.structure.probe.double import double_copy, double_precision
from goldstick.structure.rotation.plan import RotationPlan
from goldstick.structure.rotation.residual import ResidualNorm
from goldstick.structure.rotation.rotate_weight import apply_rotation
from goldstick.structure.rotation.trial import EXACT, RotationTrial, distance
from goldstick.structure.trace import capture_inputs

#: Logits of a whole model on its own weights may differ by this much, relative to their norm.
WHOLE_MODEL = 1e-8
#: Parameters above which a whole model is not copied to float64 for its proof.
LARGEST_PROVEN = 128 * 2**20


def prove_rotation(network: Network, plan: RotationPlan, inputs: Mapping[str, Any], *, seed: int = 0) -> float | None:
    """‖y' − y‖ / ‖y‖ of the whole model on its own weights, in float64.

    ``find_rotation`` has proven one block of each kind already; this proves that the others are like them. ``None``
    where the whole was not tried: on the meta device, and above ``LARGEST_PROVEN`` parameters, where the other blocks
    are proven one by one.

    Raises:
        StructureError: The outputs differ by more than ``WHOLE_MODEL``, or those of a block.
    """
    parameters = list(network.model.parameters())
    if any(p.is_meta for p in parameters):
        return None
    if sum(p.numel() for p in parameters) > LARGEST_PROVEN:
        _prove_alike(network, plan, inputs, seed)
        return None
    with double_precision():
        trial = RotationTrial(double_copy(network, network.blocks, rows=None), "", (), dict(inputs))
        before = trial.run()
        for edit in plan.edits(seed):
            apply_rotation(trial.module, edit)
        error = distance(before, trial.run())
    if not error <= WHOLE_MODEL:
        raise StructureError(
            f"The rotated model gives outputs that differ by {error:.1e} from those before ({WHOLE_MODEL:.0e} is "
            "allowed), although a block of each kind was proven: some block is not like the first of its shape."
        )
    return error


def _prove_alike(network: Network, plan: RotationPlan, inputs: Mapping[str, Any], seed: int) -> None:
    """Prove the blocks that another was proven in the place of, with one of them in float64 at a time."""
    alike = [block.block for block in plan.blocks if block.like is not None]
    captured = capture_inputs(network.model, alike, inputs) if alike else {}
    for path in alike:
        with double_precision():
            block = double_copy(network, {path}).get_submodule(path)
            prove_block(RotationTrial(block, path, *captured.pop(path)), plan, seed)


def prove_block(trial: RotationTrial, plan: RotationPlan, seed: int) -> float:
    """How far block'(h·Q) lies from block(h)·Q, relative to its norm.

    Raises:
        StructureError: The two differ.
    """
    rotation = plan.rotation(seed)
    expected = trial.run()
    turned = trial
    if rotation is not None:
        if expected.shape != trial.residual.shape:
            raise StructureError(f"Block {trial.path} does not give back a residual of the shape it was given.")
        expected, turned = rotation.turn(expected), trial.with_residual(rotation.turn(trial.residual))
    edit = plan.block_edit(trial.path, seed)
    error = distance(expected, turned.rotated(edit)) if edit.turns or edit.inputs else distance(expected, turned.run())
    if not error <= EXACT:
        found = next(block for block in plan.blocks if block.block == trial.path)
        raise StructureError(
            f"Block {trial.path} cannot be rotated: in float64 the rotated block's output lies {error:.1e} from the "
            f"rotated output of the block ({EXACT:.0e} is allowed). {_account(found.norms)} Writing to it: "
            f"{', '.join(found.writers) or 'nothing'}. Something else stands in the way, such as a norm after a layer, "
            "before the residual. The heads alone may still be turned (residual: false)."
        )
    return error


def prove_model(whole: RotationTrial, plan: RotationPlan, seed: int) -> float:
    """How far the output of the copy moves when all of it is rotated; the copy stays rotated.

    Raises:
        StructureError: It moves at all.
    """
    before = whole.run()
    for edit in plan.edits(seed):
        apply_rotation(whole.module, edit)
    error = distance(before, whole.run())
    if not error <= EXACT:
        raise StructureError(
            f"This model cannot be rotated: its blocks can, but with the rest around them the outputs differ by "
            f"{error:.1e} in float64 ({EXACT:.0e} is allowed). Embeddings: {', '.join(plan.embeddings) or 'none'}. "
            f"{_account(plan.norms)} Something else writes or reads the residual outside the blocks, such as a norm "
            "after the embedding. The heads alone may still be turned (residual: false)."
        )
    return error


def _account(norms: tuple[ResidualNorm, ...]) -> str:
    told = [f"{norm.norm} read by {', '.join(norm.readers) or 'no matrix alone'}" for norm in norms]
    return f"Norms that receive the residual: {'; '.join(told) or 'none'}."
