"""Ties: a head stored apart from the embedding that the config ties it to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding

_REMEDY = "set 'tie_word_embeddings': false in config.json, or remove the tensor that should not be there"


def tie_findings(examined: Examined) -> Iterator[Finding]:
    """Both ends of a tie stored: as other numbers, in codes, or twice."""
    layers = {examined.names.piece(layer.name).parameter: layer.name for layer in examined.layers}
    stored = {examined.names.piece(name).parameter: name for name in examined.tensors} | layers
    for name, owner in examined.network.tied().items():
        if name not in stored or owner not in stored:
            continue
        one, other = stored[name], stored[owner]
        if name in layers or owner in layers:
            what = "config.json ties a head to its embedding, and they are stored apart, one of them quantized"
            yield _fault(what, one, other)
            continue
        first, second = examined.tensors[one], examined.tensors[other]
        alike = (first.shape, first.dtype) == (second.shape, second.dtype)
        if not (alike and torch.equal(_bytes(first), _bytes(second))):
            what = "config.json ties a head to its embedding, and they are stored as different numbers"
            yield _fault(f"{what}; readers disagree on which to take", one, other)
            continue
        yield Finding(
            severity="remark",
            check="ties",
            what="two names of one tied weight are both stored",
            where=(f"{one} = {other}",),
            remedy="remove one of them to save its bytes",
        )


def _bytes(info: TensorInfo) -> Tensor:
    return info.read().reshape(-1).view(torch.uint8)


def _fault(what: str, one: str, other: str) -> Finding:
    return Finding(severity="fault", check="ties", what=what, where=(f"{one} and {other}",), remedy=_REMEDY)
