"""The kernels that would run a checkpoint's layers, as ``goldstick inspect`` shows them."""

from __future__ import annotations

import pytest
import torch

from goldstick.jobs.inspect.layer_backends import backend_words, backends_of
from goldstick.kernels import cpu
from goldstick.report import LayerRecord, Report, SizeSummary

CPU = torch.device("cpu")


def report(*layers: tuple[tuple[int, ...], str, str | None]) -> Report:
    """A report on layers, each given as its shape, its dtype and its scheme."""
    records = tuple(
        LayerRecord(
            name=f"layers.{number}.weight",
            shape=shape,
            dtype=dtype,
            bytes_before=8,
            bytes_after=4,
            scheme=scheme,
            reason=None if scheme else "left alone",
        )
        for number, (shape, dtype, scheme) in enumerate(layers)
    )
    size = SizeSummary.of(records)
    return Report(goldstick_version="0", model="m", recipe={}, format="native", layers=records, size=size)


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOLDSTICK_BACKEND", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.skipif(cpu._missing is not None, reason=str(cpu._missing))
def test_layers_are_counted_by_the_kernels_that_take_them() -> None:
    found = report(
        ((64, 64), "float32", "w4a16-g32"),
        ((64, 64), "float64", "w4a16-g32-asym"),
        ((64, 64), "bfloat16", None),
        ((8, 64, 64), "bfloat16", "w8a8-dynamic"),
        ((16, 3, 3, 3), "float32", "w8a16"),
        ((64, 30), "float32", "w4a16-g32"),
        ((64, 64), "float32", "w8a8-static"),
        ((64, 64), "bfloat16", "w-e3m2-g32-e8m0-a-16"),
    )
    assert backends_of(found, CPU) == {"cpu-integer": 5, "reference": 1, "cpu-float": 1}
    assert backend_words(found).endswith("cpu-integer for 5 layers, reference for 1 layer, cpu-float for 1 layer")


def test_the_override_counts_and_one_that_cannot_be_followed_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(((64, 64), "float32", "w3a16-g32"))
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert backend_words(found) == "kernels on cpu: reference for 1 layer"
    monkeypatch.setenv("GOLDSTICK_BACKEND", "triton")
    assert backend_words(found).startswith("kernels on cpu: no backend runs a [64, 64] layer of 3 bits")


def test_a_checkpoint_in_float_needs_no_kernels() -> None:
    assert backend_words(report(((4, 4), "float32", None))) == "kernels on cpu: none, no layer is quantized"
