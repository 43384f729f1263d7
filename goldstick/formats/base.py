"""What a storage format is: how one quantized matrix becomes named tensors, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.formats.input_scale import INPUT_MULTIPLIER, INPUT_SCALE, part_name, unpack_input
from goldstick.formats.site_table import SiteTable, read_table, write_table


@dataclass(frozen=True, kw_only=True)
class StoredLayer:
    """One matrix as a checkpoint stores it.

    Attributes:
        name: Name of the float tensor it replaces, as the checkpoint calls it (``….q_proj.weight``).
        site: Name of the site it belongs to in the model.
        kind: Layout of the site (``linear``, ``transposed``, ``conv2d``, ``embedding``, ``experts``, …).
        shape: Shape of the canonical matrix stored under that name, [..., out, in].
        scheme: What it becomes.
        fractional_zeros: Whether its zeros may be fractions.
        float16_ranges: Whether its scales, and the minimums that zeros are made of, are float16 numbers.
        multiplied: Whether it holds a factor for each of its inputs.
        act_order: Whether its columns lie in an order of their own (``QuantizedTensor.input_order``).
        scale_dtype: Dtype of its scales before they are stored, or ``None`` where that is not known.
        rotated: Channels that are mixed by the Hadamard transform of its input at run time; 0 for none.
    """

    name: str
    site: str
    kind: str
    shape: torch.Size
    scheme: Scheme
    fractional_zeros: bool
    float16_ranges: bool = False
    multiplied: bool = False
    act_order: bool = False
    scale_dtype: torch.dtype | None = None
    rotated: int = 0


class StoredTensor(Protocol):
    """A tensor of a checkpoint: what its header says, and its values when they are asked for."""

    @property
    def shape(self) -> torch.Size:
        """Its shape."""

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""

    def read(self) -> Tensor:
        """Its values."""


#: (tensor that holds the codes, site) → scheme of the layer, or ``None`` where the config describes no such layer.
SchemeOf = Callable[[str, str], Scheme | None]
#: (name of the float tensor, site, inputs of the layer) → channels that the transform of its input mixes; 0 for none.
RotationOf = Callable[[str, str, int], int]
#: Whether a config has a module stay float. Beside its name in the checkpoint: ``None`` for one that is stored
#: quantized, else whether it lies in a block.
StaysFloat = Callable[[str, bool | None], bool]


class StorageFormat(ABC):
    """Pure functions between a :class:`QuantizedTensor` and the tensors of a file, and what a config says of them.

    Tensors of a layer are named by what is appended to the float tensor's name: ``_packed``, ``_scale``, …; those that
    begin with a dot stand beside it (``.input_scale``; see ``input_scale.part_name``). What has a default here suits a
    format whose config lists its sites (:mod:`goldstick.formats.site_table`) and that holds one matrix in a tensor.

    Attributes:
        name: Its name in ``FORMATS``, on the command line and in recipes.
        method: The ``quant_method`` of its configs.
        codes_suffix: Suffix of the tensor that holds the codes.
        scale_suffix: Suffix of the scales; ``None`` where they lie among the codes, in float16.
        zero_suffix: Suffix of zeros that are stored as they are, perhaps fractions; ``None`` where they are codes.
        expert_suffixes: Suffixes of what stands beside the weight of each expert; empty where none are stacked.
        packages: What transformers needs to load it; where one is not installed, ``from_pretrained`` takes goldstick.
        loading: How to load it, for the model card.
        float16_scales: Whether its scales are float16 whatever the model is.
        linear_only: Whether goldstick reads it for linear layers and experts only.
        holds_stacks: Whether one tensor may hold several matrices.
        holds_order: Whether columns may lie in an order of their own.
        holds_rotations: Whether its config can say that layers turn their input at run time.
        holds_kv_scales: Whether its config can say a quantized KV cache, as compressed-tensors does.
        rounds_zeros: Whether zeros are stored as minima, which hold them only by chance.
        head_on_embedding: Whether a model without a head has it run on the quantized embedding.
        empties_layers: Whether its reader in transformers takes the weight from linear layers before they are loaded.
        in_gguf: Whether its tensors lie in a GGUF file, and not in safetensors files.
        signed_scales: Whether its writers store negative scales, as ggml's do.
        config_keys: Where config.json says how it is quantized.
        read_as_native: Whether transformers is handed native tensors, since the shapes of these stand in files alone.
    """

    name: str
    method: ClassVar[str]
    codes_suffix: ClassVar[str] = "_packed"
    scale_suffix: ClassVar[str | None] = "_scale"
    zero_suffix: ClassVar[str | None] = None
    expert_suffixes: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    loading: ClassVar[str] = "Load it with `goldstick.load(directory)`, where the package of this format is installed."
    float16_scales: ClassVar[bool] = False
    linear_only: ClassVar[bool] = False
    holds_stacks: ClassVar[bool] = False
    holds_order: ClassVar[bool] = False
    holds_rotations: ClassVar[bool] = False
    holds_kv_scales: ClassVar[bool] = False
    rounds_zeros: ClassVar[bool] = False
    head_on_embedding: ClassVar[bool] = False
    empties_layers: ClassVar[bool] = False
    in_gguf: ClassVar[bool] = False
    signed_scales: ClassVar[bool] = False
    config_keys: ClassVar[tuple[str, ...]] = ("quantization_config",)
    read_as_native: ClassVar[bool] = False

    @abstractmethod
    def refuses(self, layer: StoredLayer) -> str | None:
        """Why this format cannot hold ``layer`` without loss, or ``None`` where it can."""

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Why it cannot hold, in one checkpoint, layers that it could hold each; ``None`` where it can."""
        return None

    def refuses_zeros(self, scale: Tensor, zero: Tensor, grid: Grid) -> str | None:
        """Why it cannot hold the zeros of a layer [out, groups] without loss, or ``None`` where it can."""
        if grid.are_codes(zero):
            return None
        return f"its zeros are fractions, and {self.name} holds whole ones. Only the native format holds it."

    def remarks(self, layers: Sequence[StoredLayer]) -> list[str]:
        """Sentences that the user should read before layers are stored in this format."""
        return []

    def loading_of(self, layers: Sequence[StoredLayer]) -> str:
        """How to load a checkpoint of these layers, for the model card."""
        return self.loading

    @abstractmethod
    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of every tensor of a layer by suffix, without any data."""

    def stored_specs(
        self, layer: StoredLayer, tensors: Mapping[str, StoredTensor]
    ) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """The same for a layer of a checkpoint that holds these tensors, perhaps written by another tool."""
        left_out = self.implied(layer, tensors)
        specs = self.specs(layer, layer.scale_dtype or torch.float32)
        return {suffix: spec for suffix, spec in specs.items() if suffix not in left_out}

    def implied(self, layer: StoredLayer, tensors: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Tensors of a layer by suffix that writers may leave out and this one has, as they would be."""
        return {}

    @abstractmethod
    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layer by suffix.

        Args:
            tensor: The weight.
            scheme: What the layer became.
            input_scale: Scale of its input, [] or [1], where its scheme has a static input grid.
            input_zero: Zero of its input, int8 [] or [1], where that grid is asymmetric.
            input_multiplier: What its input is multiplied by, [in], where the layer is ``multiplied``.
        """

    @abstractmethod
    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The weight from its tensors by suffix; inverse of :meth:`pack`. For the input see ``unpack_input``."""

    def unpack_input(
        self, parts: Mapping[str, Tensor], scheme: Scheme, layer: str
    ) -> tuple[Tensor | None, Tensor | None]:
        """Scale [1] and zero [1] of an input from the tensors of its layer by suffix, where its scheme has them.

        Raises:
            CheckpointError: One is missing; the message names the layer.
        """
        return unpack_input(parts, scheme, layer)

    def config(self, layers: Sequence[StoredLayer], ignored: Sequence[str], ties: Mapping[str, str]) -> dict[str, Any]:
        """The ``quantization_config`` of the checkpoint.

        Args:
            layers: Everything quantized.
            ignored: Modules whose matrices stay float, as the checkpoint and the model call them.
            ties: Sites that run on another's quantized weight: site → owner.
        """
        table = SiteTable(
            schemes={layer.site: layer.scheme for layer in layers},
            ties=ties,
            multiplied=frozenset(layer.site for layer in layers if layer.multiplied),
            act_order=frozenset(layer.site for layer in layers if layer.act_order),
            rotated={layer.site: layer.rotated for layer in layers if layer.rotated},
        )
        return write_table(self.method, table)

    def claims(self, config: Mapping[str, Any]) -> bool:
        """Whether a ``quantization_config`` is of this format.

        Raises:
            FormatError: It is of its method, in a layout that goldstick does not read.
        """
        return config.get("quant_method") == self.method

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """The sites that a ``quantization_config`` lists by name; none where it matches layers by patterns.

        Raises:
            FormatError: The list makes no sense.
        """
        return read_table(config)

    def schemes(self, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> SchemeOf:
        """A function from a stored layer to its scheme.

        Args:
            config: The ``quantization_config``.
            tensors: Every tensor of the checkpoint.

        Raises:
            FormatError: The config makes no sense; also from the function.
        """
        listed = self.listed(config).schemes
        return lambda codes, site: listed.get(site)

    def rotations(self, config: Mapping[str, Any]) -> RotationOf:
        """A function from a stored layer to the size of the transform of its input at run time; 0 for none.

        Raises:
            FormatError: The config makes no sense, or says a transform that goldstick does not make; also from the
                function.
        """
        listed = self.listed(config).rotated
        return lambda name, site, in_features: listed.get(site, 0)

    def idle_rotations(self, config: Mapping[str, Any], modules: Iterable[str]) -> list[str]:
        """Names of transforms at run time, as a config gives them, that are meant for none of a model's modules."""
        return []

    def stays_float(self, config: Mapping[str, Any]) -> StaysFloat | None:
        """What a config excepts from quantization; ``None`` where it names the quantized layers.

        Raises:
            FormatError: Its list of exceptions makes no sense.
        """
        return None

    def weight_name(self, name: str, dtype: torch.dtype | None) -> str | None:
        """The float tensor that a stored tensor is the codes of, or ``None`` where it holds no codes."""
        if not name.endswith(self.codes_suffix):
            return None
        return name.removesuffix(self.codes_suffix) + (".weight" if self.codes_suffix.startswith(".") else "")

    def matrix_shape(self, name: str, tensors: Mapping[str, StoredTensor], in_features: int) -> torch.Size:
        """Shape [..., out, in] of the matrix whose codes a tensor holds, given the inputs of its layer."""
        return torch.Size([*tensors[name].shape[:-1], in_features])

    def scale_dtype(self, weight: str, grid: Grid, tensors: Mapping[str, StoredTensor]) -> torch.dtype | None:
        """Dtype of a layer's scales before they were stored, or ``None`` where no tensor of it says.

        Scales that lie on a grid are stored as its codes; what is stored beside them for the input has their dtype.
        """
        if self.scale_suffix is None:
            return torch.float16
        suffixes = (self.scale_suffix,) if grid.scale is None else (INPUT_SCALE, INPUT_MULTIPLIER)
        found = (tensors.get(part_name(weight, suffix)) for suffix in suffixes)
        return next((info.dtype for info in found if info), None)

    def runs_in_float(self, config: Mapping[str, Any], scales: Iterable[torch.dtype], dtype: torch.dtype) -> bool:
        """Whether a model of this dtype is loaded dequantized, given the dtypes of its stored scales."""
        return False

    def act_order(self, layer: StoredLayer, tensors: Mapping[str, StoredTensor]) -> bool:
        """Whether tensors beside a layer put its columns in an order of their own."""
        return False

    def fitting(self, codes: StoredTensor, scales: StoredTensor, in_features: int) -> tuple[float, int]:
        """Bits of a code and number of groups that the shapes of a layer's codes and scales fit."""
        return 8 * codes.dtype.itemsize * codes.shape[-1] / in_features, scales.shape[-1]
