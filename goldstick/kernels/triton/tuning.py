"""How a multiplication is cut into programs: the sizes of tiles, and into how many parts a row is split.

What decides the order of a sum (columns in a tile, tiles in a part) follows from the layer and the number of tokens
alone. The autotuner chooses only what does not: rows in a tile, warps and stages. So a run repeats its bits.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import JITFunction

from goldstick.kernels.base import WeightSpec


@triton.jit
def _nothing() -> None:
    return


interpreted = not isinstance(_nothing, JITFunction)
"""Whether Triton was imported with TRITON_INTERPRET=1: its kernels then run in numpy, on any device."""

CONFIGS = [
    triton.Config({"tile_rows": rows}, num_warps=warps, num_stages=stages)
    for rows, warps, stages in (
        [(64, 1, 1)] if interpreted else [(64, 4, 3), (64, 4, 5), (128, 4, 3), (128, 4, 5), (128, 8, 4)]
    )
]
"""What the autotuner tries for each layer shape and size of batch; the interpreter has nothing to gain."""

launching = threading.Lock()
"""Held while a tuned kernel is launched: Triton keeps a call's arguments where those of another thread go, too."""

_FEWEST_TILE_TOKENS = 8
_MOST_TILE_TOKENS = 64
_WARPS_OF_FEW_TOKENS = 4
_MOST_TILE_TOKENS_OF_FLOAT32 = 16
"""Tensor cores do not multiply float32, so its tiles go through shared memory, of which some GPUs have 99 KiB, and each
product is an instruction of its own: 64 tokens fit no such GPU, and are compiled for a minute."""

_NOMINAL_TILE_ROWS = 64
_PROGRAMS_PER_PROCESSOR = 4
_BITS_OF_A_SUM = 4 * 2 * 32
"""Bits of codes that pay for a partial sum: four times those of writing and of reading it."""

_INTERPRETED_PROCESSORS = 1
_ALIGNED = 16  # bytes


def worth_trying(configs: list[triton.Config], given: dict[str, Any], **named: Any) -> list[triton.Config]:
    """What the autotuner tries of the configurations for a call.

    Of float32, which takes long to compile, the smallest alone. For the fewest tokens, those of four warps: eight would
    deal out the few inputs otherwise, and so add them up in another order.
    """
    if given["x"].dtype == torch.float32:
        return configs[:1]
    if named["tile_tokens"] == _FEWEST_TILE_TOKENS:
        return [config for config in configs if config.num_warps <= _WARPS_OF_FEW_TOKENS]
    return configs


def tile_tokens(tokens: int, dtype: torch.dtype) -> int:
    """Tokens in a tile of a dtype: the next power of two, from 8 (what tensor cores multiply at least) to 64."""
    most = _MOST_TILE_TOKENS_OF_FLOAT32 if dtype == torch.float32 else _MOST_TILE_TOKENS
    return min(most, max(_FEWEST_TILE_TOKENS, 1 << (tokens - 1).bit_length()))


def words_per_group(spec: WeightSpec) -> int:
    """Packed words whose codes share a scale; for whole rows more than there are."""
    return spec.group_size * spec.bits // 32 if spec.groups > 1 else 1 << 30


def splits(tokens: int, spec: WeightSpec, columns: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts a row is split, and the tiles of ``columns`` columns in each part but perhaps the last.

    Few tokens make few tiles of outputs, which leave most of a GPU idle; parts of a row are then summed by programs of
    their own and added up, in order, by ``partial_sums``. There are never so many that what is written and read of
    their sums exceeds a quarter of the codes.
    """
    tiles = -(-spec.in_features // columns)
    programs = -(-spec.out_features // _NOMINAL_TILE_ROWS) * -(-tokens // _MOST_TILE_TOKENS)
    wanted = -(-_PROGRAMS_PER_PROCESSOR * _processors(device) // programs)
    cheap = spec.in_features * spec.bits // (tokens * _BITS_OF_A_SUM)
    per_split = -(-tiles // max(1, min(wanted, cheap, tiles)))
    return -(-tiles // per_split), per_split


def dense(tensor: Tensor | None, placeholder: Tensor) -> Tensor:
    """A tensor as kernels read it; ``placeholder`` where there is none, since a kernel needs some address."""
    return placeholder if tensor is None else aligned(tensor.detach())


def aligned(tensor: Tensor) -> Tensor:
    """A tensor in order, from an address that is a multiple of 16 on.

    Triton compiles other addresses otherwise, and float32 is then added up in another order.
    """
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNED == 0 else tensor.clone()


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
