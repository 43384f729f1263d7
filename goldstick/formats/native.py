"""The native format: holds whatever a QuantizedTensor can be, one table of layers in the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, packed_width, unpack_rows
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError, RecipeError
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import INPUT_MULTIPLIER, INPUT_ORDER, input_specs, pack_input

FORMAT_VERSION = 1


class Native:
    """Packed rows, scales in the model's dtype and zeros in float32, for every layout and any zero.

    ``X_packed`` int32 [..., out, ceil(in · bits / 32)], ``X_scale`` [..., out, groups] and, for asymmetric grids,
    ``X_zero_point`` float32 [..., out, groups]. Beside it ``input_scale`` and ``input_zero_point`` of a static input,
    ``input_multiplier`` [in] of a multiplied one, and ``input_order`` int32 [in] where columns lie in an order of their
    own.
    """

    name = "native"

    def refuses(self, layer: StoredLayer) -> str | None:
        """Nothing is refused."""
        return None

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Nor is any mixture."""
        return None

    def remarks(self, layers: Sequence[StoredLayer]) -> list[str]:
        """There are none."""
        return []

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        *lead, in_features = layer.shape
        grid = layer.scheme.weight
        scales = torch.Size([*lead, grid.groups(in_features)])
        specs = {
            "_packed": (torch.Size([*lead, packed_width(in_features, grid.bits)]), torch.int32),
            "_scale": (scales, scale_dtype),
        }
        if not grid.symmetric:
            specs["_zero_point"] = (scales, torch.float32)
        if layer.multiplied:
            specs[INPUT_MULTIPLIER] = (torch.Size([in_features]), scale_dtype)
        if layer.reordered:
            specs[INPUT_ORDER] = (torch.Size([in_features]), torch.int32)
        return specs | input_specs(layer.scheme, scale_dtype)

    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layer by suffix."""
        parts = {"_packed": pack_rows(tensor.codes, tensor.grid.bits), "_scale": tensor.scale}
        if tensor.zero is not None:
            parts["_zero_point"] = tensor.zero.float()
        if input_multiplier is not None:
            parts[INPUT_MULTIPLIER] = input_multiplier.to(tensor.scale.dtype)
        if tensor.input_order is not None:
            parts[INPUT_ORDER] = tensor.input_order.int()
        return parts | pack_input(scheme, input_scale, input_zero, tensor.scale.dtype)

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors."""
        grid = scheme.weight
        codes = unpack_rows(parts["_packed"], grid.bits, in_features)
        zero = None if grid.symmetric else parts["_zero_point"]
        order = parts.get(INPUT_ORDER)
        return QuantizedTensor(codes=codes, scale=parts["_scale"], zero=zero, grid=grid, input_order=order)

    def config(
        self, layers: Sequence[StoredLayer], left_alone: Sequence[str], ties: Mapping[str, str]
    ) -> dict[str, Any]:
        """``quant_method: goldstick``: the scheme of every site, and which inputs are multiplied or put in order."""
        schemes = {layer.scheme.label: layer.scheme for layer in layers}
        beside = {
            "multiplied": [layer.site for layer in layers if layer.multiplied],
            "reordered": [layer.site for layer in layers if layer.reordered],
        }
        table = {
            "quant_method": "goldstick",
            "version": FORMAT_VERSION,
            "schemes": {label: dataclasses.asdict(scheme) for label, scheme in schemes.items()},
            "sites": {layer.site: layer.scheme.label for layer in layers},
            "ties": dict(ties),
        }
        return table | {key: sites for key, sites in beside.items() if sites}


def schemes_of(config: Mapping[str, Any]) -> dict[str, Scheme]:
    """Scheme of every site of a native ``quantization_config``.

    Raises:
        FormatError: The config is of a later version, or names a scheme that it does not define.
    """
    if config.get("version") != FORMAT_VERSION:
        raise FormatError(
            f"The checkpoint is written in version {shown(config.get('version'))} of the native format and this "
            f"goldstick reads version {FORMAT_VERSION}; install a newer goldstick."
        )
    sites = _table_of_texts(config, "sites")
    table = config.get("schemes")
    if not isinstance(table, Mapping):
        raise FormatError("The checkpoint's config has no table 'schemes'.")
    schemes = {label: scheme_from_dict(value) for label, value in table.items()}
    missing = {label for label in sites.values() if label not in schemes}
    if missing:
        raise FormatError(
            f"The checkpoint's config names schemes it does not define: {', '.join(sorted(missing))[:300]}."
        )
    return {site: schemes[label] for site, label in sites.items()}


def ties_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The sites of a native ``quantization_config`` that run on another's quantized weight: site → owner.

    Raises:
        FormatError: An owner is not quantized, or a site is tied and quantized.
    """
    sites = _table_of_texts(config, "sites")
    ties = _table_of_texts(config, "ties") if config.get("ties") else {}
    for site, owner in ties.items():
        if owner not in sites or site in sites:
            raise FormatError(
                f"The checkpoint's config has {site[:100]!r} run on the quantized {owner[:100]!r}, and its 'sites' "
                "say otherwise."
            )
    return ties


def _table_of_texts(config: Mapping[str, Any], key: str) -> dict[str, str]:
    table = config.get(key)
    if not isinstance(table, Mapping) or not all(isinstance(value, str) for value in table.values()):
        raise FormatError(f"The checkpoint's config has no table {key!r} of texts.")
    return dict(table)


def multiplied_in(config: Mapping[str, Any]) -> frozenset[str]:
    """The sites of a native ``quantization_config`` whose input is multiplied.

    Raises:
        FormatError: It names one that it does not quantize.
    """
    return _listed(config, "multiplied", "multiplies what")


def reordered_in(config: Mapping[str, Any]) -> frozenset[str]:
    """The sites of a native ``quantization_config`` whose columns lie in an order of their own.

    Raises:
        FormatError: It names one that it does not quantize.
    """
    return _listed(config, "reordered", "puts in order what")


def _listed(config: Mapping[str, Any], key: str, does: str) -> frozenset[str]:
    listed = config.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise FormatError(f"The checkpoint's config has a {key!r} that is no list of names.")
    found = frozenset(listed)
    unknown = found - set(_table_of_texts(config, "sites"))
    if unknown:
        raise FormatError(f"The checkpoint's config {does} {min(unknown)} is given, and does not quantize it.")
    return found


def scheme_from_dict(value: Any) -> Scheme:
    """A scheme from its dictionary form.

    Raises:
        FormatError: It is no scheme.
    """
    weight = value.get("weight") if isinstance(value, Mapping) else None
    activation = value.get("activation") if isinstance(value, Mapping) else None
    try:
        return Scheme(weight=_grid(weight), activation=_grid(activation) if activation is not None else None)
    except RecipeError as error:
        raise FormatError(f"The checkpoint's config holds a scheme that makes no sense: {error}") from error


def _grid(value: Any) -> Grid:
    kinds = {"bits": int, "symmetric": bool, "granularity": str, "group_size": int}
    fits = isinstance(value, Mapping) and all(
        type(item) is kinds.get(key) or (key == "group_size" and item is None) for key, item in value.items()
    )
    if not fits:
        raise FormatError(f"The checkpoint's config holds a scheme with the grid {shown(value)}, which is none.")
    return Grid(**value)
