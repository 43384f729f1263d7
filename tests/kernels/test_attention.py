"""Attention of one token: against a loop in float64, over floats and codes, with the same bits everywhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.errors import KernelError
from goldstick.kernels import cpu
from goldstick.kernels.attention import attend
from goldstick.kernels.rotary import attend_token, rotate_into
from tests.support.guarded import before_a_forbidden_page
from tests.support.packed_layers import normalized_error

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
#: (batch, kv_heads, heads, channels, tokens)
SHAPES = [(1, 1, 1, 2, 1), (2, 2, 4, 8, 33), (1, 4, 32, 64, 100), (1, 2, 6, 50, 32), (3, 1, 8, 128, 65)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
ERROR = {torch.float32: 1e-12, torch.bfloat16: 1e-5, torch.float16: 2e-7}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def slowly(q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """One head and one token after the other, in float64."""
    batch, heads, channels = q.shape
    out = torch.zeros(batch, heads, channels, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            own = h * keys.shape[1] // heads
            scores = [scaling * float(q[b, h].double() @ key.double()) for key in keys[b, own]]
            weights = [math.exp(score - max(scores)) for score in scores]
            for weight, value in zip(weights, values[b, own], strict=True):
                out[b, h] += weight / sum(weights) * value.double()
    return out


def codes(*shape: int, seed: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def floats8(*shape: int, seed: int) -> Tensor:
    """All numbers of E4M3, those of its smallest exponent too; no NaN."""
    bits = torch.randint(0, 254, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return torch.where(bits < 127, bits, bits + 1).view(torch.float8_e4m3fn)


def hadamard_matrix(size: int) -> Tensor:
    signs = [[(-1.0) ** bin(i & j).count("1") for j in range(size)] for i in range(size)]
    return torch.tensor(signs, dtype=torch.float64) / math.sqrt(size)


def coded(shape: tuple[int, ...], coding: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, their scales, and what they stand for, in float64."""
    batch, kv_heads, _, channels, tokens = shape
    if coding.startswith("int4"):
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randint(0, 16, (batch, kv_heads, tokens, channels), generator=generator)
        run = (numbers[..., ::2] | numbers[..., 1::2] << 4).to(torch.uint8)
        scale = random(batch, kv_heads, tokens, 2, seed=seed)
        scale[..., 0] = scale[..., 0].abs() / 5 + 0.01
        wide = numbers * scale[..., :1].double() + scale[..., 1:].double()
        size = channels & -channels
        return run, scale, wide.unflatten(-1, (-1, size)) @ hadamard_matrix(size) if "turned" in coding else wide
    run = (floats8 if "fp8" in coding else codes)(batch, kv_heads, tokens, channels, seed=seed)
    by_channel = "channel" in coding
    scale = random(*((kv_heads, channels) if by_channel else (batch, kv_heads, tokens)), seed=seed)
    scale = scale.abs() / (200 if "fp8" in coding else 50) + 0.001
    return run, scale, run.double() * (scale[:, None] if by_channel else scale[..., None]).double()


CODINGS = ["int8 by channel", "int8 by token", "fp8 by channel", "fp8 by token", "int4", "int4 turned"]
every_coding = pytest.mark.parametrize("coding", CODINGS)


def mixed(shape: tuple[int, ...], dtype: torch.dtype, coding: str) -> tuple[dict[str, Any], Tensor, Tensor]:
    """A float run, codes, and a float run; and what they stand for."""
    batch, kv_heads, _, channels, tokens = shape
    runs: dict[str, Any] = {"turned": channels & -channels if "turned" in coding else 0}
    plain = []
    for seed, name in enumerate(("keys", "values")):
        first, last = (random(batch, kv_heads, n, channels, dtype=dtype, seed=seed + n) for n in (3, 5))
        run, scale, wide = coded(shape, coding, seed)
        runs |= {name: [first, run, last], f"{name[:-1]}_scales": [scale]}
        plain.append(torch.cat([first.double(), wide.reshape(batch, kv_heads, tokens, channels), last.double()], dim=2))
    return runs, plain[0], plain[1]


def row_of(runs: dict[str, Any], row: int) -> dict[str, Any]:
    """The runs of one sequence."""
    return {
        name: [tensor[row : row + 1] for tensor in given] if isinstance(given, list) else given
        for name, given in runs.items()
    }


@every_shape
@every_dtype
def test_a_float_cache_gives_what_a_loop_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    batch, kv_heads, heads, channels, tokens = shape
    q = random(batch, heads, channels, dtype=dtype)
    keys, values = (random(batch, kv_heads, tokens, channels, dtype=dtype, seed=seed) for seed in (1, 2))
    found = attend(q, [keys], [values], 0.3)
    assert normalized_error(found, slowly(q, keys, values, 0.3)) < ERROR[dtype]


@every_shape
@every_dtype
@every_coding
def test_codes_between_floats_give_what_a_loop_over_their_numbers_gives(
    shape: tuple[int, ...], dtype: torch.dtype, coding: str
) -> None:
    runs, keys, values = mixed(shape, dtype, coding)
    q = random(shape[0], shape[2], shape[3], dtype=dtype)
    found = attend(q, scaling=0.3, **runs)
    assert normalized_error(found, slowly(q, keys, values, 0.3)) < ERROR[dtype]


@every_dtype
@every_coding
def test_plain_operations_give_the_same(dtype: torch.dtype, coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, _, _ = mixed((2, 2, 4, 8, 9), dtype, coding)
    q = random(2, 4, 8, dtype=dtype)
    found = attend(q, scaling=0.3, **runs)
    monkeypatch.setattr(cpu, "_C", None)
    assert normalized_error(found, attend(q, scaling=0.3, **runs).double()) < ERROR[dtype]


@pytest.mark.skipif(cpu._C is None, reason="the extension is not built")
@every_dtype
@pytest.mark.parametrize("coding", ["int8 by token", "fp8 by token", "int4", "int4 turned"])
def test_sequences_are_the_same_bits_in_any_batch_with_any_instructions_and_threads(
    dtype: torch.dtype, coding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, _, _ = mixed((3, 2, 8, 40, 300), dtype, coding)
    q = random(3, 8, 40, dtype=dtype)
    found = attend(q, scaling=0.3, **runs)
    for row in range(3):
        assert torch.equal(attend(q[row : row + 1], scaling=0.3, **row_of(runs, row)), found[row : row + 1])
    threads = torch.get_num_threads()
    monkeypatch.setenv("GOLDSTICK_ISA", "scalar")
    torch.set_num_threads(3)
    try:
        assert torch.equal(attend(q, scaling=0.3, **runs), found)
    finally:
        torch.set_num_threads(threads)


def test_tokens_in_a_longer_buffer_are_read_where_they_lie() -> None:
    keys, values = random(2, 2, 50, 8, seed=1), random(2, 2, 50, 8, seed=2)
    q = random(2, 4, 8)
    found = attend(q, [keys[:, :, :9]], [values[:, :, :9]], 1.0)
    assert torch.equal(found, attend(q, [keys[:, :, :9].contiguous()], [values[:, :, :9].contiguous()], 1.0))


def test_scores_far_apart_leave_one_token() -> None:
    keys = torch.eye(4).view(1, 1, 4, 4) * 1000
    values = torch.arange(4.0).view(1, 1, 4, 1).expand(1, 1, 4, 4).contiguous()
    assert attend(torch.eye(4)[2].view(1, 1, 4), [keys], [values], 1.0).tolist() == [[[2.0] * 4]]


def test_what_is_not_a_number_stays_so() -> None:
    keys = random(1, 1, 40, 8)
    keys[0, 0, 7, 3] = math.nan
    assert attend(random(1, 2, 8), [keys], [random(1, 1, 40, 8)], 1.0).isnan().all()


@pytest.mark.parametrize("built", [True, False])
def test_a_code_of_fp8_that_is_no_number_stays_so(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(cpu, "_C", None)
    runs, _, _ = mixed((1, 1, 2, 16, 9), torch.float32, "fp8 by token")
    runs["values"][1].view(torch.uint8)[0, 0, 4, 2] = 0xFF
    found = attend(random(1, 2, 16), scaling=1.0, **runs)
    assert found[..., 2].isnan().all() and found[..., [*range(2), *range(3, 16)]].isfinite().all()


def test_steps_and_minimums_in_a_longer_buffer_are_read_where_they_lie() -> None:
    runs, _, _ = mixed((2, 2, 4, 8, 9), torch.float32, "int4 turned")
    expected = attend(random(2, 4, 8), scaling=0.3, **runs)
    for name in ("keys", "values"):
        run, scales = runs[name][1], runs[f"{name[:-1]}_scales"][0]
        runs[name][1] = torch.cat([run, run], dim=2)[:, :, :9]
        runs[f"{name[:-1]}_scales"][0] = torch.cat([scales, scales], dim=2)[:, :, :9]
    assert torch.equal(attend(random(2, 4, 8), scaling=0.3, **runs), expected)


def rotated_slowly(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    out = torch.empty_like(x)
    for i in range(half):
        out[..., i] = x[..., i] * cos[..., i] + -x[..., i + half] * sin[..., i]
        out[..., i + half] = x[..., i + half] * cos[..., i + half] + x[..., i] * sin[..., i + half]
    return out


@every_dtype
@pytest.mark.parametrize("angles", [1, 2])
@pytest.mark.parametrize("channels", [2, 6, 64])
def test_queries_and_keys_are_rotated_and_written_to_the_bit(dtype: torch.dtype, angles: int, channels: int) -> None:
    x = random(2, 1, (4 + 2 + 2) * channels, dtype=dtype)
    cos, sin = (random(angles, 1, channels, dtype=dtype, seed=seed) for seed in (1, 2))
    keys, values = (torch.zeros(2, 2, 7, channels, dtype=dtype) for _ in range(2))
    q = rotate_into(x, cos, sin, keys[:, :, 3:4], values[:, :, 3:4], heads=4)
    heads = x.view(2, 8, channels)
    assert torch.equal(q, rotated_slowly(heads[:, :4], cos, sin))
    assert torch.equal(keys[:, :, 3], rotated_slowly(heads[:, 4:6], cos, sin))
    assert torch.equal(values[:, :, 3], heads[:, 6:])
    assert not keys[:, :, [0, 1, 2, 4, 5, 6]].any()
    assert not values[:, :, [0, 1, 2, 4, 5, 6]].any()


@every_dtype
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("built", [True, False])
def test_rotation_and_attention_in_one_give_the_bits_of_both(
    dtype: torch.dtype, batch: int, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not built:
        monkeypatch.setattr(cpu, "_C", None)
    x = random(batch, 1, (8 + 2 + 2) * 16, dtype=dtype)
    cos, sin = (random(batch, 1, 16, dtype=dtype, seed=seed) for seed in (1, 2))
    buffers = [random(batch, 2, 40, 16, dtype=dtype, seed=seed) for seed in (3, 4)]
    keys, values = (buffer.clone() for buffer in buffers)
    for filled in (0, 33, 39):
        found = attend_token(x, cos, sin, *buffers, filled, 8, 0.25)
        q = rotate_into(x, cos, sin, keys[:, :, filled : filled + 1], values[:, :, filled : filled + 1], 8)
        expected = attend(q, [keys[:, :, : filled + 1]], [values[:, :, : filled + 1]], 0.25)
        assert torch.equal(found, expected)
        assert torch.equal(buffers[0], keys)
        assert torch.equal(buffers[1], values)


def test_what_does_not_fit_is_refused() -> None:
    q, run = random(1, 4, 8), random(1, 2, 5, 8)
    coded, scale = codes(1, 2, 5, 8, seed=0), torch.ones(2, 8)
    nibbles, ends = torch.zeros(1, 2, 5, 4, dtype=torch.uint8), torch.ones(1, 2, 5, 2)
    wrong: list[tuple[Any, ...]] = [
        (q, [run], [run[:, :, :4]], 1.0),
        (q, [run.bfloat16()], [run.bfloat16()], 1.0),
        (q, [random(1, 3, 5, 8)], [random(1, 3, 5, 8)], 1.0),
        (q, [run.transpose(2, 3).contiguous().transpose(2, 3)], [run], 1.0),
        (q, [coded], [coded], 1.0),
        (q, [coded], [run], 1.0, [scale], []),
        (q, [coded, coded], [coded, coded], 1.0, [scale], [scale]),
        (q, [coded], [coded], 1.0, [scale.double()], [scale]),
        (q, [coded], [coded], 1.0, [ends], [ends]),
        (q, [nibbles], [nibbles], 1.0, [scale], [scale]),
        (q, [nibbles], [coded], 1.0, [ends], [scale]),
        (q, [coded.view(torch.uint8)], [coded.view(torch.uint8)], 1.0, [ends], [ends]),
        (q, [nibbles], [nibbles], 1.0, [ends], [ends], 3),
        (q, [nibbles], [nibbles], 1.0, [ends], [ends], 16),
        (q, [nibbles], [nibbles], 1.0, [ends], [ends], -2),
        (q, [run[:, :, :0]], [run[:, :, :0]], 1.0),
        (q, [], [], 1.0),
    ]
    for arguments in wrong:
        with pytest.raises(KernelError):
            attend(*arguments)
    with pytest.raises(KernelError, match="rotate_into"):
        rotate_into(random(1, 1, 63), random(1, 1, 8), random(1, 1, 8), run[:, :, :1], run[:, :, :1], 4)
    angles, both = random(1, 1, 8), random(1, 1, 64)
    for refused in (
        (both, angles, angles, run, run[:, :, :4], 1, 4, 1.0),
        (both, angles, angles, run, run, 5, 4, 1.0),
        (both, angles, angles.bfloat16(), run, run, 1, 4, 1.0),
        (both, angles[..., :4], angles[..., :4], run, run, 1, 4, 1.0),
        (both[..., 1:], angles, angles, run, run, 1, 4, 1.0),
        (both, angles, angles, random(1, 2, 9, 8)[:, :, :5], run, 1, 4, 1.0),
    ):
        with pytest.raises(KernelError, match="attend_token"):
            attend_token(*refused)


@every_coding
def test_the_operators_pass_torchs_checks(coding: str) -> None:
    runs, _, _ = mixed((1, 2, 4, 8, 5), torch.float32, coding)
    q = random(1, 4, 8)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        torch.ops.goldstick.attend.default,
        (q, runs["keys"], runs["values"], 0.3, runs["key_scales"], runs["value_scales"], runs["turned"]),
        test_utils=checks["fp8" in coding :],  # torch's check of the schema multiplies inputs, which FP8 cannot
    )
    angles = random(1, 1, 8)
    keys, values = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8)
    torch.library.opcheck(torch.ops.goldstick.rotate_into.default, (random(1, 1, 64), angles, angles, keys, values, 4))


@pytest.mark.skipif(cpu._C is None, reason="the extension is not built")
@every_dtype
@every_shape
@every_coding
def test_nothing_is_read_or_written_behind_the_end(dtype: torch.dtype, shape: tuple[int, ...], coding: str) -> None:
    runs, _, _ = mixed(shape, dtype, coding)
    batch, kv_heads, heads, channels, tokens = shape
    q = random(batch, heads, channels, dtype=dtype)
    release = []

    def guarded(tensor: Tensor) -> Tensor:
        found, let_go = before_a_forbidden_page(tensor)
        release.append(let_go)
        return found

    expected = attend(q, scaling=0.3, **runs)
    inside = {
        name: [guarded(tensor) for tensor in given] if isinstance(given, list) else given
        for name, given in runs.items()
    }
    assert torch.equal(attend(guarded(q), scaling=0.3, **inside), expected)
    x, angles = random(batch, 1, (heads + 2 * kv_heads) * channels, dtype=dtype), random(1, 1, channels, dtype=dtype)
    buffers = [random(batch, kv_heads, tokens, channels, dtype=dtype, seed=seed) for seed in (3, 4)]
    inside_buffers = [guarded(buffer) for buffer in buffers]
    expected = attend_token(x, angles, angles, *buffers, tokens - 1, heads, 0.3)
    edges = (guarded(x), guarded(angles), guarded(angles))
    assert torch.equal(attend_token(*edges, *inside_buffers, tokens - 1, heads, 0.3), expected)
    assert torch.equal(inside_buffers[0], buffers[0])
    for let_go in release:
        let_go()
