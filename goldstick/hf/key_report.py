"""Every tensor of a checkpoint against every parameter of its model: the missing, the extra, the misshapen."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.errors import CheckpointError
from goldstick.formats.input_scale import part_name
from goldstick.hf.names import CheckpointNames
from goldstick.structure.network import Network

if TYPE_CHECKING:
    from goldstick.hf.layers import StoredLayers

_KV_SCALE = re.compile(r".*\.[kv]_scale")


@dataclass(frozen=True, kw_only=True)
class KeyReport:
    """What a checkpoint holds beside what its model calls for.

    Attributes:
        missing: Parameters of the model for which nothing is stored.
        extra: Tensors that belong to nothing in the model.
        misshapen: Tensor → what it is and what it should be, in words.
    """

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    misshapen: Mapping[str, str]


def key_report(
    tensors: Mapping[str, TensorInfo],
    stored: StoredLayers | None,
    config: Mapping[str, Any],
    names: CheckpointNames,
    network: Network,
    unused: Collection[str] = (),
) -> KeyReport:
    """The account of a checkpoint.

    Args:
        tensors: Every tensor of it.
        stored: Its quantized matrices, or ``None`` where it has none.
        config: Its ``quantization_config``, or nothing.
        names: How its model's checkpoints name tensors.
        network: Its model, on the meta device.
        unused: Tensors that it is known to carry on for nothing.
    """
    shapes = {name: value.shape for name, value in network.model.state_dict().items()}
    layers = {layer.name: layer for layer in stored.layers} if stored else {}
    parts = {part_name(layer.name, suffix) for layer in layers.values() for suffix in _suffixes(stored, layer)}
    kv = bool(config.get("kv_cache_scheme"))
    pieces: dict[str, list[tuple[str, torch.Size]]] = {}
    covered: set[str] = set()
    extra = []
    for name, info in tensors.items():
        if name in parts and name not in layers:
            continue
        piece = names.piece(name)
        if piece.parameter in shapes:
            covered.update((piece.parameter, *piece.others))
            if piece.by_rows and name not in layers:
                pieces.setdefault(piece.parameter, []).append((name, info.shape))
        elif not (kv and _KV_SCALE.fullmatch(name)) and not names.ignores(name) and name not in unused:
            extra.append(name)
    for layer in layers.values():
        piece = names.piece(layer.name)
        covered.update((piece.parameter, *piece.others))
        pieces.setdefault(piece.parameter, []).append((layer.name, layer.shape))
    matrices = {site.parameter_name: site.matrix_shape for site in network.sites if site.parameter_name in shapes}
    misshapen = {}
    for parameter, found in pieces.items():
        quantized = any(name in layers for name, _ in found)
        wanted = matrices[parameter] if quantized and parameter in matrices else shapes[parameter]
        for name, shape in _wrong(found, wanted):
            misshapen[name] = f"{list(shape)}, and {list(wanted)} in the model of its config"
    missing = _missing(network, covered, config, names)
    return KeyReport(missing=tuple(missing), extra=tuple(extra), misshapen=misshapen)


def _suffixes(stored: StoredLayers | None, layer: Any) -> list[str]:
    if stored is None:
        return []
    return list(stored.format.stored_specs(layer, stored.tensors))


def _wrong(found: list[tuple[str, torch.Size]], wanted: torch.Size) -> list[tuple[str, torch.Size]]:
    """The pieces that do not make up ``wanted``: a single one by its shape, several by their sum."""
    if len(found) == 1:
        (name, shape), *_ = found
        return [] if _without_ones(shape) == _without_ones(wanted) else [(name, shape)]
    if sum(math.prod(shape) for _, shape in found) == math.prod(wanted):
        return []
    usual = max({shape for _, shape in found}, key=[shape for _, shape in found].count)
    return [(name, shape) for name, shape in found if shape != usual] or found[:1]


def _without_ones(shape: torch.Size) -> tuple[int, ...]:
    """A shape less its leading ones: a stack of one expert may be stored without the stack."""
    sizes = tuple(shape)
    while sizes[:1] == (1,):
        sizes = sizes[1:]
    return sizes


def _missing(
    network: Network, covered: set[str], config: Mapping[str, Any], names: CheckpointNames
) -> list[str]:  # fmt: skip
    tied = network.tied()
    groups: dict[str, set[str]] = {}
    for name, owner in tied.items():
        groups.setdefault(owner, {owner}).add(name)
    ties = config.get("ties")
    on_another = {f"{site}.weight" for site in ties} if isinstance(ties, Mapping) else set()
    return [
        name
        for name, _ in network.model.named_parameters(remove_duplicate=False)
        if name not in covered
        and name not in on_another
        and not groups.get(tied.get(name, name), set()) & covered
        and not names.makes_itself(name)
    ]


def require_complete_keys(directory: Path, found: KeyReport) -> None:
    """Refuse a checkpoint that holds other tensors than its model calls for.

    Raises:
        CheckpointError: It does.
    """
    problems = {
        "missing keys": found.missing,
        "unexpected keys": found.extra,
        "misshapen keys": tuple(found.misshapen),
    }
    for kind, names in problems.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            shape = f" ({found.misshapen[names[0]]})" if kind == "misshapen keys" else ""
            raise CheckpointError(
                f"{directory} does not hold what its config promises: {kind} {', '.join(names[:3])}{more}{shape}. "
                "The checkpoint is damaged, incomplete or not of this config; 'goldstick doctor' lists all of it."
            )
