"""What a rotation of the residual has to touch in one block: found by trying on a float64 copy.

The residual is what the block is given and gives back. A *residual norm* receives it; its *readers* are the matrices
that see nothing else; *writers* add to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.edits import Rotate, RotateWeight
from goldstick.core.hadamard import Rotation
from goldstick.structure.blocks import block_of
from goldstick.structure.rotation.trial import CHANGE_EPS, EXACT, RotationTrial, distance
from goldstick.structure.trace import tensors_in


@dataclass(frozen=True, kw_only=True)
class ResidualNorm:
    """A norm that receives the residual.

    Attributes:
        norm: Its path.
        unit_offset: Whether it multiplies by 1 + weight.
        subtracts_mean: Whether only a rotation that keeps the vector of ones commutes with it.
        readers: Names of the parameters whose columns read it, and it alone.
    """

    norm: str
    unit_offset: bool
    subtracts_mean: bool
    readers: tuple[str, ...]


def norm_kind(module: nn.Module, width: int) -> tuple[bool, bool] | None:
    """(unit offset, subtracts the mean) of a norm over ``width`` channels, tried on it alone; ``None`` for others."""
    own = dict(module.named_parameters())
    if "weight" not in own or own["weight"].shape != (width,) or set(own) - {"weight", "bias"}:
        return None
    trial = RotationTrial(module, "", (), {})
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, width, generator=generator, dtype=torch.float64)
    with trial.changing(list(own.values())):
        try:
            for value in own.values():
                value.zero_()
            unit_offset = bool(module(x).any())
            own["weight"].fill_(-1.0 if unit_offset else 1.0)
            if unit_offset and bool(module(x).any()):
                return None
            own["weight"].fill_(0.0 if unit_offset else 1.0)
            for keeps_ones in (False, True):
                rotation = Rotation(size=width, seed=1, keeps_ones=keeps_ones)
                if distance(rotation.turn(module(x)), module(rotation.turn(x))) <= EXACT:
                    return unit_offset, keeps_ones
        except Exception:  # any module with a weight of this shape is asked; one that wants more is no norm
            return None
    return None


def residual_norms(trial: RotationTrial) -> dict[str, tuple[nn.Module, bool, bool]]:
    """Path → (module, unit offset, subtracts the mean) of the norms that receive the residual itself.

    With every parameter of the block at zero its branches add nothing, and the residual passes unchanged: whatever
    norm then receives it, bit for bit, reads it.
    """
    residual = trial.residual
    kinds = {path: norm_kind(module, residual.shape[-1]) for path, module in trial.module.named_modules()}
    reached: set[str] = set()

    def hook_for(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen = next(tensors_in((args, kwargs)), None)
            if (
                seen is not None
                and seen.numel() == residual.numel()
                and torch.equal(seen.flatten(), residual.flatten())
            ):
                reached.add(path)

        return hook

    handles = [
        trial.module.get_submodule(path).register_forward_pre_hook(hook_for(path), with_kwargs=True)
        for path, kind in kinds.items()
        if kind is not None
    ]
    parameters = list(trial.module.parameters())
    try:
        with trial.changing(parameters):
            for parameter in parameters:
                parameter.zero_()
            trial.run()
    finally:
        for handle in handles:
            handle.remove()
    return {
        path: (trial.module.get_submodule(path), *kind)
        for path, kind in kinds.items()
        if kind is not None and path in reached
    }


def readers_of(
    trial: RotationTrial, norm: nn.Module, *, unit_offset: bool, but_in: Collection[str] = ()
) -> tuple[str, ...]:
    """Names of the matrices that read what ``norm`` puts out, and nothing else; those in modules ``but_in`` apart.

    Half of its channels are held at zero. A change in the columns of these channels then moves nothing exactly if
    they read this norm; it must move the output otherwise.
    """
    own = dict(norm.named_parameters())
    width = own["weight"].numel()
    generator = torch.Generator().manual_seed(0)
    untouched, readers = trial.run(), []
    with trial.changing(list(own.values())):
        _mask(own, unit_offset)
        silent = trial.run()
    for name, parameter, matrix, _ in trial.matrices():
        if matrix.shape[-1] != width or block_of(name, tuple(but_in)) is not None:
            continue
        with trial.changing([parameter]):
            noise = torch.randn(matrix[..., : width // 2].shape, generator=generator, dtype=torch.float64)
            matrix[..., : width // 2] += (noise * matrix.std()).to(matrix.device)
            with trial.changing(list(own.values())):
                _mask(own, unit_offset)
                unseen = distance(silent, trial.run()) <= EXACT
            if unseen and distance(untouched, trial.run()) > CHANGE_EPS:
                readers.append(name)
    return tuple(readers)


def _mask(own: dict[str, nn.Parameter], unit_offset: bool) -> None:
    half = own["weight"].numel() // 2
    own["weight"][:half] = -1.0 if unit_offset else 0.0
    if "bias" in own:
        own["bias"][:half] = 0.0


def writers_of(trial: RotationTrial, norms: Sequence[nn.Module]) -> tuple[str, ...]:
    """Names of the matrices whose output is added to the residual.

    The residual norms are made to answer what they did before, so that nothing reads what is written. Doubling a
    writer then moves the output by its part A, and turning its rows by Q moves it by A·Q − A.
    """
    width = trial.residual.shape[-1]
    rotation = Rotation(size=width, seed=2)
    writers = []
    with _frozen(trial, norms):
        before = trial.run()
        if before.shape[-1] != width:
            return ()
        for name, parameter, matrix, bias in trial.matrices():
            if matrix.shape[-2] != width:
                continue
            with trial.changing([parameter] if bias is None else [parameter, bias]):
                parameter.mul_(2)
                if bias is not None:
                    bias.mul_(2)
                part = trial.run() - before
            if not float(part.norm()) > CHANGE_EPS * float(before.norm()):
                continue
            moved = (
                trial.rotated(Rotate(turns=(RotateWeight(parameter=name, side="output", rotation=rotation),))) - before
            )
            if distance(rotation.turn(part), moved + part) <= EXACT:
                writers.append(name)
    return tuple(writers)


@contextmanager
def _frozen(trial: RotationTrial, norms: Sequence[nn.Module]) -> Iterator[None]:
    answers: dict[nn.Module, Tensor] = {}
    record = [norm.register_forward_hook(lambda module, _, output: answers.update({module: output})) for norm in norms]
    trial.run()
    for handle in record:
        handle.remove()
    replay = [norm.register_forward_hook(lambda module, _, output: answers[module].clone()) for norm in norms]
    try:
        yield
    finally:
        for handle in replay:
            handle.remove()
