"""The native format: holds whatever a QuantizedTensor can be, one table of layers in the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, packed_width, unpack_rows
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import INPUT_MULTIPLIER, input_specs, pack_input

FORMAT_VERSION = 1


class Native:
    """Packed rows, scales in the model's dtype and zeros in float32, for every layout and any zero.

    ``X_packed`` int32 [..., out, ceil(in · bits / 32)], ``X_scale`` [..., out, groups] and, for asymmetric grids,
    ``X_zero_point`` float32 [..., out, groups]. Beside it ``input_scale`` and ``input_zero_point`` of a static input,
    and ``input_multiplier`` [in] of a multiplied one.
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
        return parts | pack_input(scheme, input_scale, input_zero, tensor.scale.dtype)

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors."""
        grid = scheme.weight
        codes = unpack_rows(parts["_packed"], grid.bits, in_features)
        zero = None if grid.symmetric else parts["_zero_point"]
        return QuantizedTensor(codes=codes, scale=parts["_scale"], zero=zero, grid=grid)

    def config(
        self, layers: Sequence[StoredLayer], left_alone: Sequence[str], ties: Mapping[str, str]
    ) -> dict[str, Any]:
        """``quant_method: goldstick`` with the scheme of every site, and which inputs are multiplied."""
        schemes = {layer.scheme.label: layer.scheme for layer in layers}
        multiplied = [layer.site for layer in layers if layer.multiplied]
        table = {
            "quant_method": "goldstick",
            "version": FORMAT_VERSION,
            "schemes": {label: dataclasses.asdict(scheme) for label, scheme in schemes.items()},
            "sites": {layer.site: layer.scheme.label for layer in layers},
            "ties": dict(ties),
        }
        return table | ({"multiplied": multiplied} if multiplied else {})


def schemes_of(config: Mapping[str, Any]) -> dict[str, Scheme]:
    """Scheme of every site of a native ``quantization_config``.

    Raises:
        FormatError: The config is of a later version, or names a scheme that it does not define.
    """
    if config.get("version") != FORMAT_VERSION:
        raise FormatError(
            f"The checkpoint is written in version {config.get('version')!r} of the native format and this goldstick "
            f"reads version {FORMAT_VERSION}; install a newer goldstick."
        )
    schemes = {label: scheme_from_dict(value) for label, value in config["schemes"].items()}
    missing = {label for label in config["sites"].values() if label not in schemes}
    if missing:
        raise FormatError(f"The checkpoint's config names schemes it does not define: {', '.join(sorted(missing))}.")
    return {site: schemes[label] for site, label in config["sites"].items()}


def multiplied_in(config: Mapping[str, Any]) -> frozenset[str]:
    """The sites of a native ``quantization_config`` whose input is multiplied.

    Raises:
        FormatError: It names one that it does not quantize.
    """
    found = frozenset(config.get("multiplied") or ())
    unknown = found - set(config["sites"])
    if unknown:
        raise FormatError(f"The checkpoint's config multiplies what {min(unknown)} is given, and does not quantize it.")
    return found


def scheme_from_dict(value: Mapping[str, Any]) -> Scheme:
    """A scheme from its dictionary form."""
    activation = value.get("activation")
    return Scheme(weight=Grid(**value["weight"]), activation=Grid(**activation) if activation else None)
