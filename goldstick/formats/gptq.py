"""GPTQ: the layout of AutoGPTQ and GPTQModel, which transformers (with their packages), vLLM and SGLang read.

For a linear layer ``P`` of weight [out, in]: ``P.qweight`` int32 [in · bits / 32, out], a bit stream down every column;
``P.qzeros`` int32 [groups, out · bits / 32], one along every row; ``P.scales`` float16 [groups, out]; ``P.g_idx`` int32
[in], the group of every input. Version 1 stores zero − 1, for which a zero of 0 has no room: some writers let the −1
spill over the fields beside it, and readers disagree on what a full field means. So version 1 is written for symmetric
weights alone, whose zero is the midpoint. Version 2 stores the zero itself.

Act-order (``desc_act``) solves inputs from the most to the least important and fills groups in that order, so that
``g_idx`` scatters them over the row. Such a layer is read with its columns in the order of their groups and an
``input_order`` that says whose they are; written, they go back where they were.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any, ClassVar

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, unpack_rows
from goldstick.core.qtensor import QuantizedTensor, in_place
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import SchemeOf, StaysFloat, StoredLayer, StoredTensor
from goldstick.formats.group_index import consecutive, is_act_order, needs_group_index, runs, scattered
from goldstick.formats.input_scale import part_name
from goldstick.formats.name_matching import NamePatterns
from goldstick.formats.name_patterns import patterns_for
from goldstick.formats.weight_only import (
    WORD_BITS,
    WeightOnly,
    declared_grid,
    float16_scales,
    refuse_inputs,
    refuses_weight_only,
    refuses_words,
    stored_group_size,
    whole_zeros,
    zeros_of,
)

BITS = (2, 3, 4, 8)
_CHECKPOINT_FORMATS = {"gptq": "gptq", "gptq_v2": "gptq-v2"}
_HEAD = "lm_head"
#: What stands before a pattern of ``dynamic`` that leaves layers float, or may stand before any other.
_SIGN = re.compile(r"^[+-]:")


class Gptq(WeightOnly):
    """The tensors and config of GPTQ files.

    Args:
        version: 1, which stores zero − 1, or 2, which stores the zero.
    """

    method = "gptq"
    title = "GPTQ"
    packages: ClassVar[tuple[str, ...]] = ("gptqmodel", "optimum")
    holds_order = True

    def __init__(self, version: int) -> None:
        self.name = "gptq" if version == 1 else "gptq-v2"
        self._shift = 1 if version == 1 else 0

    def refuses(self, layer: StoredLayer) -> str | None:
        """Kinds, widths and zeros that files of this version do not hold."""
        grid = layer.scheme.weight
        if reason := refuses_weight_only(layer, self.title):
            return reason
        if grid.bits not in BITS:
            return f"GPTQ readers know {', '.join(map(str, BITS))} bits, not {grid.bits}"
        if self._shift and not grid.symmetric:
            return (
                "version 1 of GPTQ stores zero − 1, in which a zero of 0 overflows, and vLLM reads only symmetric "
                "weights from it; --format gptq-v2 or awq hold asymmetric ones"
            )
        whole = WORD_BITS // math.gcd(WORD_BITS, grid.bits)
        return refuses_words(layer, self.title, whole, whole)

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Layers of several schemes: the config names one."""
        if reason := super().refuses_together(layers, ties):
            return reason
        mixed = len({layer.scheme.weight.symmetric for layer in layers}) > 1
        return "its config calls all layers symmetric or none" if mixed else None

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix; scales are float16 whatever the model is."""
        (out_features, in_features), grid = layer.shape, layer.scheme.weight
        groups = grid.groups(in_features)
        specs = {
            ".qweight": (torch.Size([in_features * grid.bits // WORD_BITS, out_features]), torch.int32),
            ".qzeros": (torch.Size([groups, out_features * grid.bits // WORD_BITS]), torch.int32),
            ".scales": (torch.Size([groups, out_features]), torch.float16),
        }
        return specs | ({".g_idx": (torch.Size([in_features]), torch.int32)} if self.holds_order else {})

    def implied(self, layer: StoredLayer, tensors: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
        """The ``g_idx`` of a layer that some writers leave out, since its groups are consecutive inputs."""
        if not self.holds_order or part_name(layer.name, ".g_idx") in tensors:
            return {}
        return {".g_idx": consecutive(layer.shape[-1], layer.scheme.weight, torch.device("cpu"))}

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
            FormatError: A scale is no float16 number, a zero no whole number, or the input is touched or reordered.
        """
        grid, order = tensor.grid, tensor.input_order
        touched = (input_scale, input_zero, input_multiplier, None if self.holds_order else order)
        refuse_inputs(self.title, scheme, *touched)
        zeros = whole_zeros(tensor, self.title)
        if self._shift and not grid.symmetric:
            raise FormatError("Version 1 of GPTQ is written for symmetric weights only; use gptq-v2.")
        parts = {
            ".qweight": pack_rows(in_place(tensor.codes, order), grid.bits).T.contiguous(),
            ".qzeros": pack_rows((zeros - self._shift).T.contiguous(), grid.bits),
            ".scales": float16_scales(tensor.scale, self.title).T.contiguous(),
        }
        g_idx = in_place(consecutive(tensor.in_features, grid, tensor.codes.device), order)
        return parts | ({".g_idx": g_idx} if self.holds_order else {})

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors, with scales as they are stored.

        Version 1 is read as zero = (stored + 1) mod 2^bits, as the writers' own dequantization does. Groups that
        ``g_idx`` numbers in another order come back in the order of their inputs, and where it scatters them, columns
        come back in the order of their groups.

        Raises:
            FormatError: ``g_idx`` makes groups of other sizes than the scheme's, or zeros contradict a symmetric one.
        """
        grid = scheme.weight
        out_features = parts[".qweight"].shape[-1]
        codes = unpack_rows(parts[".qweight"].T.contiguous(), grid.bits, in_features)
        g_idx = parts.get(".g_idx", consecutive(in_features, grid, codes.device))
        groups = runs(g_idx, grid, in_features)
        order = None
        if groups is None:
            order = scattered(g_idx, grid)
            codes = codes[:, order]
            groups = torch.arange(grid.groups(in_features))
        zeros = (unpack_rows(parts[".qzeros"], grid.bits, out_features) + self._shift) & grid.code_max
        zero = zeros_of(zeros[groups].T.contiguous(), grid, self.title)
        scale = parts[".scales"][groups].T.contiguous()
        return QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid, input_order=order)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """``quant_method: gptq``; what stays float, but for the head, is excepted under ``dynamic``."""
        if reason := self.refuses_together(layers, ties):
            raise FormatError(f"{self.name} cannot hold this: {reason}.")
        grid = layers[0].scheme.weight
        modules = [layer.name.removesuffix(".weight") for layer in layers]
        config = {
            "quant_method": self.method,
            "bits": grid.bits,
            "group_size": stored_group_size(grid),
            "desc_act": any(layer.act_order for layer in layers),
            "sym": grid.symmetric,
            "lm_head": _HEAD in modules,
            "checkpoint_format": "gptq" if self._shift else "gptq_v2",
            "pack_dtype": "int32",
        }
        patterns = patterns_for([name for name in ignored if name != _HEAD], modules)
        excepted = [p.removeprefix("re:") if p.startswith("re:") else f"^{re.escape(p)}$" for p in patterns]
        return config | ({"dynamic": {f"-:{pattern}": {} for pattern in excepted}} if excepted else {})

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Whether the config is of GPTQ, and declares this version."""
        return super().claims(config) and gptq_storage(config) == self.name

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """What the config says of all layers, or its exception of one.

        Raises:
            FormatError: The config makes no sense, or, from the function, the layer lacks the ``g_idx`` that it needs.
        """
        scheme_of = gptq_schemes(config)
        needed = needs_group_index(config, tensors) if self.holds_order else None

        def of(codes: str, site: str) -> Scheme:
            module = codes.removesuffix(self.codes_suffix)
            if needed is not None and f"{module}.g_idx" not in tensors:
                raise FormatError(f"{module} lacks its g_idx, and {needed}. Fetch the checkpoint again.")
            return scheme_of(module)

        return of

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat:
        """Modules that ``dynamic`` or a list of modules to quantize takes out, and all outside the blocks."""
        exception_of = dynamic_exceptions(config)
        limited = any(key in config for key in ("modules_in_block_to_quantize", "inside_layer_modules"))

        def stays_float(module: str, in_block: bool | None) -> bool:
            if module == _HEAD or in_block is False:
                return not bool(config.get(_HEAD, False))
            return (limited and in_block is not None) or exception_of(module)[0]

        return stays_float

    def act_order(self, layer: StoredLayer, tensors: Mapping[str, StoredTensor]) -> bool:
        """Whether its ``g_idx``, which is read, scatters the groups."""
        info = tensors.get(part_name(layer.name, ".g_idx"))
        if info is None or info.shape != layer.shape[-1:]:  # what is wrong is said later
            return False
        return is_act_order(info.read(), layer.scheme.weight)

    def fitting(self, codes: StoredTensor, scales: StoredTensor, in_features: int) -> tuple[float, int]:
        """Words stand below each other."""
        return codes.shape[-2] * WORD_BITS / in_features, scales.shape[-2]


GPTQ, GPTQ_V2 = Gptq(version=1), Gptq(version=2)


def gptq_storage(config: Mapping[str, Any]) -> str:
    """Name of the storage format of a ``quantization_config`` with ``quant_method: gptq``.

    Raises:
        FormatError: Its files are laid out as goldstick does not read them.
    """
    said = {key: value for key, value in config.items() if value is not None}  # some write null
    layout = said.get("checkpoint_format", said.get("format", "gptq"))
    if config.get("is_marlin_format") or not isinstance(layout, str) or layout not in _CHECKPOINT_FORMATS:
        raise FormatError(
            f"The GPTQ config declares the checkpoint_format {shown(layout)}, and goldstick reads "
            f"{' and '.join(_CHECKPOINT_FORMATS)}; save it with GPTQModel in one of these."
        )
    words = said.get("pack_dtype", "int32")
    if words not in ("int32", "torch.int32"):
        raise FormatError(f"The GPTQ config packs codes into {shown(words)} and goldstick reads int32 words.")
    return _CHECKPOINT_FORMATS[layout]


def gptq_schemes(config: Mapping[str, Any]) -> Callable[[str], Scheme]:
    """A function from a quantized module of a GPTQ checkpoint to its scheme: the config's, or its exception's.

    Raises:
        FormatError: The config makes no sense, or, from the function, says that the module is not quantized.
    """
    exception_of = dynamic_exceptions(config)

    def scheme_of(module: str) -> Scheme:
        taken_out, changes = exception_of(module)
        if taken_out or not isinstance(changes, Mapping):
            raise FormatError(f"The GPTQ config excepts {module} from quantization, and it is quantized.")
        declared = {**config, **changes}
        symmetric = declared.get("sym", True)
        if type(symmetric) is not bool:
            raise FormatError(f"The GPTQ config's 'sym' is true or false, not {shown(symmetric)}.")
        return Scheme(weight=declared_grid(declared, BITS, symmetric, "GPTQ"))

    return scheme_of


def dynamic_exceptions(config: Mapping[str, Any]) -> Callable[[str], tuple[bool, Any]]:
    """A function from a module to what the first pattern of ``dynamic`` that matches it says.

    That is whether the module stays float, and what changes for it; (false, {}) where no pattern matches.

    Raises:
        FormatError: ``dynamic`` is no table of patterns that are matched.
    """
    dynamic = config.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise FormatError(f"The GPTQ config's 'dynamic' is a table of patterns, not {shown(dynamic)}.")
    rules = list(dynamic.items())
    patterns = NamePatterns([f"re:{_SIGN.sub('', pattern)}" for pattern in dynamic])

    def exception_of(module: str) -> tuple[bool, Any]:
        place = patterns.first(module)
        return (False, {}) if place is None else (rules[place][0].startswith("-:"), rules[place][1])

    return exception_of
