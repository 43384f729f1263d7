"""The numbers beside NVFP4 matrices, with which llama.cpp multiplies their products.

For a matrix ``X.weight`` of NVFP4 blocks ``X.scale`` is float32 [1], or [experts]: what the scales of its blocks are
multiplied by in turn. llama.cpp reads it for every architecture, and multiplies with it in the graphs of some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.file import StoredTensor
from goldstick.checkpoint.gguf.names import Place, place_of
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.errors import FormatError
from goldstick.formats.gguf import FACTOR
from goldstick.formats.gguf_blocks import NVFP4

_WEIGHT, _SCALE, _BIAS = ".weight", ".scale", ".bias"
#: Matrices whose products are multiplied, less the block.
_MULTIPLIED = frozenset(
    [
        *("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        *("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "output"),
    ]
)


def factor_place(output: str, architecture: Architecture) -> Place:
    """Where the number of a matrix lies; ``output`` is the name of the weight with what stands for the number."""
    place = place_of(output.removesuffix(FACTOR), architecture)
    return dataclasses.replace(place, names=tuple(_beside(name) for name in place.names))


def require_multiplied(places: Mapping[str, Place], outputs: Collection[str], architecture: Architecture) -> None:
    """Refuse NVFP4 matrices whose number llama.cpp would drop.

    Args:
        places: Output → place of the blocks of NVFP4 matrices.
        outputs: Everything that is written.
        architecture: Whose.

    Raises:
        FormatError: There is one; the message names it.
    """
    for output, place in places.items():
        kind, weight = place.kind.removesuffix(_WEIGHT), output.removesuffix(NVFP4.suffix)
        if not architecture.multiplies or kind not in _MULTIPLIED:
            raise FormatError(
                f"llama.cpp drops the scale of scales of {weight}: its graph of the architecture {architecture.name!r} "
                "does not multiply with it. Use mxfp4a16 or q4_k, or another format, such as compressed-tensors."
            )
        if kind.startswith("ffn") and weight.removesuffix(_WEIGHT) + _BIAS in outputs:
            raise FormatError(
                f"llama.cpp multiplies the product of {weight} with the scale of its scales after it has added the "
                "bias. Use mxfp4a16 or q4_k, or another format, such as compressed-tensors."
            )


def factors_of(tensors: Mapping[str, StoredTensor], architecture: Architecture) -> dict[str, StoredTensor]:
    """NVFP4 matrix of a file → the number beside it, where llama.cpp multiplies with it.

    Raises:
        FormatError: One is not float32, or not as many as there are matrices.
    """
    if not architecture.multiplies:
        return {}
    found = {}
    for name, tensor in tensors.items():
        beside = tensors.get(_beside(name)) if name.endswith(_WEIGHT) and tensor.type == NVFP4.name else None
        if beside is not None:
            count = tensor.shape[0] if len(tensor.shape) > 2 else 1
            if beside.type != "F32" or beside.shape.numel() != count:
                raise FormatError(
                    f"{beside.file}: {beside.name!r} is {beside.type} {list(beside.shape)}; beside NVFP4 it holds "
                    f"{count} numbers in F32."
                )
            found[name] = beside
    return found


def factor_info(stored: StoredTensor, weight: str, expert: int | None) -> TensorInfo:
    """The number of a matrix as a tensor of a checkpoint, float32 [1]."""
    file: Path = stored.file
    start = stored.start + 4 * (expert or 0)
    return TensorInfo(
        name=weight + FACTOR, file=file, dtype=torch.float32, shape=torch.Size([1]), start=start, nbytes=4
    )


def _beside(name: str) -> str:
    return name.removesuffix(_WEIGHT) + _SCALE
