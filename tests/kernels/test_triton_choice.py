"""When the Triton backend takes a layer and why it does not, and how it cuts the work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from goldstick.errors import KernelError
from goldstick.kernels import WeightSpec, select, triton
from goldstick.kernels.norm_op import rms_norm_quantize
from tests.support.packed_layers import random_layer

ROOT = Path(__file__).resolve().parent.parent.parent
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
backend = triton.TritonBackend()
installed = pytest.mark.skipif(triton._missing() is not None, reason=str(triton._missing()))


@pytest.fixture(autouse=True)
def fresh_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answers about this machine are remembered; tests that change them must not leave theirs behind."""
    monkeypatch.delenv("GOLDSTICK_BACKEND", raising=False)
    answers = (triton._missing, triton._why_not_on_cuda, triton._why_by_name)
    for answer in answers:
        answer.cache_clear()
    yield
    for answer in answers:
        answer.cache_clear()


def spec(**changes: object) -> WeightSpec:
    return WeightSpec(**{**vars(random_layer(8, 64, group_size=32).spec), **changes})  # type: ignore[arg-type]


def pretend_device(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bits": 3}, "codes of 4 and 8 bits, not 3"),
        ({"group_size": 12}, "fill whole 32-bit words, 12 codes of 4 bits do not"),
        ({"dtype": torch.float64}, "not torch.float64"),
        ({"activation": "int8-tensor"}, "quantizes inputs by token"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_a_layer_it_was_not_written_for_is_left_to_others(
    changes: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_device(monkeypatch, (9, 0))
    assert reason in str(backend.supports(spec(**changes), CUDA))
    assert select(spec(**changes), CUDA).name == "reference"


@installed
@pytest.mark.parametrize("changes", [{}, {"bits": 8}, {"group_size": 64}, {"activation": "int8-token"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_on_a_gpu_that_ran_it_it_is_chosen_and_on_others_by_name(
    changes: dict[str, object], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_device(monkeypatch, (9, 0))
    assert select(spec(dtype=dtype, **changes), CUDA).name == "triton"
    triton._why_by_name.cache_clear()
    pretend_device(monkeypatch, (8, 0))
    assert select(spec(dtype=dtype, **changes), CUDA).name == "reference"
    reason = "it was not run on devices of compute capability 8.0 yet: ask for it with GOLDSTICK_BACKEND=triton"
    assert backend.supports(spec(dtype=dtype, **changes), CUDA) == reason
    monkeypatch.setenv("GOLDSTICK_BACKEND", "triton")
    assert select(spec(dtype=dtype, **changes), CUDA).name == "triton"


@installed
def test_a_gpu_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backend.supports(spec(), CUDA) == "no CUDA device is here"
    triton._why_not_on_cuda.cache_clear()
    pretend_device(monkeypatch, (7, 5))
    assert backend.supports(spec(), CUDA) == "it needs compute capability 8.0, not 7.5"


@installed
def test_an_old_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton as library

    pretend_device(monkeypatch, (9, 0))
    monkeypatch.setattr(library, "__version__", "3.2.0")
    assert backend.supports(spec(), CUDA) == "it needs Triton 3.6, not 3.2.0"


def test_on_the_cpu_it_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.supports(spec(), CPU) == "it runs on CUDA devices, not on cpu"
    monkeypatch.setenv("GOLDSTICK_BACKEND", "triton")
    assert backend.supports(spec(), torch.device("meta")) == "it runs on CUDA devices, not on meta"


@installed
def test_on_the_cpu_it_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from goldstick.kernels.triton import tuning

    monkeypatch.setenv("GOLDSTICK_BACKEND", "triton")
    monkeypatch.setattr(tuning, "interpreted", True)
    assert select(spec(), CPU).name == "triton"
    monkeypatch.setattr(tuning, "interpreted", False)
    with pytest.raises(KernelError, match=r"set TRITON_INTERPRET=1 before .*; unset GOLDSTICK_BACKEND"):
        select(spec(), CPU)


def test_goldstick_runs_without_triton_and_does_not_import_it_unasked() -> None:
    script = """
import sys, torch
from goldstick.kernels import ops, select
from tests.support.packed_layers import random_layer
layer = random_layer(8, 64)
ops.quantized_linear(torch.randn(2, 64), layer.packed, layer.scale, None, None, bits=4, group_size=64, in_features=64)
assert not [name for name in sys.modules if name.split('.')[0] == 'triton']
sys.modules['triton'] = None
print(select(layer.spec, torch.device('cuda', 0)).name)
from goldstick.kernels.triton import TritonBackend
print(TritonBackend().supports(layer.spec, torch.device('cuda', 0)))
"""
    environment = {name: value for name, value in os.environ.items() if name != "GOLDSTICK_BACKEND"}
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    name, reason = found.stdout.splitlines()
    assert name == "reference"
    assert reason.startswith("Triton cannot be imported") and reason.endswith("install goldstick[gpu]")


@installed
@pytest.mark.parametrize("tokens", [1, 8, 64, 65])
def test_the_parts_of_a_row_hold_every_tile_once_and_none_is_empty(tokens: int) -> None:
    from goldstick.kernels.triton import tuning

    for processors in (1, 20, 132):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tuning, "_processors", lambda device, processors=processors: processors)
            for rows in (1, 100, 11008, 200_000):
                for columns in (1, 128, 1000, 4096, 14336):
                    row = spec(out_features=rows, in_features=columns, group_size=columns)
                    count, each = tuning.splits(tokens, row, 128, CPU)
                    tiles = -(-columns // 128)
                    assert (count - 1) * each < tiles <= count * each
                    assert count >= 1 and each >= 1
                    assert count == 1 or count * tokens * 2 * 32 <= columns * 4 / 4, "sums cost more than they gain"
    assert tuning.tile_tokens(tokens, torch.float16) == {1: 8, 8: 8, 64: 64, 65: 64}[tokens]
    assert tuning.tile_tokens(tokens, torch.float32) == {1: 8, 8: 8, 64: 16, 65: 16}[tokens]


@installed
def test_few_tokens_keep_a_whole_gpu_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    from goldstick.kernels.triton import tuning

    monkeypatch.setattr(tuning, "_processors", lambda device: 132)
    square = spec(out_features=4096, in_features=4096, group_size=128)
    assert 4096 // 64 * tuning.splits(1, square, 128, CPU)[0] >= 2 * 132


@installed
def test_of_float32_the_smallest_tile_is_tried_and_for_few_tokens_four_warps() -> None:
    import triton as library

    from goldstick.kernels.triton import tuning

    configs = [library.Config({"tile_rows": 64}, num_warps=warps) for warps in (4, 4, 8)]
    wide, half = {"x": torch.ones(1)}, {"x": torch.ones(1).half()}
    assert tuning.worth_trying(configs, wide, tile_tokens=16) == configs[:1]
    assert tuning.worth_trying(configs, half, tile_tokens=16) == configs
    assert tuning.worth_trying(configs, half, tile_tokens=8) == configs[:2]


@pytest.mark.parametrize(
    ("x", "weight", "complaint"),
    [
        (torch.ones(2, 4), torch.ones(5), r"weight of shape \[5\] does not fit inputs of shape \[2, 4\]"),
        (torch.tensor(1.0), torch.ones(1), r"does not fit inputs of shape \[\]"),
        (torch.ones(2, 4), torch.ones(4).half(), "weight is torch.float16 and its input torch.float32"),
        (torch.ones(2, 4).double(), torch.ones(4).double(), "not torch.float64"),
    ],
    ids=["shape", "scalar", "dtype", "double"],
)
def test_a_norm_that_does_not_fit_is_refused(x: torch.Tensor, weight: torch.Tensor, complaint: str) -> None:
    with pytest.raises(KernelError, match=complaint):
        rms_norm_quantize(x, weight, 1e-6)


def test_a_norm_runs_on_triton_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "why_not_on", lambda device: None)
    monkeypatch.setattr(triton, "rms_norm_quantize", lambda x, weight, epsilon: (x.to(torch.int8), x[..., :1]))
    x, weight = torch.rand(2, 8), torch.ones(8)
    assert rms_norm_quantize(x, weight, 1e-6)[0].any()
    monkeypatch.setenv("GOLDSTICK_BACKEND", "triton")
    assert not rms_norm_quantize(x, weight, 1e-6)[0].any(), "the stand-in cuts fractions off"


def test_a_norm_without_triton_gives_codes_of_the_normalized_tokens() -> None:
    x, weight = torch.randn(3, 2, 64).bfloat16(), torch.rand(64).bfloat16()
    x[1, 0, 5] = float("inf")
    codes, scale = rms_norm_quantize(x, weight, 1e-6)
    normalized = torch.nn.functional.rms_norm(x.float(), (64,), weight.float(), 1e-6)
    assert codes.dtype == torch.int8 and scale.shape == (3, 2, 1)
    spoiled = torch.zeros(3, 2, dtype=torch.bool)
    spoiled[1, 0] = True
    assert torch.equal(scale[..., 0].isnan(), spoiled)
    torch.testing.assert_close((codes * scale).float()[~spoiled], normalized[~spoiled], rtol=0.02, atol=0.03)
    empty, no_scale = rms_norm_quantize(x[:0], weight, 1e-6)
    assert empty.shape == (0, 2, 64) and no_scale.shape == (0, 2, 1)
