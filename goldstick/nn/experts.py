"""QuantizedExperts: the fused weights of all experts of a mixture, dequantized one expert at a time."""

from __future__ import annotations

from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.nn.packed import PackedWeight


class QuantizedExperts(PackedWeight):
    """Takes the place of a fused parameter [experts, out, in] (or [experts, in, out]) inside the experts module.

    Indexing gives one expert's matrix as the parameter's would, so the module's own forward runs on unchanged.

    Args:
        tensor: Codes [experts, out, in].
        scheme: Grid of the weights.
        transposed: Whether the parameter it replaces is stored as [experts, in, out].
    """

    def __init__(self, tensor: QuantizedTensor, scheme: Scheme, transposed: bool) -> None:
        super().__init__(tensor, scheme)
        self.transposed = transposed

    def __getitem__(self, expert: Tensor | int) -> Tensor:
        """The matrix of one expert, as the replaced parameter stored it."""
        zero = None if self.weight_zero_point is None else self.weight_zero_point[expert]
        matrix = self._dequantize(self.weight_packed[expert], self.weight_scale[expert], zero)
        return matrix.transpose(-1, -2) if self.transposed else matrix
