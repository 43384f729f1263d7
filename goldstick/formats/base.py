"""What a storage format is: how one quantized matrix becomes named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class StoredLayer:
    """One matrix as a checkpoint stores it.

    Attributes:
        name: Name of the float tensor it replaces, as the checkpoint calls it (``….q_proj.weight``).
        site: Name of the site it belongs to in the model.
        kind: Layout of the site (``linear``, ``transposed``, ``conv2d``, ``embedding``, ``experts``, …).
        shape: Shape of the canonical matrix stored under that name, [..., out, in].
        scheme: What it becomes.
        fractional_zeros: Whether its zeros may be fractions.
        multiplied: Whether it holds a factor for each of its inputs.
        reordered: Whether its columns lie in an order of their own (``QuantizedTensor.input_order``).
        scale_dtype: Dtype of its scales before they are stored, or ``None`` where that is not known.
    """

    name: str
    site: str
    kind: str
    shape: torch.Size
    scheme: Scheme
    fractional_zeros: bool
    multiplied: bool = False
    reordered: bool = False
    scale_dtype: torch.dtype | None = None


@dataclass(frozen=True, kw_only=True)
class StoredPiece:
    """One quantized matrix under the name a checkpoint gives it, with what stands beside it for its layer's input."""

    layer: StoredLayer
    tensor: QuantizedTensor
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None
    input_multiplier: Tensor | None = None


class StorageFormat(Protocol):
    """Pure functions between a :class:`QuantizedTensor` and the tensors of a file.

    Tensors of a layer are named by what is appended to the float tensor's name: ``_packed``, ``_scale``, …; those that
    begin with a dot stand beside it (``.input_scale``; see ``input_scale.part_name``).
    """

    name: str

    def refuses(self, layer: StoredLayer) -> str | None:
        """Why this format cannot hold ``layer`` without loss, or ``None`` where it can."""
        ...

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Why it cannot hold, in one checkpoint, layers that it could hold each; ``None`` where it can."""
        ...

    def remarks(self, layers: Sequence[StoredLayer]) -> list[str]:
        """Sentences that the user should read before layers are stored in this format."""
        ...

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of every tensor of a layer by suffix, without any data."""
        ...

    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layer by suffix.

        Args:
            tensor: The weight.
            scheme: What the layer became.
            input_scale: Scale of its input, [] or [1], where its scheme has a static input grid.
            input_zero: Zero of its input, int8 [] or [1], where that grid is asymmetric.
            input_multiplier: What its input is multiplied by, [in], where the layer is ``multiplied``.
        """
        ...

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The weight from its tensors by suffix; inverse of :meth:`pack`. For the input see ``unpack_input``."""
        ...

    def config(
        self, layers: Sequence[StoredLayer], left_alone: Sequence[str], ties: Mapping[str, str]
    ) -> dict[str, Any]:
        """The ``quantization_config`` of the checkpoint.

        Args:
            layers: Everything quantized.
            left_alone: Modules whose matrices stay float, as the checkpoint and the model call them.
            ties: Sites that run on another's quantized weight: site → owner.
        """
        ...
