"""Attention of one token: against a loop in float64, over float and int8 runs, with the same bits everywhere."""

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


def mixed(shape: tuple[int, ...], dtype: torch.dtype, granularity: str) -> tuple[dict[str, Any], Tensor, Tensor]:
    """A float run, codes, and a float run; and what they stand for."""
    batch, kv_heads, _, channels, tokens = shape
    runs: dict[str, Any] = {}
    plain = []
    for seed, name in enumerate(("keys", "values")):
        first, last = (random(batch, kv_heads, n, channels, dtype=dtype, seed=seed + n) for n in (3, 5))
        coded = codes(batch, kv_heads, tokens, channels, seed=seed)
        scale = random(*((kv_heads, channels) if granularity == "channel" else (batch, kv_heads, tokens)), seed=seed)
        scale = scale.abs() / 50 + 0.001
        wide = coded.double() * (scale[:, None] if granularity == "channel" else scale[..., None]).double()
        runs |= {name: [first, coded, last], f"{name[:-1]}_scales": [scale]}
        plain.append(torch.cat([first.double(), wide, last.double()], dim=2))
    return runs, plain[0], plain[1]


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
@pytest.mark.parametrize("granularity", ["channel", "token"])
def test_codes_between_floats_give_what_a_loop_over_their_numbers_gives(
    shape: tuple[int, ...], dtype: torch.dtype, granularity: str
) -> None:
    runs, keys, values = mixed(shape, dtype, granularity)
    q = random(shape[0], shape[2], shape[3], dtype=dtype)
    found = attend(q, scaling=0.3, **runs)
    assert normalized_error(found, slowly(q, keys, values, 0.3)) < ERROR[dtype]


@every_dtype
def test_plain_operations_give_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, _, _ = mixed((2, 2, 4, 8, 9), dtype, "channel")
    q = random(2, 4, 8, dtype=dtype)
    found = attend(q, scaling=0.3, **runs)
    monkeypatch.setattr(cpu, "_C", None)
    assert normalized_error(found, attend(q, scaling=0.3, **runs).double()) < ERROR[dtype]


@pytest.mark.skipif(cpu._C is None, reason="the extension is not built")
@every_dtype
def test_sequences_are_the_same_bits_in_any_batch_with_any_instructions_and_threads(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, _, _ = mixed((3, 2, 8, 40, 300), dtype, "token")
    q = random(3, 8, 40, dtype=dtype)
    found = attend(q, scaling=0.3, **runs)
    for row in range(3):
        alone = {name: [tensor[row : row + 1] for tensor in tensors] for name, tensors in runs.items()}
        assert torch.equal(attend(q[row : row + 1], scaling=0.3, **alone), found[row : row + 1])
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
    wrong: list[tuple[Any, ...]] = [
        (q, [run], [run[:, :, :4]], 1.0),
        (q, [run.bfloat16()], [run.bfloat16()], 1.0),
        (q, [random(1, 3, 5, 8)], [random(1, 3, 5, 8)], 1.0),
        (q, [run.transpose(2, 3).contiguous().transpose(2, 3)], [run], 1.0),
        (q, [coded], [coded], 1.0),
        (q, [coded], [run], 1.0, [scale], []),
        (q, [coded, coded], [coded, coded], 1.0, [scale], [scale]),
        (q, [coded], [coded], 1.0, [scale.double()], [scale]),
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


def test_the_operators_pass_torchs_checks() -> None:
    runs, _, _ = mixed((1, 2, 4, 8, 5), torch.float32, "channel")
    q = random(1, 4, 8)
    torch.library.opcheck(
        torch.ops.goldstick.attend.default,
        (q, runs["keys"], runs["values"], 0.3, runs["key_scales"], runs["value_scales"]),
    )
    angles = random(1, 1, 8)
    keys, values = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8)
    torch.library.opcheck(torch.ops.goldstick.rotate_into.default, (random(1, 1, 64), angles, angles, keys, values, 4))


@pytest.mark.skipif(cpu._C is None, reason="the extension is not built")
@every_dtype
@every_shape
@pytest.mark.parametrize("granularity", ["channel", "token"])
def test_nothing_is_read_or_written_behind_the_end(
    dtype: torch.dtype, shape: tuple[int, ...], granularity: str
) -> None:
    runs, _, _ = mixed(shape, dtype, granularity)
    batch, kv_heads, heads, channels, tokens = shape
    q = random(batch, heads, channels, dtype=dtype)
    release = []

    def guarded(tensor: Tensor) -> Tensor:
        found, let_go = before_a_forbidden_page(tensor)
        release.append(let_go)
        return found

    expected = attend(q, scaling=0.3, **runs)
    inside = {name: [guarded(tensor) for tensor in tensors] for name, tensors in runs.items()}
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
