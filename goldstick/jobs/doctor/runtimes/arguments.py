"""Arguments: what a group of a compressed-tensors config says of weights and inputs, as its readers look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """How weights, or inputs, are quantized.

    Attributes:
        bits: Bits of a code.
        kind: ``int`` or ``float``.
        strategy: What shares a scale: ``tensor``, ``channel``, ``group``, ``block``, ``tensor_group``, ``token``, …
        group_size: Numbers that share one, or ``None``.
        symmetric: Whether there is no zero.
        dynamic: Whether it is found at run time.
        actorder: Act-order, as the config calls it; ``None`` for none.
        scale_dtype: Dtype of the scales, where the config says it.
    """

    bits: Any
    kind: str
    strategy: str | None
    group_size: int | None
    symmetric: bool
    dynamic: bool
    actorder: str | None
    scale_dtype: str | None

    @property
    def nvfp4(self) -> bool:
        """Whether it is NVFP4."""
        return (self.kind, self.bits, self.strategy, self.group_size) == ("float", 4, "tensor_group", 16)

    @property
    def mxfp4(self) -> bool:
        """Whether it is MXFP4."""
        return (self.kind, self.bits, self.strategy, self.group_size) == ("float", 4, "group", 32) and self.symmetric

    @property
    def mxfp8(self) -> bool:
        """Whether it is MXFP8."""
        found = (self.kind, self.bits, self.strategy, self.group_size) == ("float", 8, "group", 32)
        return found and self.scale_dtype == "torch.uint8"

    @property
    def words(self) -> str:
        """Such as ``int 4 bits, group 128, asymmetric``."""
        size = f" {self.group_size}" if self.group_size else ""
        zeros = "" if self.symmetric else ", asymmetric"
        return f"{self.kind} of {self.bits} bits by {self.strategy}{size}{zeros}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group of a config.

    Attributes:
        name: What the config calls it.
        weights: Of its weights.
        inputs: Of the inputs of its layers; ``None`` for float inputs.
        layout: How codes are stored: its own ``format``, or the config's.
    """

    name: str
    weights: Arguments
    inputs: Arguments | None
    layout: str | None

    @property
    def words(self) -> str:
        """Weights and inputs in words."""
        inputs = f", inputs {self.inputs.words}" if self.inputs else ""
        return f"{self.name}: weights {self.weights.words}{inputs}"


def groups_of(table: Mapping[str, Any]) -> Iterator[Group]:
    """The groups of a ``quantization_config`` that quantize weights; what makes no sense is passed over."""
    groups = table.get("config_groups")
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            inputs = group.get("input_activations")
            yield Group(
                name=str(name),
                weights=_arguments(weights),
                inputs=_arguments(inputs) if isinstance(inputs, Mapping) else None,
                layout=group.get("format") or table.get("format"),
            )


def targets_of(table: Mapping[str, Any]) -> list[str]:
    """Every target of every group."""
    groups = table.get("config_groups")
    lists = [group.get("targets") for group in groups.values()] if isinstance(groups, Mapping) else []
    return [target for targets in lists if isinstance(targets, list) for target in targets if isinstance(target, str)]


def _arguments(table: Mapping[str, Any]) -> Arguments:
    size, order, strategy = table.get("group_size"), table.get("actorder"), table.get("strategy")
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    return Arguments(
        bits=table.get("num_bits", 8),
        kind=str(table.get("type", "int")),
        strategy=strategy,
        group_size=size if type(size) is int and size > 0 else None,
        symmetric=table.get("symmetric", True) is not False,
        dynamic=bool(table.get("dynamic", False)),
        actorder="group" if order is True else order if isinstance(order, str) else None,
        scale_dtype=table.get("scale_dtype"),
    )
