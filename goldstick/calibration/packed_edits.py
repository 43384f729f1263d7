"""What was decided in a block so far, held in the size that it will have on disk."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, unpack_rows
from goldstick.core.edits import Quantize


class PackedEdits(MutableMapping[str, Quantize]):
    """Site name → its edit; codes are packed while they are held, and unpacked whenever an edit is asked for."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Quantize, Tensor]] = {}

    def __getitem__(self, site: str) -> Quantize:
        edit, packed = self._held[site]
        codes = unpack_rows(packed, edit.tensor.grid.bits, edit.tensor.in_features)
        return replace(edit, tensor=replace(edit.tensor, codes=codes))

    def __setitem__(self, site: str, edit: Quantize) -> None:
        packed = pack_rows(edit.tensor.codes, edit.tensor.grid.bits)
        shape_alone = torch.empty_like(edit.tensor.codes, device="meta")
        self._held[site] = replace(edit, tensor=replace(edit.tensor, codes=shape_alone)), packed

    def __delitem__(self, site: str) -> None:
        del self._held[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
