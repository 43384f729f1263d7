"""What bitsandbytes stores beside codes of 4 bits: their type, what they stand for, and scales of scales.

Which type stands in the name of the ``quant_state``: NF4 (2305.14314), or an FP4 whose codes count otherwise than those
of others, and whose smallest number is a twelfth of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.errors import FormatError
from goldstick.formats.base import StoredTensor

ABSMAX, MAP, STATE = ".weight.absmax", ".weight.quant_map", ".weight.quant_state.bitsandbytes__"
NESTED_ABSMAX, NESTED_MAP = ".weight.nested_absmax", ".weight.nested_quant_map"
#: Scales that share a scale.
NESTED_BLOCK = 256
#: Bytes of the JSON as goldstick writes it, with spaces behind, so that its length is known beforehand.
STATE_BYTES = 128
#: Elements by what bitsandbytes calls them.
_ELEMENTS = {"nf4": "nf4", "fp4": "bnbfp4"}
#: Where the numbers of its FP4 codes stand in ascending order; the upper half of the codes is negative.
_FP4_PLACES = (8, 9, 14, 15, 12, 13, 10, 11, 7, 6, 1, 0, 3, 2, 5, 4)


def kind_of(grid: Grid) -> str:
    """What bitsandbytes calls the element of a grid."""
    return next(kind for kind, element in _ELEMENTS.items() if element == grid.element)


def places(grid: Grid) -> Tensor:
    """goldstick's code of each of bitsandbytes', uint8 [16]."""
    return torch.tensor(_FP4_PLACES if kind_of(grid) == "fp4" else range(16), dtype=torch.uint8)


def numbers(grid: Grid) -> Tensor:
    """What bitsandbytes' codes stand for, float32 [16]."""
    element = grid.float_element
    assert element is not None
    return element.table()[places(grid).long()]


def state_of(codes: str, tensors: Mapping[str, StoredTensor]) -> tuple[Grid, torch.Size]:
    """The grid and the shape [out, in] of a stored matrix.

    Args:
        codes: Name of the tensor of its codes.
        tensors: Every tensor of the checkpoint.

    Raises:
        FormatError: Nothing says them, or what does makes no sense; the message names the tensor.
    """
    stem = codes.removesuffix(".weight")
    kind = next((kind for kind in _ELEMENTS if stem + STATE + kind in tensors), None)
    if kind is None:
        raise FormatError(f"{codes} is stored as codes without a quant_state beside it. Save the checkpoint again.")
    found = parsed(tensors[stem + STATE + kind].read())
    shape, size = found.get("shape"), found.get("blocksize")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(one) is int and 0 < one < 2**31 for one in shape):
        raise FormatError(f"{codes} is a matrix, and its quant_state says the shape {shown(shape)}.")
    if type(size) is not int or size < 2 or shape[1] % size:
        raise FormatError(
            f"{codes} has rows of {shape[1]} inputs in blocks of {shown(size)}, which run over the ends of rows; "
            "goldstick reads whole blocks. Quantize the float model it came from."
        )
    return Grid(element=_ELEMENTS[kind], bits=4, granularity="group", group_size=size), torch.Size(shape)


def written(grid: Grid, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The JSON of a matrix [out, in], uint8 [128].

    Args:
        grid: Its grid.
        shape: Its shape.
        dtype: What bitsandbytes makes numbers in.
    """
    words = {
        "quant_type": kind_of(grid),
        "blocksize": grid.group_size,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
    }
    return torch.tensor(list(json.dumps(words).ljust(STATE_BYTES).encode()), dtype=torch.uint8)


def parsed(state: Tensor) -> Mapping[str, Any]:
    """What a ``quant_state`` says.

    Raises:
        FormatError: It is no table in JSON.
    """
    try:
        found = json.loads(bytes(state.tolist()))
    except (ValueError, RecursionError) as error:
        raise FormatError("a quant_state of bitsandbytes is no JSON. Save the checkpoint again.") from error
    if not isinstance(found, Mapping):
        raise FormatError(f"a quant_state of bitsandbytes is a table, not {shown(found)}.")
    return found


def scales(parts: Mapping[str, Tensor], grid: Grid) -> Tensor:
    """One for each block, float32 [blocks], as bitsandbytes computes them.

    Raises:
        FormatError: Scales of scales are for other blocks than bitsandbytes has.
    """
    scale = parts[ABSMAX]
    if NESTED_ABSMAX not in parts:
        return scale.float()
    found = parsed(parts[STATE + kind_of(grid)])
    size, offset = found.get("nested_blocksize"), found.get("nested_offset")
    if size != NESTED_BLOCK or not isinstance(offset, float | int):
        raise FormatError(
            f"bitsandbytes has a scale for each {NESTED_BLOCK} scales, and an offset; this is for {shown(size)}, with "
            f"{shown(offset)}."
        )
    each = parts[NESTED_ABSMAX].repeat_interleave(NESTED_BLOCK)[: len(scale)]
    return parts[NESTED_MAP][scale.long()] * each + offset
