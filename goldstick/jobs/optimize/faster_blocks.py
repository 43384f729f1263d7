"""Norms, feed-forwards and attentions that faster modules can stand in for: found by shape, told by trial."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.kernels.attention import MOST_SHARING
from goldstick.kernels.fused import in_cpp
from goldstick.nn import QuantizedLinear
from goldstick.nn.fused.block_chain import BlockChain
from goldstick.nn.fused.decode_block import FusedDecodeBlock
from goldstick.nn.fused.feed_forward import GatedForward, NormForward, plain_gate
from goldstick.nn.fused.token_attention import TokenAttention
from goldstick.structure.norm_folding import normalises
from goldstick.surgery import Forward

#: Largest Σ(y′ − y)² / Σy² of a module that is called the same, by whether all is computed in float32. Where it is not,
#: the least difference may become a step of a dtype or of 8-bit inputs.
TOLERANCE = {True: 1e-10, False: 1e-4}

#: The same for a whole model, which may magnify a step by much more, and where wrong wiring shows as errors near 1. The
#: integer kernels round inputs to 16 bits, which has an error of 1e-9 by itself. Of 8-bit inputs, 22 blocks of random
#: weights make up to 1e-2.
MODEL_TOLERANCE = {True: 1e-7, False: 5e-2}

#: What attention modules are called to have when they do more than a softmax of scaled products.
_MORE = ("attn_logit_softcapping", "softcap", "softcapping", "sinks", "sliding_window", "sink", "attention_chunk_size")


def norms(model: nn.Module) -> Iterator[tuple[str, Forward | str]]:
    """Path of every norm with one weight, and a faster forward or why there is none."""
    for path, module in list(model.named_modules()):
        own = dict(module.named_parameters(recurse=False))
        epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
        weight = own.get("weight")
        if weight is None or weight.ndim != 1 or epsilon is None or "forward" in module.__dict__:
            continue
        if normalises(module):
            yield (
                path,
                "no quantized convolution along one or two sides, before it, can take over this batch norm (the stage "
                "fold_batch_norm folds it before rounding, whatever the sides)",
            )
            continue
        if set(own) != {"weight"} or list(module.children()) or not in_cpp(weight):
            yield path, "it is no root-mean-square norm in floats of 16 or 32 bits on the CPU"
            continue
        new = NormForward(module, float(epsilon))
        x = 3 * _noise(3, len(weight)).to(weight.dtype)
        same = close(_tried(module, x), new(x), TOLERANCE[weight.dtype == torch.float32])
        yield path, new if same else "it computes something else than a root-mean-square norm"


def feed_forwards(model: nn.Module, groups: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Forward | str]]:
    """Path of every module with a stacked pair and one layer more, and a faster forward or why there is none.

    Args:
        model: The model.
        groups: Stacked layers by the path of their parent.
    """
    for path, members in groups.items():
        module = model.get_submodule(path)
        pair = [model.get_submodule(member) for member in members]
        others = [child for child in module.children() if child not in pair]
        layers = [child for child in others if isinstance(child, (QuantizedLinear, nn.Linear))]
        gate = pair[0]
        if len(pair) != 2 or len(layers) != 1 or not isinstance(gate, QuantizedLinear) or not _bare(module):
            continue
        if getattr(layers[0], "in_features", None) != gate.out_features or pair[1].out_features != gate.out_features:
            continue
        if len(others) != 2 or not plain_gate(next(child for child in others if child is not layers[0])):
            yield path, "its activation is not SiLU"
            continue
        new = GatedForward(module, gate, layers[0])
        x = _noise(2, 3, gate.in_features).to(gate.weight_scale)
        same = in_cpp(x) and close(_tried(module, x), new(x), TOLERANCE[in_float32(gate, layers[0])])
        yield path, new if same else "it is no down(silu(gate(x)) · up(x))"


def attentions(
    model: nn.Module, groups: Mapping[str, tuple[str, ...]], decode: Callable[[], object]
) -> Iterator[tuple[str, Forward | str]]:
    """Path of every module with a stacked query, key and value, and a faster forward or why there is none.

    Args:
        model: The model.
        groups: Stacked layers by the path of their parent.
        decode: Runs the model on a cache that is filled, one token a sequence.
    """
    found: dict[str, TokenAttention] = {}
    for path, members in groups.items():
        module: Any = model.get_submodule(path)
        parts = [model.get_submodule(member) for member in members]
        if len(parts) != 3 or not hasattr(module, "head_dim"):
            continue
        reason = _not_plain(module, parts)
        if reason is not None:
            yield path, reason
            continue
        (output,) = [child for child in module.children() if child not in parts]
        found[path] = TokenAttention(module, parts[0], output)  # type: ignore[arg-type]
    worst: dict[str, bool] = {}
    handles = [
        model.get_submodule(path).register_forward_pre_hook(_comparison(path, new, worst), with_kwargs=True)
        for path, new in found.items()
    ]
    try:
        decode()
    finally:
        for handle in handles:
            handle.remove()
    for path, new in found.items():
        if path not in worst:
            yield path, "no call of it was one that could be done faster"
        else:
            yield path, new if worst[path] else "it computes something else than rotary softmax attention"


def blocks(model: nn.Module, decode: Callable[[], object]) -> Iterator[tuple[str, Forward | str]]:
    """Path of every module around a faster attention, feed-forward and two norms, and a faster forward or why not.

    Args:
        model: The model, with those forwards in it.
        decode: Runs the model on a cache that is filled, one token a sequence.
    """
    found: dict[str, list[FusedDecodeBlock]] = {}
    for path, module in model.named_modules():
        forwards = [child.__dict__.get("forward") for child in module.children()]
        attention = [forward for forward in forwards if isinstance(forward, TokenAttention)]
        feed = [forward for forward in forwards if isinstance(forward, GatedForward)]
        norm = [forward for forward in forwards if isinstance(forward, NormForward)]
        if not attention or isinstance(module.__dict__.get("forward"), FusedDecodeBlock):
            continue
        if (len(attention), len(feed), len(norm), len(forwards)) != (1, 1, 2, 4) or not _bare(module):
            yield path, "it has other parts than an attention, a feed-forward and two norms"
            continue
        orders = (norm[0], norm[1]), (norm[1], norm[0])
        found[path] = [FusedDecodeBlock(module, attention[0], feed[0], order) for order in orders]
    same = _tried_on(model, found, decode)
    for path, candidates in found.items():
        told = [same.get((path, number)) for number in range(len(candidates))]
        if any(told):
            yield path, candidates[told.index(True)]
        elif None in told:
            yield path, "no call of it was one that could be done faster"
        else:
            yield path, "it computes something else than an attention and a feed-forward, each behind a norm"


def chain(model: nn.Module) -> None:
    """Let blocks that run in one call run those behind them, too, in the order of the modules."""
    forwards = [module.__dict__.get("forward") for module in model.modules()]
    found = [forward for forward in forwards if isinstance(forward, FusedDecodeBlock)]
    chained = BlockChain(found) if len(found) > 1 else None
    for block in found:
        block.chain = chained


def _tried_on(
    model: nn.Module, found: Mapping[str, Sequence[FusedDecodeBlock]], decode: Callable[[], object]
) -> dict[tuple[str, int], bool]:
    """Path and number of a candidate → whether it gave what the module gives, in all calls that it takes."""
    same: dict[tuple[str, int], bool] = {}

    def hook(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for number, new in enumerate(found[path]):
            after = new.of_one_token(*args, **copy.deepcopy(kwargs))
            if after is not None:
                before = type(module).forward(module, *args, **copy.deepcopy(kwargs))
                told = isinstance(before, Tensor) and torch.equal(before, after)
                same[path, number] = same.get((path, number), True) and told

    handles = [
        model.get_submodule(path).register_forward_pre_hook(partial(hook, path), with_kwargs=True) for path in found
    ]
    try:
        decode()
    finally:
        for handle in handles:
            handle.remove()
    return same


def in_float32(*layers: nn.Module) -> bool:
    """Whether layers compute in float32, with no inputs of 8 bits, where the least difference may become a step."""
    return all(
        layer.weight_scale.dtype == torch.float32 and layer.scheme.activation is None
        if isinstance(layer, QuantizedLinear)
        else all(parameter.dtype == torch.float32 for parameter in layer.parameters())
        for layer in layers
    )


def close(before: Tensor | None, after: Tensor, tolerance: float) -> bool:
    """Whether outputs are the same but for the rounding of sums."""
    if before is None or before.shape != after.shape:
        return False
    wide = before.double()
    error = (after.double() - wide).square().sum() / wide.square().sum().clamp_min(1e-300)
    return bool(error <= tolerance)


def _noise(*shape: int) -> Tensor:
    """Normal noise, float32, always the same."""
    return torch.randn(shape, dtype=torch.float32, generator=torch.Generator().manual_seed(0))


def _tried(module: nn.Module, x: Tensor) -> Tensor | None:
    try:
        found = module(x)
    except Exception:  # a module of another kind may refuse in any way
        return None
    return found if isinstance(found, Tensor) else None


def _bare(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    hooked = any((module._forward_hooks, module._forward_pre_hooks))
    return not own and not hooked and "forward" not in module.__dict__


def _not_plain(module: Any, parts: list[Any]) -> str | None:
    others = [name for name, child in module.named_children() if child not in parts]
    if len(others) != 1 or not _bare(module):
        return f"it does more than to project ({', '.join(others[:-1]) or 'parameters or hooks of its own'})"
    more = [name for name in _MORE if getattr(module, name, None) is not None]
    if more:
        return f"it does more than a softmax of products ({', '.join(more)})"
    if not all(isinstance(getattr(module, name, None), (int, float)) for name in ("head_dim", "scaling", "layer_idx")):
        return "it does not say its head_dim, scaling and layer_idx"
    queries, keys, values = (part.out_features for part in parts)
    if keys != values or queries % keys or keys % module.head_dim or module.head_dim % 2:
        return "its heads are of another shape"
    if queries // keys > MOST_SHARING:
        return f"more than {MOST_SHARING} query heads share a key"
    return None


def _comparison(path: str, new: TokenAttention, worst: dict[str, bool]) -> Callable[..., None]:
    """A hook that runs both on caches of their own, and compares what they hand to the layer that maps heads back."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        after = None if args else new.heads_of_one_token(**copy.deepcopy(kwargs))
        if after is None:
            return
        seen: list[Tensor] = []
        handle = new.output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            type(module).forward(module, **copy.deepcopy(kwargs))
        finally:
            handle.remove()
        (before,) = seen
        exact = before.dtype == torch.float32
        worst[path] = worst.get(path, True) and close(before.flatten(), after.flatten(), TOLERANCE[exact])

    return hook
