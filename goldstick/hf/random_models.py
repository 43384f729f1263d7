"""Llamas with random weights, in float or quantized: what speed is measured on where there is no checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.nn import QuantizedLinear

_DEVIATION = 0.02


def llama_config(**settings: Any) -> Any:
    """A ``LlamaConfig`` with the given settings."""
    from transformers import LlamaConfig

    return LlamaConfig(**settings)


def float_llama(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A model with weights from N(0, 0.02²), which require gradients as those of a loaded model do.

    torch multiplies a slice of a batch in another way by weights that require none, in bfloat16 ten times as slowly.
    """
    model = _empty(config)
    for path, parameter in list(model.named_parameters()):
        _put(model, path, _random(parameter.shape).to(dtype))
    return model.to(dtype).eval().requires_grad_()


def quantized_llama(config: Any, scheme: str) -> Any:
    """A model whose linear layers, the head too, hold random codes of a scheme; nothing else is ever in memory."""
    model, parsed = _empty(config), Scheme.parse(scheme)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            surgery.replace(model, path, QuantizedLinear(_codes(module, parsed), parsed))
    for path, parameter in list(model.named_parameters()):
        if parameter.is_meta:  # scales are there already
            _put(model, path, _random(parameter.shape))
    return model.eval()


def _empty(config: Any) -> Any:
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are computed, not random
    return model


def _random(shape: torch.Size) -> Tensor:
    return torch.ones(shape) if len(shape) < 2 else torch.randn(shape).mul_(_DEVIATION)


def _put(model: nn.Module, path: str, value: Tensor) -> None:
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, nn.Parameter(value, requires_grad=False))


def _codes(module: nn.Linear, scheme: Scheme) -> QuantizedTensor:
    bits, rows, columns = scheme.weight.bits, module.out_features, module.in_features
    groups = -(-columns // scheme.weight.group_width(columns))
    step = _DEVIATION * 2 * 3.5 / 2**bits  # the codes span 3.5 standard deviations either way
    if scheme.weight.superblock is not None:
        return _superblock_codes(rows, columns, scheme, step)
    return QuantizedTensor(
        codes=torch.randint(0, 2**bits, (rows, columns), dtype=torch.uint8),
        scale=torch.full((rows, groups), step),
        zero=None,
        grid=scheme.weight,
        global_scale=torch.ones(1, 1) if scheme.weight.tensor_scaled else None,
    )


def _superblock_codes(rows: int, columns: int, scheme: Scheme, step: float) -> QuantizedTensor:
    grid, most = scheme.weight, 31  # of six bits, half of what scales may be
    assert grid.superblock is not None and grid.group_size is not None
    groups, superblocks = columns // grid.group_size, columns // grid.superblock
    element = grid.float_element
    unit = step / most if element is None else _DEVIATION * 3.5 / element.largest / most
    units = torch.full((rows, 1 + grid.minimums, superblocks), unit).half().float()
    if grid.minimums:  # the middle code stands for about 0
        units[:, 1] *= 2 ** (grid.bits - 1)
    return QuantizedTensor(
        codes=torch.randint(0, 2**grid.bits, (rows, columns), dtype=torch.uint8),
        scale=torch.full((rows, groups), float(most)),
        zero=torch.full((rows, groups), float(most)) if grid.minimums else None,
        grid=grid,
        global_scale=units,
    )
