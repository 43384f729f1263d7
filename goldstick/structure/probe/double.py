"""A small float64 copy of a model, in which every path that any of its layers takes is taken once."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from goldstick.core.layout import Layout
from goldstick.structure.blocks import block_of
from goldstick.structure.network import Network
from goldstick.structure.probe.trial import fill_meta
from goldstick.structure.trace import map_tensors

#: Rows of embeddings, and of heads, that the copy keeps.
ROWS = 256
_LOW = {torch.float32, torch.float16, torch.bfloat16}


@contextmanager
def double_precision() -> Iterator[None]:
    """No gradients, and float64 inside: code that asks for a shorter float, as norms and softmax do, gets float64."""
    with torch.inference_mode(False), torch.no_grad(), _Double():
        yield


class _Double(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        args = tuple(torch.float64 if _is_low(value) else value for value in args)
        return func(*args, **{name: torch.float64 if _is_low(value) else value for name, value in kwargs.items()})


def _is_low(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _LOW


def double_copy(network: Network, blocks: Collection[str], *, rows: int | None = ROWS, seed: int = 0) -> nn.Module:
    """A float64 copy of a model in evaluation mode that keeps only ``blocks``, under their names.

    The rest of the module lists is left out, and of embeddings and heads only the first ``rows`` rows are copied
    (``None``: all), so it is small however large the model. Weights on the meta device become random numbers.
    A head that is tied to an embedding gets its own weight.
    """
    model = network.model
    left_out = [block for block in network.blocks if block not in blocks]
    memo: dict[int, Any] = {id(model.get_submodule(block)): nn.Identity() for block in left_out}
    own = dict(model.named_parameters(remove_duplicate=False))
    ties = network.tied()
    ends = {site.parameter_name for site in network.sites if site.role in ("embedding", "head")}
    ends |= {f"{name.removesuffix('weight')}bias" for name in ends}
    ends |= {ties[name] for name in ends if name in ties}
    for name, parameter in own.items():
        if block_of(name, tuple(left_out)) is None and name not in ties:
            values = parameter.detach()[:rows] if name in ends and rows else parameter.detach()
            values = values.to(torch.float64, copy=True) if values.is_floating_point() else values.clone()
            memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
    for name, owner in ties.items():  # a model on the meta device may not have tied them yet
        if id(own[owner]) in memo:
            memo[id(own[name])] = memo[id(own[owner])]
    small = copy.deepcopy(model, memo)
    for block in left_out:
        path, _, last = block.rpartition(".")
        del small.get_submodule(path)._modules[last]
    fill_meta(small, torch.Generator().manual_seed(seed))
    for module in small.modules():
        if isinstance(module, nn.Embedding):
            module.num_embeddings, module.padding_idx = module.weight.shape[0], None
    for site in network.sites:
        if site.parameter_name in ties and site.layout is not Layout.EMBEDDING and site.block is None:
            module = small.get_submodule(site.module)
            setattr(module, site.parameter, nn.Parameter(getattr(module, site.parameter).clone(), requires_grad=False))
    if hasattr(small, "config"):
        config: Any = small.config
        config.use_cache = False
    choose = getattr(small, "set_experts_implementation", None)
    if callable(choose):
        choose("eager")  # grouped products of experts know no float64
    return small.double().eval()


def small_inputs(inputs: Mapping[str, Any], rows: int = ROWS) -> dict[str, Any]:
    """The same inputs for a copy with ``rows`` rows in its embeddings: ids taken modulo that."""

    def shrink(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.double()
        return tensor if tensor.dtype == torch.bool else tensor % rows

    changed: dict[str, Any] = map_tensors(dict(inputs), shrink)
    return changed
