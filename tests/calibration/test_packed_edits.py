"""Edits held packed are those that were put in."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from goldstick.calibration.packed_edits import PackedEdits
from goldstick.core.edits import Quantize
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme


def edit(label: str, shape: tuple[int, ...]) -> Quantize:
    scheme = Scheme.parse(label)
    groups = scheme.weight.groups(shape[-1])
    tensor = QuantizedTensor(
        codes=torch.randint(0, scheme.weight.code_max + 1, shape, dtype=torch.uint8),
        scale=torch.rand(*shape[:-1], groups),
        zero=None if scheme.weight.symmetric else torch.rand(*shape[:-1], groups),
        grid=scheme.weight,
    )
    return Quantize(site="a.weight", scheme=scheme, tensor=tensor, algorithm="rtn", notes={"tokens": 3})


@pytest.mark.parametrize("label", ["w2a16-g8", "w3a16-channel-asym", "w4a16-g8", "w8a8-dynamic"])
@pytest.mark.parametrize("shape", [(5, 24), (3, 5, 24)])
def test_an_edit_comes_back_as_it_was_put_in(label: str, shape: tuple[int, ...]) -> None:
    held, put = PackedEdits(), edit(label, shape)
    held["a.weight"] = put
    (found,) = held.values()
    assert torch.equal(found.tensor.codes, put.tensor.codes)
    assert dataclasses.replace(found, tensor=put.tensor) == put
    assert found.tensor.scale is put.tensor.scale
    assert found.tensor.zero is put.tensor.zero


def test_a_site_has_its_last_edit() -> None:
    held = PackedEdits()
    held["a.weight"], held["b.weight"] = edit("w4a16-g8", (5, 24)), edit("w4a16-g8", (2, 8))
    held["a.weight"] = edit("w8a16", (5, 24))
    assert list(held) == ["a.weight", "b.weight"]
    assert held["a.weight"].scheme == Scheme.parse("w8a16")
    del held["a.weight"]
    assert held.get("a.weight") is None
    assert len(held) == 1
