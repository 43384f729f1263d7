"""Quantized layers as other libraries hold them in memory: compressed-tensors' and GPTQModel's modules, read.

Neither library is imported: their modules are known by what they bring along.

*compressed-tensors* hangs a ``quantization_scheme`` on plain linear layers. Until the first forward pass they hold the
tensors of the file; then the float weight with its scales, from which the codes are found again: only where they give
exactly that weight. *GPTQModel*'s modules hold the tensors of the file, until a kernel rearranges them for itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, quantize_on_grid
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.awq import AWQ, awq_scheme
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.formats.config_groups import scheme_of_group
from goldstick.formats.gptq import GPTQ, GPTQ_V2
from goldstick.formats.input_scale import part_name, unpack_input

#: Modules of GPTQModel that hold a file's tensors as they are, before their first forward pass at least.
_AS_STORED = frozenset(
    {
        "TorchLinear",
        "TorchAtenLinear",
        "TorchCpuAvx512Linear",
        "TritonV2Linear",
        "AwqTorchLinear",
        "TorchAtenAwqLinear",
        "TorchCpuAvx512AwqLinear",
        "AwqGEMMLinear",
    }
)
_AGAIN = "Load the checkpoint with goldstick.load(directory) instead"


@dataclass(frozen=True, kw_only=True)
class HeldLayer:
    """A quantized linear layer taken from another library's module; its scales in the dtype it computes in."""

    scheme: Scheme
    tensor: QuantizedTensor
    bias: Tensor | None
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None


def held_layer(module: nn.Module, dtype: torch.dtype) -> HeldLayer | None:
    """The quantized linear layer that a module of another library is, or ``None`` where it is none.

    Args:
        module: Any module.
        dtype: What the model computes in, for modules that keep their scales in float16 whatever that is.

    Raises:
        FormatError: It is one, and cannot be read: the scheme is none that goldstick runs, or the module no longer
            holds what the file held.
    """
    described = getattr(module, "quantization_scheme", None)
    if described is not None and getattr(described, "weights", None) is not None:
        return _from_compressed_tensors(module, described)
    if type(module).__module__.startswith("gptqmodel.") and hasattr(module, "qweight"):
        return _from_gptqmodel(module, dtype)
    return None


def _from_compressed_tensors(module: Any, described: Any) -> HeldLayer:
    if not isinstance(module, nn.Linear):
        raise FormatError(f"compressed-tensors quantized a {type(module).__name__}, no linear layer. {_AGAIN}.")
    scheme = scheme_of_group(described.model_dump(mode="json"))
    if getattr(module, "weight_g_idx", None) is not None:
        raise FormatError(f"its groups are scattered by a weight_g_idx, which compressed-tensors gave up. {_AGAIN}.")
    held = {**module._parameters, **module._buffers}
    suffixes = ("", "_packed", "_scale", "_zero_point", "_shape", ".input_scale", ".input_zero_point")
    named = {suffix: held.get(part_name("weight", suffix).removeprefix(".")) for suffix in suffixes}
    parts = {suffix: value.detach() for suffix, value in named.items() if value is not None}
    if "_packed" in parts or ("" in parts and parts[""].dtype is torch.int8):
        tensor = COMPRESSED_TENSORS.unpack(parts, scheme, module.in_features)
    else:
        tensor = _found_again(parts, scheme)
    scale, zero = unpack_input(parts, scheme, type(module).__name__)
    return HeldLayer(scheme=scheme, tensor=tensor, bias=module.bias, input_scale=scale, input_zero=zero)


def _found_again(parts: Mapping[str, Tensor], scheme: Scheme) -> QuantizedTensor:
    """The codes of a decompressed weight, which lies on its grid exactly."""
    grid = scheme.weight
    if "" not in parts or "_scale" not in parts:
        raise FormatError(f"it holds neither packed codes nor a weight with its scales. {_AGAIN}.")
    zero = None if grid.symmetric else parts["_zero_point"].float() + grid.midpoint
    tensor = quantize_on_grid(parts[""], parts["_scale"], zero, grid)
    if not torch.equal(tensor.dequantize(parts[""].dtype), parts[""]):
        raise FormatError(f"its decompressed weight is no longer what its codes gave; something changed it. {_AGAIN}.")
    return tensor


def _from_gptqmodel(module: Any, dtype: torch.dtype) -> HeldLayer:
    name = type(module).__name__
    if name not in _AS_STORED or getattr(module, "_cpu_transformed", False):
        raise FormatError(
            f"GPTQModel's {name} {'rearranges' if name not in _AS_STORED else 'has rearranged'} its codes for a kernel "
            f"of its own. Accelerate the model before its first forward pass. {_AGAIN}."
        )
    size = -1 if module.group_size in (-1, module.in_features) else module.group_size
    if "Awq" in name:
        storage: StorageFormat = AWQ
        scheme = awq_scheme({"bits": module.bits, "group_size": size}, module.qzeros)
    elif module.qzero_format() == 1 and not module.sym:
        # 1 stands for zeros stored less one, and for those of a gptq_v2 file, which never were.
        raise FormatError(f"GPTQModel does not say how the zeros of its asymmetric {name} are stored. {_AGAIN}.")
    else:
        storage = GPTQ if module.qzero_format() == 1 else GPTQ_V2
        by_group = size != -1
        scheme = Scheme(
            weight=Grid(
                bits=module.bits,
                symmetric=module.sym,
                granularity="group" if by_group else "channel",
                group_size=size if by_group else None,
            )
        )
    layer = StoredLayer(
        name="held.weight",
        site="held",
        kind="linear",
        shape=torch.Size([module.out_features, module.in_features]),
        scheme=scheme,
        fractional_zeros=False,
    )
    parts = {}
    for suffix, (shape, _) in storage.specs(layer, torch.float16).items():
        part = getattr(module, suffix.removeprefix("."))
        if part.shape != shape:
            raise FormatError(
                f"its {suffix.removeprefix('.')} is {list(part.shape)}, and a {scheme.label} layer of this size stores "
                f"{list(shape)}: GPTQModel padded or rearranged it. {_AGAIN}."
            )
        parts[suffix] = part.detach()
    tensor = storage.unpack(parts, scheme, module.in_features)
    bias = None if module.bias is None else module.bias.detach().to(dtype)
    return HeldLayer(scheme=scheme, tensor=dataclasses.replace(tensor, scale=tensor.scale.to(dtype)), bias=bias)
