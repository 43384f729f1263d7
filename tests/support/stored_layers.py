"""Layers as a checkpoint stores them."""

from __future__ import annotations

import torch

from goldstick.core.scheme import Scheme
from goldstick.formats.base import StoredLayer


def layer(site: str, scheme: str = "w4a16-g32", **changes: object) -> StoredLayer:
    fields: dict[str, object] = {
        "name": f"{site}.weight",
        "site": site,
        "kind": "linear",
        "shape": torch.Size([8, 64]),
        "scheme": Scheme.parse(scheme),
        "fractional_zeros": False,
    }
    return StoredLayer(**{**fields, **changes})  # type: ignore[arg-type]
