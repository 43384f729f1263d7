"""What Apple's MLX stores and mlx-lm reads: codes of 2 to 8 bits in groups, each with a scale and a bias.

``X`` uint32 [out, in·bits/32], the codes of a row one after the other from the lowest bit; beside it ``X.scales`` and
``X.biases`` [out, in/group] in the model's dtype: w = code · scale + bias. The config says ``group_size`` and ``bits``
of all layers under ``quantization``, those of others under their names, and of what stays float that it is not
quantized; files without the tensors say the same. A head that is not stored runs on the quantized embedding. goldstick
keeps zeros, −bias / scale, which of symmetric layers are the middle of the codes; MLX's own are fractions, and its
scales may be negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, packed_width, unpack_rows
from goldstick.core.grid import Grid
from goldstick.core.minimums import scales_with_zeros, zeros_of
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError, FormatError
from goldstick.formats.base import SchemeOf, StaysFloat, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.site_table import SiteTable
from goldstick.formats.weight_only import refuse_inputs

_SCALES, _BIASES = ".scales", ".biases"
_BITS, _GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
#: The key of config.json that MLX reads; goldstick and transformers read the other.
CONFIG_KEYS = ("quantization", "quantization_config")


class Mlx(StorageFormat):
    """Integers in groups of 32, 64 or 128, affine; several widths in one checkpoint."""

    name = "mlx"
    method = "mlx"
    codes_suffix = ""
    scale_suffix = _SCALES
    config_keys = CONFIG_KEYS
    rounds_zeros = True
    head_on_embedding = True
    signed_scales = True
    read_as_native = True
    loading = "Load it with mlx-lm (`mlx_lm.load(directory)`), or with `goldstick.load(directory)`."

    def refuses(self, layer: StoredLayer) -> str | None:
        """All but linear layers and embeddings of plain integers in groups that MLX has kernels for."""
        grid, columns = layer.scheme.weight, layer.shape[-1]
        if layer.kind not in ("linear", "embedding") or not layer.name.endswith(".weight") or len(layer.shape) != 2:
            return f"goldstick writes linear layers and embeddings as MLX, not what is stored as {layer.name}"
        if layer.scheme.activation or layer.multiplied:
            return f"MLX files say nothing of what becomes of an input, and its scheme is {layer.scheme.label}"
        if not grid.plain or grid.bits not in _BITS or grid.group_size not in _GROUPS or columns % grid.group_size:
            return (
                f"MLX holds integers of {', '.join(map(str, _BITS))} bits in groups of 32, 64 or 128 that divide the "
                f"inputs, not {layer.scheme.label} of {columns} inputs"
            )
        if layer.scale_dtype is not None and not grid.symmetric:
            return (
                "MLX stores −zero · scale, rounded, which asymmetric rounding makes exact only by chance; take a "
                "symmetric scheme"
            )
        return None

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Nothing quantized; layers of several schemes are no matter, nor are heads that run on the embedding."""
        return None if layers else "nothing is quantized"

    def refuses_zeros(self, scale: Tensor, zero: Tensor, grid: Grid) -> str | None:
        """Zeros that are others when their biases are read back."""
        lost = int((zeros_of(scale, _biases(scale, zero)) != zero.float()).sum())
        if not lost:
            return None
        return (
            f"MLX stores −zero · scale, rounded, and {lost} of its {zero.numel()} zeros would be others when read. "
            "Only symmetric weights are sure to fit."
        )

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        grid, (rows, columns) = layer.scheme.weight, layer.shape
        groups = torch.Size([rows, grid.groups(columns)])
        codes = torch.Size([rows, packed_width(columns, grid.bits)])
        return {"": (codes, torch.uint32), _SCALES: (groups, scale_dtype), _BIASES: (groups, scale_dtype)}

    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layer by suffix.

        Raises:
            FormatError: Something is done to the input, or a zero cannot be stored.
        """
        refuse_inputs("MLX", scheme, input_scale, input_zero, input_multiplier, tensor.input_order)
        grid = tensor.grid
        zero = torch.full_like(tensor.scale, grid.midpoint) if tensor.zero is None else tensor.zero
        if reason := self.refuses_zeros(tensor.scale, zero, grid):
            raise FormatError(reason)
        codes = pack_rows(tensor.codes, grid.bits).view(torch.uint32)
        return {"": codes, _SCALES: tensor.scale.clone(), _BIASES: _biases(tensor.scale, zero)}

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors."""
        grid, scale, zero = scheme.weight, parts[_SCALES], None
        codes = unpack_rows(parts[""].view(torch.int32), grid.bits, in_features)
        if not grid.symmetric:
            scale, zero, constant = scales_with_zeros(scale, parts[_BIASES])
            codes[constant.repeat_interleave(grid.group_width(in_features), dim=-1)] = 0
        return QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """The most frequent scheme, and what differs from it by name."""
        said = {layer.name.removesuffix(".weight"): _words(layer) for layer in layers}
        usual = max(said.values(), key=list(said.values()).count)
        others = {name: words for name, words in said.items() if words != usual}
        return {"quant_method": self.method, **usual, "mode": "affine", **others}

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Whether it is MLX's, which says no method.

        Raises:
            FormatError: Its layers are of another mode than affine.
        """
        if not super().claims(config):
            return False
        mode = config.get("mode") or "affine"
        if mode != "affine":
            raise FormatError(f"goldstick reads MLX's affine layers, and this checkpoint has those of {shown(mode)}.")
        return True

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: what is stored as codes is quantized."""
        return SiteTable()

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the config says of each; symmetric where all its biases say so, which are read."""

        def scheme_of(codes: str, site: str) -> Scheme:
            module = codes.removesuffix(".weight")
            own = config.get(module)
            found = own if isinstance(own, Mapping) else config
            bits, size = found.get("bits"), found.get("group_size")
            if bits not in _BITS or size not in _GROUPS or found.get("mode", "affine") != "affine":
                raise FormatError(
                    f"The MLX config gives {module} {shown(bits)} bits in groups of {shown(size)}; there are 2, 3, 4, "
                    "5, 6 and 8 bits, groups of 32, 64 and 128, affine."
                )
            grid = Grid(bits=int(bits), granularity="group", group_size=int(size))
            scale, bias = (_read(module + part, tensors) for part in (_SCALES, _BIASES))
            symmetric = scale.shape == bias.shape and torch.equal(_biases(scale, grid.midpoint), bias)
            return Scheme(weight=grid if symmetric else Grid(**{**grid.described(), "symmetric": False}))

        return scheme_of

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """What is not stored as codes."""
        return lambda module, in_block: in_block is not None

    def weight_name(self, name: str, dtype: torch.dtype | None) -> str | None:
        """Codes stand under the weight's own name."""
        return name if dtype is torch.uint32 and name.endswith(".weight") else None


MLX = Mlx()


def with_one_table(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json whose ``quantization_config`` says what MLX says under its own key, which is left out."""
    own, usual = CONFIG_KEYS
    found: Any = config.get(own)
    if not isinstance(found, Mapping) or not {"bits", "group_size"} <= set(found):
        return dict(config)
    rest = {key: value for key, value in config.items() if key != own}
    return rest | {usual: {"quant_method": MLX.method, **found}}


def _words(layer: StoredLayer) -> dict[str, Any]:
    return {"group_size": layer.scheme.weight.group_size, "bits": layer.scheme.weight.bits}


def _biases(scale: Tensor, zero: Tensor | int) -> Tensor:
    """−zero · scale, rounded to the dtype of the scales."""
    return (scale.double() * -zero).to(scale.dtype)


def _read(name: str, tensors: Mapping[str, StoredTensor]) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"The tensor {name!r} is missing, which MLX layers have.")
    return tensors[name].read()
