"""What a rotation of a network touches, as data, and the edits that carry it out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from goldstick.core.edits import FuseNorm, Rotate, RotateInput, RotateWeight
from goldstick.core.hadamard import Rotation
from goldstick.structure.rotation.residual import ResidualNorm


@dataclass(frozen=True, kw_only=True)
class HeadRotation:
    """Values and output projection of an attention, between which every head can be turned alike (R2).

    Attributes:
        value: Name of the parameter whose rows give the values.
        output: Name of the parameter whose columns read them.
        first_channel: First row of the values, for fused projections.
        size: Channels of a head.
    """

    value: str
    output: str
    first_channel: int
    size: int


@dataclass(frozen=True, kw_only=True)
class BlockRotation:
    """What is rotated in one block.

    Attributes:
        block: Its path.
        norms: The norms that receive the residual, with their readers; empty where it is not rotated.
        writers: Names of the parameters whose rows add to the residual.
        heads: The attentions whose heads can be turned.
        inputs: The layers whose input is turned when they run (R4).
        inputs_left: Where inputs are turned, names of what else writes to the residual: its input stays as it is.
        like: The block of the same shapes that was probed in its place; ``None`` if it was itself.
        error: ‖y' − y·Q‖ / ‖y·Q‖ of the block in float64, on random residuals.
    """

    block: str
    norms: tuple[ResidualNorm, ...]
    writers: tuple[str, ...]
    heads: tuple[HeadRotation, ...]
    inputs: tuple[RotateInput, ...] = ()
    inputs_left: tuple[str, ...] = ()
    like: str | None = None
    error: float | None = None

    def moved_to(self, block: str) -> BlockRotation:
        """The same about another block of the same shapes."""

        def move(name: str) -> str:
            return block + name.removeprefix(self.block)

        return replace(
            self,
            block=block,
            norms=tuple(
                replace(norm, norm=move(norm.norm), readers=tuple(map(move, norm.readers))) for norm in self.norms
            ),
            writers=tuple(map(move, self.writers)),
            heads=tuple(replace(head, value=move(head.value), output=move(head.output)) for head in self.heads),
            inputs=tuple(replace(one, parameter=move(one.parameter)) for one in self.inputs),
            inputs_left=tuple(map(move, self.inputs_left)),
            like=self.block,
        )

    def turning_only(self, parameters: Collection[str]) -> BlockRotation:
        """The same that turns the inputs of these layers alone at run time, of those that it would turn."""
        left = tuple(one.parameter for one in self.inputs if one.parameter not in parameters)
        kept = tuple(one for one in self.inputs if one.parameter in parameters)
        return replace(self, inputs=kept, inputs_left=(*self.inputs_left, *left))

    def edit(self, residual: Rotation | None, head_seed: int, block_size: int | None = None) -> Rotate:
        """The edit that rotates this block by ``residual``, its heads by matrices drawn from ``head_seed``.

        Heads are turned in blocks of ``block_size`` where that divides them.
        """
        turns: list[RotateWeight] = []
        norms: list[FuseNorm] = []
        if residual is not None:
            turns, norms = norm_turns(self.norms, residual)
            turns += [RotateWeight(parameter=name, side="output", rotation=residual) for name in self.writers]
        for index, head in enumerate(self.heads):
            size = block_size if block_size and head.size % block_size == 0 else head.size
            turning = Rotation(size=size, seed=head_seed + index)
            turns.append(
                RotateWeight(parameter=head.value, side="output", rotation=turning, first_channel=head.first_channel)
            )
            turns.append(RotateWeight(parameter=head.output, side="input", rotation=turning))
        return Rotate(turns=tuple(turns), norms=tuple(norms), inputs=self.inputs)


@dataclass(frozen=True, kw_only=True)
class RotationPlan:
    """What rotating a network touches, found and proven; equal for a model in memory and on the meta device.

    Attributes:
        width: Channels of the residual.
        keeps_ones: Whether a norm subtracts the mean, so that the rotation must leave the vector of ones in place.
        residual: Whether the residual is rotated (R1), or only the heads.
        blocks: Every block.
        embeddings: Names of the embeddings that write the residual.
        norms: The norms after the last block, with the heads that read them.
        unties: Names of readers that share memory with an embedding and get their own.
        error: ‖y' − y‖ / ‖y‖ of the model's output in float64, one block of each kind in it.
        block_size: Channels that are mixed with each other at the most; ``None`` for as many as there are.
    """

    width: int
    keeps_ones: bool
    residual: bool
    blocks: tuple[BlockRotation, ...]
    embeddings: tuple[str, ...] = ()
    norms: tuple[ResidualNorm, ...] = ()
    unties: tuple[str, ...] = ()
    error: float | None = None
    block_size: int | None = None

    @property
    def inputs(self) -> dict[str, int]:
        """Name of the weight of every layer whose input is turned at run time → channels mixed with each other."""
        return {one.parameter: one.size for block in self.blocks for one in block.inputs}

    def turning_only(self, parameters: Collection[str]) -> RotationPlan:
        """The plan that turns the inputs of these layers alone at run time, of those that it would turn."""
        return replace(self, blocks=tuple(block.turning_only(parameters) for block in self.blocks))

    def rotation(self, seed: int) -> Rotation | None:
        """Q of the residual (R1), or ``None`` where it is not rotated."""
        size = self.block_size or self.width
        return Rotation(size=size, seed=seed, keeps_ones=self.keeps_ones) if self.residual else None

    def block_edit(self, block: str, seed: int) -> Rotate:
        """The edit of one block: all that is needed to rotate its weights as they are read."""
        index = next(index for index, found in enumerate(self.blocks) if found.block == block)
        return self.blocks[index].edit(self.rotation(seed), seed + 1 + index, self.block_size)

    def outer_edits(self, seed: int) -> Iterator[Rotate]:
        """The edits of last norm and head, and of each embedding: apart, so that few float64 copies are held at once.

        The head comes first: where it is tied, it gets its own weight while the embedding still has the old one.
        """
        rotation = self.rotation(seed)
        if rotation is None:
            return
        turns, norms = norm_turns(self.norms, rotation)
        yield Rotate(turns=tuple(turns), norms=tuple(norms), unties=self.unties)
        for name in self.embeddings:
            yield Rotate(turns=(RotateWeight(parameter=name, side="output", rotation=rotation),))

    def edits(self, seed: int) -> Iterator[Rotate]:
        """Every edit; applied together they leave the model's output as it was."""
        yield from self.outer_edits(seed)
        for block in self.blocks:
            yield self.block_edit(block.block, seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for the report."""
        return asdict(self)


def norm_turns(norms: tuple[ResidualNorm, ...], rotation: Rotation) -> tuple[list[RotateWeight], list[FuseNorm]]:
    """What turning the residual before ``norms`` asks of their readers and of them."""
    return (
        [
            RotateWeight(parameter=reader, side="input", rotation=rotation, norm=norm.norm)
            for norm in norms
            for reader in norm.readers
        ],
        [FuseNorm(norm=norm.norm, rotation=rotation, unit_offset=norm.unit_offset) for norm in norms],
    )
