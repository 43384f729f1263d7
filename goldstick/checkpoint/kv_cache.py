"""The quantized KV cache on disk: a sidecar that holds it exactly, and what other readers understand of it.

``goldstick_kv_cache.json`` holds the scheme and every scale. No other tool reads it. compressed-tensors can say a scale
for a whole tensor or each head (``kv_cache_scheme`` with ``strategy: tensor`` or ``attn_head``, scales
``….self_attn.k_scale`` and ``….v_scale``) or for each token at run time, and not channels, float windows or a scheme of
their own for values; a checkpoint in that format gets the nearest of these as well.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import open_tensors, read_json
from goldstick.core.kv_cache import KVScales, KVScheme, KVSettings
from goldstick.errors import CheckpointError, FormatError, GoldstickError
from goldstick.formats.base import StorageFormat

KV_SIDECAR = "goldstick_kv_cache.json"
KV_VERSION = 1
#: What compressed-tensors calls the dtypes of codes.
_TYPES = {"int8": "int", "fp8": "float"}
#: How the names of its scales end.
KV_SCALES = (".k_scale", ".v_scale")
#: Key-value heads that a layer may have; a stored scale has one value, or one for each.
_MOST_HEADS = 65536


@dataclass(frozen=True, kw_only=True)
class StoredKV:
    """What a checkpoint holds of a quantized KV cache.

    Attributes:
        label: Short name of the scheme.
        config: Entries of the ``quantization_config``.
        tensors: Tensors beside the weights, as the model names them.
        sidecar: Bytes of ``goldstick_kv_cache.json``.
    """

    label: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    sidecar: bytes


def stored_kv(settings: KVSettings, modules: Mapping[int, str], storage: StorageFormat, dtype: torch.dtype) -> StoredKV:
    """What to store of ``settings``.

    Args:
        settings: The cache.
        modules: Layer index → path of the attention module that compressed-tensors gives scales to.
        storage: Storage format of the weights.
        dtype: Dtype of the model, in which other readers expect scales.
    """
    config: Mapping[str, Any] = {}
    tensors: Mapping[str, Tensor] = {}
    readable = bool(modules) and set(settings.scales) <= set(modules)
    if storage.holds_kv_scales and readable and settings.scheme.dtype in _TYPES:
        config, tensors = {"kv_cache_scheme": kv_config(settings.scheme)}, kv_tensors(settings, modules, dtype)
    return StoredKV(label=settings.scheme.label, config=config, tensors=tensors, sidecar=kv_sidecar(settings))


def attention_modules(model: nn.Module) -> dict[int, str]:
    """Layer index → path of the attention modules that compressed-tensors 0.20 gives a quantized cache to.

    Those are modules called attention with one of a few projections and a cache argument. Models that name their
    projections otherwise (GPT-2, GPT-NeoX, BLOOM, Falcon, T5) have none, and plain transformers runs them on a float
    cache.
    """
    found = {}
    for path, module in model.named_modules():
        index = getattr(module, "layer_idx", None)
        projects = any(hasattr(module, name) for name in ("k_proj", "v_proj", "qkv_proj", "kv_b_proj"))
        if not (isinstance(index, int) and projects and "attention" in type(module).__name__.lower()):
            continue
        if {"past_key_values", "past_key_value"} & set(inspect.signature(module.forward).parameters):
            found[index] = path
    return found


def kv_config(scheme: KVScheme) -> dict[str, Any]:
    """The ``kv_cache_scheme`` of compressed-tensors that lies nearest: by tensor or head, or by token at run time."""
    dynamic = scheme.mode == "dynamic"
    strategy = "token" if dynamic else "attn_head" if _by_head(scheme) else "tensor"
    return {"num_bits": 8, "type": _TYPES[scheme.dtype], "symmetric": True, "strategy": strategy, "dynamic": dynamic}


def _by_head(scheme: KVScheme) -> bool:
    """Whether readers get a scale for each head: those of int8 do not take them."""
    return scheme.dtype == "fp8" and (scheme.keys, scheme.values) == ("head", "head")


def kv_tensors(settings: KVSettings, modules: Mapping[int, str], dtype: torch.dtype) -> dict[str, Tensor]:
    """``k_scale`` and ``v_scale`` of every layer: [1], the largest of its scales, which covers all its ranges; those of
    FP8 by head as they are, [heads, 1, 1].

    Rounded up where ``dtype`` is coarser than float32, so that it still does.
    """
    tensors = {}
    for layer, scales in settings.scales.items():
        for name, scale in (("k_scale", scales.keys), ("v_scale", scales.values)):
            shared = scale.unsqueeze(-1) if _by_head(settings.scheme) else scale.amax().reshape(1)
            tensors[f"{modules[layer]}.{name}"] = _rounded_up(shared, dtype)
    return tensors


def _rounded_up(scale: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = scale.to(dtype)
    up = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    return torch.where(rounded.float() < scale, up, rounded)


def kv_sidecar(settings: KVSettings) -> bytes:
    """The JSON text of a cache; numbers are written so that float32 comes back to the bit."""
    layers = {
        str(layer): {"keys": scales.keys.tolist(), "values": scales.values.tolist()}
        for layer, scales in settings.scales.items()
    }
    scheme = asdict(settings.scheme)
    if scheme["dtype"] == "int8":  # which is what files without it hold
        del scheme["dtype"]
    if not scheme["rotate"]:
        del scheme["rotate"]
    return json.dumps({"version": KV_VERSION, "scheme": scheme, "layers": layers}).encode() + b"\n"


def read_kv(
    directory: Path, quantization_config: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None = None
) -> KVSettings | None:
    """The quantized cache of a checkpoint: the sidecar where there is one, otherwise what compressed-tensors says.

    Args:
        directory: The checkpoint.
        quantization_config: What its config has under this name.
        tensors: Every tensor of it, where its headers were read already.

    Raises:
        CheckpointError: The sidecar is damaged, or scales are missing.
        FormatError: It is of a later version, or a scheme goldstick does not run.
    """
    path = directory / KV_SIDECAR
    if path.is_file():
        return _from_sidecar(path)
    scheme = quantization_config.get("kv_cache_scheme")
    return _from_tensors(directory, scheme, tensors) if scheme else None


def _from_sidecar(path: Path) -> KVSettings:
    try:
        value = read_json(path, f"no checkpoint with {KV_SIDECAR}")
        if value["version"] != KV_VERSION:
            raise FormatError(
                f"{path} is of version {shown(value['version'])} and this goldstick reads version "
                f"{KV_VERSION}; install a newer goldstick."
            )
        scales = {
            int(layer): KVScales(
                keys=torch.tensor(entry["keys"], dtype=torch.float32),
                values=torch.tensor(entry["values"], dtype=torch.float32),
            )
            for layer, entry in value["layers"].items()
        }
        return KVSettings(scheme=KVScheme(**value["scheme"]), scales=scales)
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, GoldstickError) as error:
        raise CheckpointError(f"{path} is damaged: {error} Copy the checkpoint again.") from error


def _from_tensors(directory: Path, scheme: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None) -> KVSettings:
    """What another tool wrote: scales by tensor or head, or none for a dynamic cache."""
    if not isinstance(scheme, Mapping):
        raise FormatError(f"The config's kv_cache_scheme is a table, not {shown(scheme)}.")
    dynamic = bool(scheme.get("dynamic"))
    strategy = scheme.get("strategy", "token" if dynamic else "tensor")  # which Model Optimizer does not say
    dtype: Any = next((name for name, kind in _TYPES.items() if kind == scheme.get("type")), None)
    known = scheme.get("num_bits") == 8 and dtype is not None and scheme.get("symmetric", True)
    if not known or strategy not in (("token",) if dynamic else ("tensor", "attn_head")):
        raise FormatError(
            f"goldstick runs int8 and FP8 KV caches by tensor, head or token, and this checkpoint has {shown(scheme)}."
        )
    if dynamic:
        return KVSettings(scheme=KVScheme(dtype=dtype, mode="dynamic", keys="head", values="head"), scales={})
    found: dict[int, dict[str, Tensor]] = {}
    for name, info in (open_tensors(directory) if tensors is None else tensors).items():
        match = re.search(r"\.(\d+)\.(?:\w+\.)*([kv]_scale)$", name)
        if match:
            if not info.dtype.is_floating_point or not 0 < info.shape.numel() <= _MOST_HEADS:
                raise CheckpointError(f"{name} in {directory} is {info.dtype} {list(info.shape)}, which is no scale.")
            found.setdefault(int(match[1]), {})[match[2]] = info.read().float().reshape(-1, 1)
    broken = [layer for layer, pair in found.items() if len(pair) != 2]
    if broken or not found:
        what = f"one scale only for layer {broken[0]}" if broken else "no k_scale and v_scale"
        raise CheckpointError(f"{directory} promises a static KV cache and holds {what}. It is incomplete.")
    granularity: Any = "tensor" if strategy == "tensor" else "head"
    scales = {layer: KVScales(keys=pair["k_scale"], values=pair["v_scale"]) for layer, pair in sorted(found.items())}
    return KVSettings(scheme=KVScheme(dtype=dtype, keys=granularity, values=granularity), scales=scales)
