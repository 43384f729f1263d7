"""What bitsandbytes stores (``quant_method: bitsandbytes``), and transformers with it and PEFT read.

Of 4 bits ``X`` uint8 [⌈out·in/2⌉, 1]: the codes of all rows one after the other, the first of two in the upper half of
a byte. Beside it ``X.absmax`` float32 [blocks], one scale for each 64 weights; ``X.quant_map`` float32 [16], what codes
stand for; and ``X.quant_state.bitsandbytes__nf4``, JSON as bytes: the type, the block and the shape. Where scales are
quantized in their turn, ``X.absmax`` is uint8, places of numbers in ``X.nested_quant_map`` float32 [256]; one of
``X.nested_absmax`` multiplies 256 of them, and ``nested_offset`` of the JSON is added. Such files are read, and so is
bitsandbytes' FP4.

Of 8 bits (LLM.int8(), 2208.07339) ``X`` int8 [out, in] and float32 [out] ``SCB`` beside it, what 127 stands for. These
are read, with float inputs; bitsandbytes rounds those, but for the largest, in every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import SchemeOf, StaysFloat, StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.bitsandbytes_state import (
    ABSMAX,
    MAP,
    NESTED_ABSMAX,
    NESTED_BLOCK,
    NESTED_MAP,
    STATE,
    STATE_BYTES,
    kind_of,
    numbers,
    places,
    scales,
    state_of,
    written,
)
from goldstick.formats.site_table import SiteTable
from goldstick.formats.weight_only import refuse_inputs

_INT8_SCALE, _INT8_LAYOUT = ".SCB", ".weight_format"
_INT8 = Scheme(weight=Grid(bits=8))
#: Weights of a block that bitsandbytes' kernels take.
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)


class BitsAndBytes(StorageFormat):
    """NF4 weights in blocks of 64; read are its FP4, its quantized scales and LLM.int8(), too."""

    name = "bitsandbytes"
    method = "bitsandbytes"
    codes_suffix = ""
    scale_suffix = ABSMAX
    linear_only = True
    read_as_native = True
    loading = "Load it with transformers and the package bitsandbytes, or with `goldstick.load(directory)`."

    def refuses(self, layer: StoredLayer) -> str | None:
        """All but linear layers of NF4 whose rows are whole blocks."""
        grid = layer.scheme.weight
        if layer.kind != "linear" or not layer.name.endswith(".weight") or len(layer.shape) != 2:
            return f"bitsandbytes quantizes linear layers, not what is stored as {layer.name}"
        if grid.element != "nf4" or grid.group_size not in _BLOCKS or layer.scheme.activation:
            return f"goldstick writes nf4a16 as bitsandbytes, and its scheme is {layer.scheme.label}"
        if layer.multiplied:
            return "'unfoldable: multiply' gives it a factor for each input, which bitsandbytes has no place for"
        if not grid.divides(layer.shape[-1]):
            return (
                f"its blocks run over the ends of rows: {layer.shape[-1]} inputs do not divide into {grid.group_size}"
            )
        return None

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Ties, which it has no word for."""
        if ties:
            return f"{next(iter(ties))} runs on the quantized weight of another layer, which bitsandbytes cannot say"
        return None

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        rows, columns = layer.shape
        grid = layer.scheme.weight
        if grid.integers:
            return {
                "": (layer.shape, torch.int8),
                _INT8_SCALE: (torch.Size([rows]), torch.float32),
            }
        return {
            "": (torch.Size([rows * columns // 2, 1]), torch.uint8),
            ABSMAX: (torch.Size([rows * grid.groups(columns)]), torch.float32),
            MAP: (torch.Size([16]), torch.float32),
            STATE + kind_of(grid): (torch.Size([STATE_BYTES]), torch.uint8),
        }

    def stored_specs(
        self, layer: StoredLayer, tensors: Mapping[str, StoredTensor]
    ) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix, as a file has them: with scales of scales, and JSON of any length."""
        specs, stem = self.specs(layer, torch.float32), layer.name.removesuffix(".weight")
        if layer.scheme.weight.integers:
            return specs | ({_INT8_LAYOUT: (torch.Size([]), torch.uint8)} if stem + _INT8_LAYOUT in tensors else {})
        state = STATE + kind_of(layer.scheme.weight)
        if (info := tensors.get(stem + state)) is not None:
            specs[state] = info.shape, torch.uint8
        if stem + NESTED_ABSMAX in tensors:
            (blocks,) = specs[ABSMAX][0]
            specs[ABSMAX] = torch.Size([blocks]), torch.uint8
            specs[NESTED_ABSMAX] = torch.Size([-(-blocks // NESTED_BLOCK)]), torch.float32
            specs[NESTED_MAP] = torch.Size([256]), torch.float32
        return specs

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
            FormatError: Something is done to the input.
        """
        refuse_inputs("bitsandbytes", scheme, input_scale, input_zero, input_multiplier, tensor.input_order)
        grid = tensor.grid
        pairs = tensor.codes.reshape(-1, 2)
        return {
            "": pairs[:, :1] << 4 | pairs[:, 1:],
            ABSMAX: tensor.scale.float().flatten(),
            MAP: numbers(grid),
            STATE + kind_of(grid): written(grid, tensor.codes.shape, tensor.scale.dtype),
        }

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors.

        Raises:
            FormatError: Its codes stand for other numbers than those of its type.
        """
        grid = scheme.weight
        if grid.integers:
            if int(parts.get(_INT8_LAYOUT, torch.tensor(0))):
                raise FormatError("its codes lie in the order of a GPU's registers; save it again by transformers")
            scale = (parts[_INT8_SCALE] / 127).reshape(-1, 1)
            return QuantizedTensor(codes=(parts[""].short() + 128).byte(), scale=scale, zero=None, grid=grid)
        stored = parts[""].flatten()
        codes = torch.stack([stored >> 4, stored & 15], dim=1).reshape(-1, in_features)
        if not torch.equal(parts[MAP], numbers(grid)):
            raise FormatError(f"its codes stand for other numbers than those of {grid.element}")
        scale = scales(parts, grid).reshape(len(codes), -1)
        return QuantizedTensor(codes=places(grid)[codes.long()], scale=scale, zero=None, grid=grid)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: bitsandbytes`` as transformers writes it, and the modules that stay float.

        Raises:
            FormatError: Readers, which look at how names begin and end, would leave a quantized layer float.
        """
        if reason := self.refuses_together(layers, ties):
            raise FormatError(f"bitsandbytes cannot hold this: {reason}.")
        for name in ignored:
            modules = (layer.name.removesuffix(".weight") for layer in layers)
            caught = next((one for one in modules if one.endswith(name) or one.startswith(f"{name}.")), None)
            if caught:
                raise FormatError(
                    f"bitsandbytes cannot hold this: {name} stays float, and readers would take {caught}, whose name "
                    "begins or ends with it, to do so too. Use --format native."
                )
        dtypes = {layer.scale_dtype or torch.float32 for layer in layers}
        return {
            "quant_method": self.method,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": False,
            "bnb_4bit_compute_dtype": str(dtypes.pop() if len(dtypes) == 1 else torch.float32).removeprefix("torch."),
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": sorted(ignored),
        }

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Whether it is of this method.

        Raises:
            FormatError: Its codes are packed into other numbers than bytes.
        """
        if not super().claims(config):
            return False
        storage = config.get("bnb_4bit_quant_storage") or "uint8"
        if config.get("load_in_4bit") and storage != "uint8":
            raise FormatError(
                f"goldstick reads bitsandbytes' codes in uint8, and this checkpoint has them in {shown(storage)}. Save "
                "it again with bnb_4bit_quant_storage uint8."
            )
        return True

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: what is stored as codes is quantized."""
        return SiteTable()

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the dtype of the codes says, and of 4 bits what stands beside them."""

        def scheme_of(codes: str, site: str) -> Scheme:
            return _INT8 if tensors[codes].dtype is torch.int8 else Scheme(weight=state_of(codes, tensors)[0])

        return scheme_of

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """What is not stored as codes."""
        return lambda module, in_block: in_block is not None

    def weight_name(self, name: str, dtype: torch.dtype | None) -> str | None:
        """Codes stand under the weight's own name."""
        return name if dtype in (torch.uint8, torch.int8) and name.endswith(".weight") else None

    def matrix_shape(self, name: str, tensors: Mapping[str, StoredTensor], in_features: int) -> torch.Size:
        """Shape [out, in] of a stored matrix, of 4 bits as the JSON beside it says."""
        return tensors[name].shape if tensors[name].dtype is torch.int8 else state_of(name, tensors)[1]

    def scale_dtype(self, weight: str, grid: Grid, tensors: Mapping[str, StoredTensor]) -> torch.dtype:
        """Scales are float32, also where they are stored as codes of a byte."""
        return torch.float32

    def fitting(self, codes: StoredTensor, scales: StoredTensor, in_features: int) -> tuple[float, int]:
        """Bits of a code and number of groups."""
        rows = codes.shape.numel() * 2 // in_features
        return 4, scales.shape.numel() // max(rows, 1)


BITSANDBYTES = BitsAndBytes()
