"""The exact Hessian: one bit pattern whatever the threads, chunks and order; bad data is counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from goldstick.core import input_extent, rows
from goldstick.core import inputs as module
from goldstick.core.diagonal_observer import DiagonalObserver
from goldstick.core.inputs import SAMPLE, InputObserver
from goldstick.errors import QuantizationError

ROOT = Path(__file__).resolve().parent.parent.parent


def activations(tokens: int = 512, features: int = 48) -> Tensor:
    """Correlated, heavy-tailed, some channels 50 times the others."""
    mix = torch.eye(features) + 0.2 * torch.randn(features, features)
    x = torch.distributions.StudentT(torch.tensor(5.0)).sample(torch.Size((tokens, features))) @ mix
    x[:, ::16] *= 50
    return x


def observed(batches: list[Tensor], *, ranges_first: bool = False) -> Tensor:
    observer = InputObserver(batches[0].shape[-1])
    if ranges_first:
        for batch in batches:
            observer.observe_range(batch)
    for batch in batches:
        observer.observe(batch)
    return observer.hessian()


def reference(x: Tensor) -> Tensor:
    """2/n Σ x xᵀ, an outer product at a time in float64."""
    total = torch.zeros(x.shape[-1], x.shape[-1], dtype=torch.float64)
    for row in x.reshape(-1, x.shape[-1]).double():
        total += torch.outer(row, row)
    return 2 * total / x[..., 0].numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_it_equals_a_sum_of_outer_products_but_for_the_rounding(dtype: torch.dtype) -> None:
    x = activations().to(dtype)
    found, expected = observed([x]), reference(x)
    size = expected.diagonal().sqrt()
    assert found.dtype == torch.float64
    assert torch.equal(found, found.T)
    assert ((found - expected).abs() / torch.outer(size, size)).max() <= 1e-4


def test_whole_numbers_are_summed_without_any_error() -> None:
    x = torch.randint(-1000, 1001, (64, 20)).float()
    assert torch.equal(observed([x]), reference(x))


def test_batches_order_and_chunks_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = activations(128)
    expected = observed([x])
    for size in (1, 17, 100):
        batches = list(x.split(size))
        assert torch.equal(observed(batches), expected)
        assert torch.equal(observed(batches[::-1]), expected)
        assert torch.equal(observed(batches[::-1], ranges_first=True), expected)
    assert torch.equal(observed([x[torch.randperm(len(x))].reshape(4, 32, -1)]), expected)
    for tokens, block in ((9, 20), (33, 48), (100, 7)):
        monkeypatch.setattr(rows, "MOST_ROWS", tokens)
        monkeypatch.setattr(module, "_COLUMN_BLOCK", block)
        assert torch.equal(observed([x]), expected)


SCRIPT = """
import hashlib, torch
from goldstick.core.inputs import InputObserver
torch.manual_seed(0)
x = torch.randn(3000, 300) * torch.logspace(-3, 3, 300)
observer = InputObserver(300)
for batch in x.split({size}):
    observer.observe(batch)
print(torch.get_num_threads(), hashlib.sha256(observer.hessian().numpy().tobytes()).hexdigest())
"""


def test_threads_do_not_change_a_bit() -> None:
    found = {}
    for threads, size in (("1", 3000), ("2", 170)):
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(size=size)],
            cwd=ROOT,
            env={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PATH": "", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        used, digest = result.stdout.split()
        assert used == threads
        found[threads, size] = digest
    assert len(set(found.values())) == 1


def test_an_outlier_that_comes_last_counts_as_if_it_had_come_first() -> None:
    x = activations(64)
    x[-1] *= 4096
    assert torch.equal(observed(list(x.split(8))), observed(list(x.flip(0).split(8))))


def test_the_sum_stays_exact_where_every_value_is_the_largest() -> None:
    x = torch.full((70_000, 2), -(1 - 2.0**-20), dtype=torch.float64)  # rounds up to 2^18 whole
    assert torch.equal(observed([x]), torch.full((2, 2), 2.0, dtype=torch.float64))


def test_padding_is_left_out() -> None:
    x = activations(60).reshape(3, 20, -1)
    mask = torch.ones(3, 20, dtype=torch.long)
    mask[1, 12:] = 0
    observer = InputObserver(x.shape[-1])
    observer.observe(x, mask)
    assert observer.tokens == 52
    assert torch.equal(observer.hessian(), observed([x[mask.bool()]]))


def test_inputs_that_are_not_finite_are_dropped_and_counted() -> None:
    x = activations(1000)
    x[3, 5], x[700, 0] = float("nan"), float("inf")
    observer = InputObserver(x.shape[-1])
    observer.observe(x)
    assert (observer.tokens, observer.dropped) == (998, 2)
    finite = x[torch.isfinite(x).all(-1)]
    assert torch.equal(observer.hessian(), observed([finite]))
    x[:20] = float("nan")
    observer = InputObserver(x.shape[-1])
    observer.observe(x)
    with pytest.raises(QuantizationError, match="21 of 1000 inputs hold NaN or infinity"):
        observer.hessian()


def test_batches_are_held_not_copied_until_they_are_released() -> None:
    x = activations(32)
    observer = InputObserver(x.shape[-1])
    observer.observe(x)
    assert sum(held.nbytes for held, *_ in observer._held) == x.nbytes
    first = observer.take_hessian()
    assert torch.equal(observer.hessian(), first)
    assert observer.hessian().data_ptr() != first.data_ptr()
    with pytest.raises(QuantizationError, match="already asked for"):
        observer.observe(x)
    assert torch.equal(observer.sample(100), x), "what needs the batches works after the Hessian"
    assert sum(held.nbytes for held, *_ in observer._held) == x.nbytes
    observer.release()
    assert not observer._held
    assert torch.equal(observer.hessian(), first)
    assert torch.equal(observer.mean_square(), first.diagonal() / 2)
    assert torch.equal(observer.largest(), x.double().abs().amax(0))
    for statistic in (observer.mean_abs, lambda: observer.sample(1)):
        with pytest.raises(QuantizationError, match="batches were let go"):
            statistic()
    with pytest.raises(QuantizationError, match="already asked for"):
        observer.observe(x)


def test_without_a_kept_sum_nothing_can_be_asked_for_once_the_batches_are_gone() -> None:
    observer = InputObserver(48)
    observer.observe(activations(32))
    observer.take_hessian()
    observer.release()
    for statistic in (observer.hessian, observer.mean_square):
        with pytest.raises(QuantizationError, match="batches were let go"):
            statistic()


def test_a_hessian_that_was_taken_away_cannot_be_summed_again_where_the_ranges_came_first() -> None:
    x, observer = activations(32), InputObserver(48)
    observer.observe_range(x)
    observer.observe(x)
    assert torch.equal(observer.take_hessian(), observed([x]))
    for statistic in (observer.hessian, observer.take_hessian):
        with pytest.raises(QuantizationError, match="taken away"):
            statistic()
    with pytest.raises(QuantizationError, match="already asked for"):
        observer.observe(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_means_of_each_channel_are_those_of_a_loop(dtype: torch.dtype) -> None:
    x = activations(200).to(dtype)
    observer = InputObserver(48)
    observer.observe(x)
    for channel in range(48):
        values = [float(row[channel]) for row in x]
        step = max(map(abs, values)) * 2**-17  # of a value rounded to 18 bits, twice over
        coarse = max(map(abs, values)) * 2**-12  # of a factor of the Hessian, rounded to 13
        assert float(observer.largest()[channel]) == max(map(abs, values))
        mean, square = sum(map(abs, values)) / 200, sum(value * value for value in values) / 200
        assert abs(float(observer.mean_abs()[channel]) - mean) <= step
        assert abs(float(observer.mean_square()[channel]) - square) <= 2 * coarse * max(map(abs, values))
    assert torch.equal(observer.mean_square(), observer.hessian().diagonal() / 2), "before the sum is kept"
    assert torch.equal(observer.mean_square(), observer.hessian().diagonal() / 2), "and after"


def test_the_means_do_not_depend_on_order_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = activations(130)
    whole, parts = InputObserver(48), InputObserver(48)
    whole.observe(x)
    expected = [whole.largest(), whole.mean_abs(), whole.mean_square()]
    monkeypatch.setattr(rows, "MOST_ROWS", 9)
    for batch in x.flip(0).split(17):
        parts.observe(batch)
    for found, wanted in zip([parts.largest(), parts.mean_abs(), parts.mean_square()], expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("count", [1, 7, 64, 99, 1000])
def test_a_sample_is_spaced_evenly_over_all_that_counts(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = activations(100)
    x[17] = float("nan")
    mask = torch.ones(100)
    mask[40:50] = 0
    kept = [row for index, row in enumerate(x) if index != 17 and not 40 <= index < 50]
    size = min(count, len(kept))
    expected = torch.stack([kept[index * len(kept) // size] for index in range(size)])
    monkeypatch.setattr(input_extent, "_MOST_DROPPED", 0.5)
    for batch, chunk in ((100, 1 << 16), (13, 4)):
        monkeypatch.setattr(rows, "MOST_ROWS", chunk)
        observer = InputObserver(48)
        for part, kept in zip(x.split(batch), mask.split(batch), strict=True):
            observer.observe(part, kept)
        found = observer.sample(count)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


def test_what_was_summed_without_holding_the_batches_is_the_same_to_the_bit() -> None:
    x = activations(1500)
    held, passing = InputObserver(48), InputObserver(48)
    held.observe(x)
    for part in x.split(400):
        passing.observe_range(part)
    for part in x.split(400):
        passing.observe(part)
    assert torch.equal(passing.hessian(), held.hessian())
    assert torch.equal(passing.mean_square(), held.mean_square())
    assert torch.equal(passing.mean_abs(), held.mean_abs())
    assert torch.equal(passing.sample(SAMPLE), held.sample(SAMPLE))
    with pytest.raises(QuantizationError, match="512 are kept, not 7"):
        passing.sample(7)


def test_a_batch_changed_in_place_is_noticed() -> None:
    x = activations(32)
    observer = InputObserver(x.shape[-1])
    observer.observe(x)
    x.mul_(2)
    with pytest.raises(QuantizationError, match="changed in place"):
        observer.hessian()


def test_inference_tensors_are_welcome() -> None:
    with torch.inference_mode():
        x = activations(32)
        found = observed([x])
    assert torch.equal(found, observed([x.clone()]))


def test_ranges_that_do_not_hold_are_an_error() -> None:
    x = activations(32)
    observer = InputObserver(x.shape[-1])
    observer.observe_range(x)
    with pytest.raises(QuantizationError, match="two passes saw different inputs"):
        observer.observe(x * 2)
    with pytest.raises(QuantizationError, match="come before"):
        observer.observe_range(x)


@pytest.mark.parametrize("ranges_first", [False, True], ids=["held", "ranges first"])
def test_nothing_seen_gives_zero(ranges_first: bool) -> None:
    assert torch.equal(observed([torch.zeros(0, 4)], ranges_first=ranges_first), torch.zeros(4, 4, dtype=torch.float64))
    empty = InputObserver(4)
    assert torch.equal(empty.hessian(), torch.zeros(4, 4, dtype=torch.float64))
    for statistic in (empty.largest, empty.mean_abs, empty.mean_square):
        assert torch.equal(statistic(), torch.zeros(4, dtype=torch.float64))
    assert empty.sample(8).shape == (0, 4)


def test_shapes_that_do_not_fit_are_refused() -> None:
    observer = InputObserver(8)
    with pytest.raises(QuantizationError, match=r"\(4, 7\) do not end in 8"):
        observer.observe(torch.zeros(4, 7))
    with pytest.raises(QuantizationError, match="mask"):
        observer.observe(torch.zeros(4, 8), torch.ones(5))


@pytest.mark.parametrize("scale", [1e-30, 1e30], ids=str)
def test_extreme_scales_lose_nothing(scale: float) -> None:
    x = activations(64).double() * scale
    found, expected = observed([x.float()]), reference(x.float())
    size = expected.diagonal().sqrt()
    assert ((found - expected).abs() / torch.outer(size, size)).max() <= 2e-4


@pytest.mark.parametrize("ranges_first", [False, True])
def test_the_lowest_and_highest_inputs_of_a_channel_are_exact(ranges_first: bool) -> None:
    x = activations() + 3
    x[5, 7] = torch.nan  # the whole input is left out
    batches = list(x.split(100))
    observer = InputObserver(x.shape[-1])
    assert observer.lowest().isposinf().all() and observer.highest().isneginf().all()
    for batch in batches if ranges_first else []:
        observer.observe_range(batch)
    for batch in batches:
        observer.observe(batch)
    kept = torch.cat([x[:5], x[6:]]).double()
    assert torch.equal(observer.lowest(), kept.min(0).values)
    assert torch.equal(observer.highest(), kept.max(0).values)


def test_ranges_of_inputs_that_are_mostly_not_finite_are_refused() -> None:
    observer = InputObserver(4)
    observer.observe(torch.full((3, 4), torch.inf))
    for ask in (observer.lowest, observer.highest):
        with pytest.raises(QuantizationError, match="3 of 3 inputs hold NaN or infinity"):
            ask()


def test_the_diagonal_alone_has_the_bits_of_that_of_the_whole() -> None:
    batches = [torch.randn(2, 9, 12) * 10.0 ** torch.arange(-3, 9) for _ in range(3)]
    mask = torch.ones(2, 9)
    mask[1, 4:] = 0
    whole, alone = InputObserver(12), DiagonalObserver(12)
    for look in ("observe_range", "observe"):
        for batch in batches:
            for observer in (whole, alone):
                getattr(observer, look)(batch, mask)
    assert torch.equal(alone.mean_square(), whole.mean_square())
    assert torch.equal(alone.mean_square(), whole.hessian().diagonal() / 2)
    assert torch.equal(alone.sample(SAMPLE), whole.sample(SAMPLE))
    with pytest.raises(QuantizationError, match="only the squares were summed"):
        alone.hessian()
