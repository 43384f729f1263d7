"""The GPU benchmark where there is no GPU: what it refuses, and how it turns times into figures."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_kernels


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    with pytest.raises(SystemExit, match=r"on a CUDA device, and torch .* finds none; benchmarks/kernels.py times"):
        gpu_kernels.main(["--shapes", "256x128", "--tokens", "1", "--dtype", "float16"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--shapes", "4096"], "'4096' is no shape"),
        (["--shapes", "0x128"], "'0x128' is no shape"),
        (["--shapes", "64x100"], "multiples of 8 rows and 128 columns"),
        (["--dtype", "float32"], "invalid choice: 'float32'"),
        (["--tokens", "few"], "invalid int value: 'few'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_are_checked_before_a_gpu_is_looked_for(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        gpu_kernels.main(arguments)
    assert refused.value.code == 2
    assert complaint in capsys.readouterr().err


def test_figures_are_rates_of_the_weight_and_medians_of_the_rounds_ratios() -> None:
    kernel = gpu_kernels.Kernel(calls=[], weight_bytes=6_000_000)
    row = gpu_kernels.figures("W", kernel, 4, [2e-6, 4e-6, 3e-6], 5e-5, [4e-6, 4e-6, 9e-6], 4e12)
    assert row == {
        "kernel": "W",
        "tokens": 4,
        "us": 3.0,
        "eager_us": 50.0,
        "weight_GB_s": 2000.0,
        "of_memory": 0.5,
        "times_torch": 2.0,
    }


def test_so_many_copies_are_made_that_the_cache_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        L2_cache_size = 50 << 20

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Device())
    assert len(gpu_kernels.copies(8 << 20)) == 25
    assert len(gpu_kernels.copies(1 << 30)) == 2
