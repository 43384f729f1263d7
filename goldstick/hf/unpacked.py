"""The quantized tensor of the parts that transformers has read for a site."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from goldstick.core.lost_weights import check_no_weight_is_lost
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError, GoldstickError
from goldstick.formats.base import StorageFormat
from goldstick.structure.network import Site


def unpack_read(parts: Mapping[str, Tensor], scheme: Scheme, site: Site, storage: StorageFormat) -> QuantizedTensor:
    """What the parts of a site say; each of the matrices that are stacked in experts has a divisor of its own.

    Raises:
        FormatError: They are of another shape or hold what no weight is.
    """
    divisor = parts.get("_global_scale")
    if site.layout.fused and scheme.weight.tensor_scaled and divisor is not None and divisor.shape[1] > 1:
        rows = divisor.repeat_interleave(site.matrix_shape[1] // divisor.shape[1], dim=1)
        parts = {**parts, "_global_scale": rows}
    try:
        tensor = storage.unpack(parts, scheme, site.in_features)
        check_no_weight_is_lost(tensor)
    except GoldstickError as error:
        raise FormatError(f"{site.module} cannot be loaded: {error}") from error
    return tensor
