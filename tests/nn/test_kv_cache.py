"""Int8 keys and values: the arithmetic against plain loops, and the store against a list of tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from goldstick.core.kv_cache import KVDtype, KVScales, KVScheme, KVSettings, kv_scale
from goldstick.errors import QuantizationError, RecipeError
from goldstick.kernels.kv_nibbles import nibbles_of, numbers_of, turned_together
from goldstick.nn.kv_cache import QuantizedStates, quantize_states, token_scale


def states(tokens: int = 9, *, seed: int = 0, heads: int = 2, channels: int = 4, batch: int = 3) -> Tensor:
    return torch.randn(batch, heads, tokens, channels, generator=torch.Generator().manual_seed(seed)) * 3


def numbers_for(codes: Tensor, scale: Tensor, dtype: torch.dtype, codes_are: KVDtype = "int8") -> Tensor:
    numbers = codes.view(torch.float8_e4m3fn) if codes_are == "fp8" else codes
    return (numbers.float() * scale).to(dtype)


def round_trip_by_hand(x: float, scale: float) -> float:
    """clamp(round(x / s), −127, 127) · s in float32, half to even, one number at a time."""
    quotient = float(torch.tensor(x, dtype=torch.float32) / torch.tensor(scale, dtype=torch.float32))
    low = math.floor(quotient)
    up = quotient - low > 0.5 or (quotient - low == 0.5 and low % 2 == 1)
    code = max(-127, min(127, low + up))
    return float(torch.tensor(float(code)) * torch.tensor(scale, dtype=torch.float32))


def test_codes_are_what_a_loop_over_single_numbers_gives() -> None:
    x = states(5)
    scale = kv_scale(x.abs().amax(dim=(0, 2)) * 0.9, "channel")  # some numbers are clipped
    found = numbers_for(quantize_states(x, scale[:, None]), scale[:, None], torch.float32)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in x.shape)).tolist():
        batch, head, token, channel = index
        by_hand = round_trip_by_hand(float(x[batch, head, token, channel]), float(scale[head, channel]))
        assert float(found[batch, head, token, channel]) == by_hand


def test_half_steps_round_to_even_and_the_grid_is_symmetric() -> None:
    x = torch.tensor([0.5, 1.5, -0.5, -1.5, 127.0, -127.0, 128.0, -200.0]).view(1, 1, 1, -1)
    codes = quantize_states(x, torch.tensor(1.0))
    assert codes.dtype == torch.int8
    assert codes.flatten().tolist() == [0, 2, 0, -2, 127, -127, 127, -127]


def test_codes_of_fp8_are_the_nearest_of_its_numbers() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()]
    x = states(5)
    scale = kv_scale(x.abs().amax(dim=(0, 2)) * 0.9, "head", "fp8")[:, None]  # some numbers are clipped
    assert torch.equal(scale.flatten(), x.abs().amax(dim=(0, 2, 3)) * 0.9 / 448)
    codes = quantize_states(x, scale, "fp8")
    assert codes.dtype == torch.int8
    found = numbers_for(codes, scale, torch.float32, "fp8")
    nearest = ((x / scale).unsqueeze(-1) - numbers).abs().amin(-1)
    torch.testing.assert_close(((x - found) / scale).abs(), nearest, rtol=0, atol=1e-3)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_store_in_fp8_gives_attention_the_numbers_of_its_codes(fixed: bool) -> None:
    x = states(9)
    scale = kv_scale(x.abs().amax(dim=(0, 2)), "tensor", "fp8") if fixed else None
    store = QuantizedStates(x, scale, window=2, sinks=1, dtype="fp8")
    for token in x.split(1, dim=2):
        store.append(token)
    rounded = x[:, :, 1:7]
    steps = token_scale(rounded, "fp8") if scale is None else scale
    rounded = numbers_for(quantize_states(rounded, steps, "fp8"), steps, x.dtype, "fp8")
    expected = torch.cat([x[:, :, :1], rounded, x[:, :, 7:]], dim=2)
    assert torch.equal(store.dequantized(), expected)
    (first, codes, recent), (given,) = store.runs()
    assert codes.dtype == torch.float8_e4m3fn and torch.equal(first, x[:, :, :1]) and torch.equal(recent, x[:, :, 7:])
    assert torch.equal(codes.float() * (given[..., None] if scale is None else given[:, None]), rounded)
    assert store.codes.dtype == torch.int8


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("channels", [6, 7, 8])
def test_int4_counts_steps_from_the_least_number_of_a_token(channels: int, rotate: bool) -> None:
    x = states(5, channels=channels)
    turned, size = x, 0
    if rotate:
        size = {6: 2, 7: 1, 8: 8}[channels]
        assert turned_together(channels) == size
        matrix = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(size)] for i in range(size)])
        turned = (x.reshape(-1, size) @ matrix / math.sqrt(size)).reshape(x.shape)
    codes, ends = nibbles_of(x, size)
    assert codes.dtype == torch.int8 and codes.shape == (3, 2, 5, (channels + 1) // 2) and ends.shape == (3, 2, 5, 2)
    bits = codes.view(torch.uint8)
    numbers = numbers_of(codes, ends, channels, torch.float32)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in x.shape)).tolist():
        batch, head, token, channel = index
        row = turned[batch, head, token].double()
        low, step = float(row.min()), float(row.max() - row.min()) / 15
        code = int(bits[batch, head, token, channel // 2]) >> (4 * (channel % 2)) & 15
        assert abs(code - (float(row[channel]) - low) / step) < 0.5 + 1e-4
        assert float(numbers[tuple(index)]) == pytest.approx(code * step + low, abs=1e-5)
    error = (numbers_of(codes, ends, channels, torch.float32, size) - x).norm() / x.norm()
    assert 0.001 < float(error) < 0.1


def test_a_token_alike_in_all_channels_is_kept_and_one_that_is_no_number_stays_none() -> None:
    x = states(3)
    x[0, 0, 0], x[0, 0, 1, 2] = 3.5, math.nan
    found = numbers_of(*nibbles_of(x), 4, torch.float32)
    assert bool((found[0, 0, 0] == 3.5).all()) and bool(found[0, 0, 1].isnan().all())
    assert bool(found[0, 1].isfinite().all())


def test_turning_spreads_a_large_channel() -> None:
    x = states(64, channels=16)
    x[..., 3] *= 50
    plain, turned = (numbers_of(*nibbles_of(x, size), 16, torch.float32, size) - x for size in (0, 16))
    assert turned.norm() < 0.8 * plain.norm()


@pytest.mark.parametrize("granularity", ["channel", "head", "tensor"])
def test_what_lies_in_the_calibrated_range_is_off_by_half_a_step_at_most(granularity: str) -> None:
    x = states(64)
    scale = kv_scale(x.abs().amax(dim=(0, 2)), granularity)  # type: ignore[arg-type]
    assert scale.shape == {"channel": (2, 4), "head": (2, 1), "tensor": (1, 1)}[granularity]
    error = (numbers_for(quantize_states(x, scale[:, None]), scale[:, None], x.dtype) - x).abs()
    assert bool((error <= scale[:, None] * (0.5 + 1e-4)).all())


def test_an_outlier_channel_costs_the_others_nothing_when_each_has_its_scale() -> None:
    x = states(64)
    x[..., 1] *= 100
    errors = {}
    for granularity in ("channel", "head"):
        scale = kv_scale(x.abs().amax(dim=(0, 2)), granularity)[:, None]  # type: ignore[arg-type]
        errors[granularity] = float((numbers_for(quantize_states(x, scale), scale, x.dtype) - x)[..., 0].abs().max())
    assert errors["channel"] < errors["head"] / 20


def test_ranges_of_zero_get_scale_one_and_infinite_ones_are_refused() -> None:
    assert kv_scale(torch.zeros(2, 3), "channel").tolist() == [[1.0] * 3] * 2
    assert token_scale(torch.zeros(1, 1, 2, 3)).tolist() == [[[[1.0], [1.0]]]]
    with pytest.raises(QuantizationError, match="NaN or infinite"):
        kv_scale(torch.tensor([[1.0, math.inf]]), "tensor")


def test_a_scale_by_token_depends_on_that_token_and_head_alone() -> None:
    x = states(5)
    scale = token_scale(x)
    assert scale.shape == (3, 2, 5, 1)
    x[0, 0, 0] *= 10
    changed = token_scale(x) != scale
    assert changed.sum() == 1
    assert bool(changed[0, 0, 0])


class Tokens:
    """The store as it is described, as a list: each token float until it leaves the window."""

    def __init__(self, scale: Tensor | None, window: int, sinks: int) -> None:
        self.scale, self.window, self.sinks = scale, window, sinks
        self.tokens: list[tuple[Tensor, bool]] = []

    def append(self, x: Tensor) -> None:
        self.tokens += [(token, False) for token in x.unbind(2)]
        for position in range(self.sinks, len(self.tokens) - self.window):
            token, rounded = self.tokens[position]
            if not rounded:
                scale = token.abs().amax(-1, keepdim=True) / 127 if self.scale is None else self.scale
                self.tokens[position] = ((token / scale).round().clamp(-127, 127) * scale, True)

    def all(self) -> Tensor:
        return torch.stack([token for token, _ in self.tokens], dim=2)


@pytest.mark.parametrize("fixed", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (4, 0), (0, 3), (4, 3), (50, 0)])
def test_the_store_holds_what_a_list_of_tokens_does_however_they_come(fixed: bool, window: int, sinks: int) -> None:
    x = states(20)
    scale = kv_scale(x.abs().amax(dim=(0, 2)), "channel") if fixed else None
    store, expected = QuantizedStates(x, scale, window=window, sinks=sinks), Tokens(scale, window, sinks)
    for piece in x.split([7, 1, 1, 2, 9], dim=2):
        store.append(piece)
        expected.append(piece)
        assert torch.equal(store.dequantized(), expected.all())
    assert len(store) == 20


@pytest.mark.parametrize("fixed", [True, False], ids=["static", "dynamic"])
def test_tokens_that_are_cropped_may_come_again(fixed: bool) -> None:
    x = states(12)
    scale = kv_scale(x.abs().amax(dim=(0, 2)), "head") if fixed else None
    whole, cropped = (QuantizedStates(x, scale, sinks=2) for _ in range(2))
    whole.append(x)
    cropped.append(x)
    cropped.drop_last(11)  # into the sinks
    assert len(cropped) == 1
    cropped.append(x[:, :, 1:])
    assert torch.equal(cropped.dequantized(), whole.dequantized())


every_dynamic_dtype = pytest.mark.parametrize("dtype", ["int8", "fp8", "int4"])


@every_dynamic_dtype
def test_dropping_from_either_end_leaves_the_rest_as_it_was(dtype: KVDtype) -> None:
    x = states(12)
    for window, sinks in ((0, 0), (3, 0), (3, 2), (0, 4)):
        store = QuantizedStates(x, None, window=window, sinks=sinks, dtype=dtype)
        store.append(x)
        before = store.dequantized()
        store.drop_first(3)
        store.drop_last(4)
        assert torch.equal(store.dequantized(), before[:, :, 3:8])


@every_dynamic_dtype
def test_rows_of_the_batch_are_chosen_repeated_and_reordered(dtype: KVDtype) -> None:
    x = states(6)
    store = QuantizedStates(x, None, window=2, sinks=1, dtype=dtype)
    store.append(x)
    before = store.dequantized()
    store.select_rows(torch.tensor([2, 0, 0]))
    assert torch.equal(store.dequantized(), before[[2, 0, 0]])
    store.repeat_rows(2)
    assert torch.equal(store.dequantized(), before[[2, 2, 0, 0, 0, 0]])


def test_codes_take_a_byte_each_and_dtype_comes_back() -> None:
    x = states(100).bfloat16()
    store = QuantizedStates(x, torch.ones(1, 1))
    store.append(x)
    assert store.nbytes == x.numel() + 4 * x.shape[1] * x.shape[3]
    assert store.dequantized().dtype == torch.bfloat16
    dynamic = QuantizedStates(x, None)
    dynamic.append(x)
    assert dynamic.nbytes == x.numel() + 4 * x.numel() // x.shape[-1]
    halves = QuantizedStates(x, None, dtype="int4")
    halves.append(x)
    assert halves.nbytes == x.numel() // 2 + 8 * x.numel() // x.shape[-1]
    assert halves.dequantized().dtype == torch.bfloat16


@pytest.mark.parametrize("rotate", [False, True])
def test_a_store_in_int4_grows_token_by_token_as_at_once(rotate: bool) -> None:
    x = states(20)
    stores = [QuantizedStates(x, None, window=3, sinks=2, dtype="int4", rotate=rotate) for _ in range(2)]
    stores[0].append(x)
    for token in x.split(1, dim=2):
        stores[1].append(token)
    codes, ends = nibbles_of(x[:, :, 2:17], 4 * rotate)
    expected = torch.cat([x[:, :, :2], numbers_of(codes, ends, 4, x.dtype, 4 * rotate), x[:, :, 17:]], dim=2)
    for store in stores:
        assert torch.equal(store.dequantized(), expected) and store.turned == 4 * rotate
        (first, run, recent), (scales,) = store.runs()
        assert torch.equal(first, x[:, :, :2]) and torch.equal(recent, x[:, :, 17:])
        assert run.dtype == torch.uint8 and torch.equal(run.view(torch.int8), codes) and torch.equal(scales, ends)


def test_scales_of_another_model_are_refused() -> None:
    with pytest.raises(QuantizationError, match="another model"):
        QuantizedStates(states(1), torch.ones(3, 1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "dynamic"}, "one scale for each token"),
        ({"mode": "sometimes"}, "static or dynamic"),
        ({"keys": "group"}, "channel, head or tensor"),
        ({"window": -1}, "below zero"),
        ({"dtype": "int4"}, "mode is dynamic"),
        ({"rotate": True}, "in int8 it would gain nothing"),
        ({"dtype": "int2"}, "int8 or fp8 or int4"),
    ],
)
def test_schemes_that_mean_nothing_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        KVScheme(**options)  # type: ignore[arg-type]


def test_settings_have_scales_exactly_when_they_are_static() -> None:
    scales = {0: KVScales(keys=torch.ones(1, 1), values=torch.ones(1, 1))}
    with pytest.raises(QuantizationError, match="calibration data"):
        KVSettings(scheme=KVScheme(), scales={})
    with pytest.raises(QuantizationError, match="cannot be given"):
        KVSettings(scheme=KVScheme(mode="dynamic", keys="head"), scales=scales)
    with pytest.raises(QuantizationError, match="positive"):
        KVScales(keys=torch.zeros(1, 1), values=torch.ones(1, 1))
