"""Network: a model seen as sites that can be quantized, and everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.parameter import is_lazy

from goldstick.core.layout import Layout
from goldstick.errors import StructureError
from goldstick.structure.adapters import adapters_in, without_adapter
from goldstick.structure.blocks import block_of, find_blocks
from goldstick.structure.overrides import (
    BATCHED_EXPERT_CLASSES,
    FUSED_EXPERT_PARAMETERS,
    TRANSPOSED_EXPERT_CLASSES,
    TRANSPOSED_EXPERTS_FLAG,
)
from goldstick.structure.plain_layers import Reading, inherits_forward, reading_of, stores_input_first
from goldstick.structure.routers import routers_beside

Role = Literal["inner", "embedding", "head", "router", "adapter"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One weight that can be quantized.

    Attributes:
        module: Path of the module that holds it.
        parameter: Name of the parameter in that module.
        layout: How the parameter stores its matrix.
        shape: Shape of the parameter as stored.
        dtype: Its dtype.
        role: ``embedding``, ``head``, ``router`` and ``adapter`` are left alone unless a recipe names them.
        block: Path of the repeated block it lies in, or ``None``.
        tied_to: Name of the earlier parameter that it is, or ``None``.
        reading: What the forward of its module does with it.
        torchs: Whether that forward is torch's own, of a class that computes a linear layer or a convolution.
        adapter_of: Path of the layer whose adapter it is part of, or ``None``.
    """

    module: str
    parameter: str
    layout: Layout
    shape: torch.Size
    dtype: torch.dtype
    role: Role
    block: str | None
    tied_to: str | None
    reading: Reading = Reading.INPUT
    torchs: bool = False
    adapter_of: str | None = None

    @property
    def name(self) -> str:
        """What recipes and reports call it: the module's path, with the parameter where that is not ``weight``."""
        return self.module if self.parameter == "weight" else f"{self.module}.{self.parameter}"

    @property
    def parameter_name(self) -> str:
        """Full name of the parameter in the model."""
        return f"{self.module}.{self.parameter}" if self.module else self.parameter

    @property
    def product(self) -> bool:
        """Whether all that its module does with it is one product.

        Where it is not, the forward of the module reads the weight's numbers, and nothing is known of what they are
        multiplied with.
        """
        return self.reading is not Reading.OWN

    @property
    def takes_rounded_input(self) -> bool:
        """Whether its input may be rounded to 8 bits: all that comes of it is one product that is known."""
        known = self.layout.multiplied or (self.layout is Layout.CONVOLUTION and self.torchs)
        return known and self.product

    @property
    def matrix_shape(self) -> torch.Size:
        """Shape of the canonical matrix, [..., out, in]."""
        return self.layout.to_matrix(torch.empty(self.shape, device="meta")).shape

    @property
    def in_features(self) -> int:
        """Length of a row of the matrix."""
        return self.matrix_shape[-1]


class Network:
    """A model and its sites. Looks at the model, never changes it; works on the meta device too.

    Args:
        model: The module.
        cut: Names of parameters that are looked at as if they were tied to none, since their tie is going to be cut.

    Attributes:
        model: The module.
        cut: The ties that count as cut.
        sites: Every weight that can be quantized, in the order of ``named_modules``.
        blocks: Paths of the repeated blocks, in order of execution as far as the module lists tell.
        before_reading: Told of a module before its weight is read: what rests elsewhere can be brought.

    Raises:
        StructureError: A parameter has no shape yet, or a tensor is nested and has none.
    """

    def __init__(self, model: nn.Module, cut: Sequence[str] = ()) -> None:
        _refuse_shapeless(model)
        self.model, self.cut = model, tuple(cut)
        self.blocks = find_blocks(model)
        self._owner = _parameter_owners(model, self.cut)
        self.sites = tuple(self._find_sites())
        self.by_name = {site.name: site for site in self.sites}
        self.before_reading: Callable[[nn.Module], None] = _nothing

    def _find_sites(self) -> list[Site]:
        heads = {without_adapter(_output_head(self.model)), *_tied_to_embeddings(self.model)} - {None}
        read_by_parent = _read_by_parent(self.model)
        routers, adapters = routers_beside(self.model, self._experts()), adapters_in(self.model)
        sites = []
        for path, module in self.model.named_modules():
            for parameter_name, parameter in module.named_parameters(recurse=False):
                layout = layout_of(module, parameter_name, parameter)
                if layout is None or not parameter.numel():
                    continue
                full = f"{path}.{parameter_name}" if path else parameter_name
                owner = self._owner[full]
                reading, chooses = reading_of(module)
                if layout.fused and type(module).__name__ in BATCHED_EXPERT_CLASSES:
                    reading = Reading.STACK
                elif layout not in _PRODUCTS or module in read_by_parent or isinstance(module, _ConvTransposeNd):
                    reading = Reading.OWN
                sites.append(
                    Site(
                        module=path,
                        parameter=parameter_name,
                        layout=layout,
                        shape=parameter.shape,
                        dtype=parameter.dtype,
                        role="adapter"
                        if module in adapters
                        else _role(layout, chooses or module in routers, module in heads),
                        block=block_of(path, self.blocks),
                        tied_to=None if owner == full else owner,
                        reading=reading,
                        torchs=_is_torchs(module),
                        adapter_of=adapters.get(module),
                    )
                )
        return sites

    def _experts(self) -> dict[str, int]:
        """Modules of fused experts in the blocks, with the width that the first of their matrices reads."""
        found: dict[str, int] = {}
        for path, module in self.model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                layout = layout_of(module, name, parameter)
                if layout is not None and layout.fused and block_of(path, self.blocks) not in (None, path):
                    found.setdefault(path, layout.to_matrix(parameter.detach()).shape[-1])
        return found

    def module(self, site: Site) -> nn.Module:
        """The module that holds a site's parameter."""
        return self.model.get_submodule(site.module)

    def weight(self, site: Site) -> Tensor:
        """The canonical matrix [..., out, in] of a site, detached."""
        return site.layout.to_matrix(self.parameter(site).detach())

    def parameter(self, site: Site) -> nn.Parameter:
        """The parameter of a site, as it is stored.

        Raises:
            StructureError: The site was quantized.
        """
        module = self.module(site)
        self.before_reading(module)
        parameter = getattr(module, site.parameter, None)
        if not isinstance(parameter, nn.Parameter):  # a quantized layer gives its dequantized numbers as a tensor
            raise StructureError(
                f"{site.name} no longer holds a float parameter {site.parameter!r}: it was quantized already, or a "
                "forward has put a tensor in its place (torch.func.functional_call does); exclude it then."
            )
        return parameter

    def shared(self) -> frozenset[str]:
        """Names of the sites whose weight is another site's, too."""
        parameters = set(tied := self.tied()) | set(tied.values())
        return frozenset(site.name for site in self.sites if site.parameter_name in parameters)

    def tied(self) -> dict[str, str]:
        """Parameters that are an earlier one, too: name → name of the owner."""
        return {name: owner for name, owner in self._owner.items() if name != owner}


_KINDS: tuple[tuple[type[nn.Module], Layout], ...] = (
    (nn.Linear, Layout.LINEAR),
    (nn.Conv1d, Layout.CONVOLUTION),
    (nn.Conv2d, Layout.CONVOLUTION),
    (nn.Conv3d, Layout.CONVOLUTION),
    (nn.Embedding, Layout.EMBEDDING),
    (nn.EmbeddingBag, Layout.EMBEDDING),
)
#: Layouts of layers that are a product.
_PRODUCTS = {Layout.LINEAR, Layout.TRANSPOSED, Layout.CONVOLUTION, Layout.EXPERTS, Layout.TRANSPOSED_EXPERTS}


def _nothing(module: nn.Module) -> None:
    """Before a weight is read that is there, nothing is to be done. A lambda could not be pickled."""


def _refuse_shapeless(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_nested:
            raise StructureError(f"{name} is a nested tensor, which goldstick does not take. Keep it padded.")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise StructureError(
                f"{name} has no shape yet: its layer is a lazy one, which gets its weights when it is first called. "
                "Call the model once on an input."
            )


def layout_of(module: nn.Module, parameter_name: str, parameter: Tensor) -> Layout | None:
    """How ``module`` stores a matrix in this parameter, or ``None`` where it is no quantizable weight."""
    if parameter.is_complex():
        return None
    if parameter_name == "weight":
        for kind, layout in _KINDS:
            if isinstance(module, kind):
                return layout
        if isinstance(module, _ConvTransposeNd):  # in groups, an input channel is a row
            return Layout.TRANSPOSED_CONVOLUTION if module.groups == 1 else Layout.CONVOLUTION
        if stores_input_first(module) and parameter.ndim == 2:
            return Layout.TRANSPOSED
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase) and parameter.ndim == 2:
        return None if parameter_name.startswith("bias") else Layout.MATRIX
    if parameter.ndim == 3 and (parameter_name in FUSED_EXPERT_PARAMETERS or _is_stack(module, parameter_name)):
        named = type(module).__name__ in TRANSPOSED_EXPERT_CLASSES
        transposed = named or getattr(module, TRANSPOSED_EXPERTS_FLAG, False)
        return Layout.TRANSPOSED_EXPERTS if transposed else Layout.EXPERTS
    return None


def _is_stack(module: nn.Module, parameter_name: str) -> bool:
    """Whether a module is the layer of all experts: nothing but their matrices, and it says how many they are."""
    weight = module._parameters[parameter_name]
    alone = parameter_name == "weight" and not module._modules
    return alone and weight is not None and getattr(module, "num_experts", None) == len(weight)


def _is_torchs(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and inherits_forward(module)


def _role(layout: Layout, chooses: bool, is_head: bool) -> Role:
    if layout is Layout.EMBEDDING:
        return "embedding"
    if is_head:
        return "head"
    return "router" if chooses else "inner"


def _read_by_parent(model: nn.Module) -> set[nn.Module]:
    """Layers that another module never calls, but reads the weight of."""
    return {module.out_proj for module in model.modules() if isinstance(module, nn.MultiheadAttention)}


def _output_head(model: nn.Module) -> nn.Module | None:
    getter: Callable[[], nn.Module | None] | None = getattr(model, "get_output_embeddings", None)
    return getter() if callable(getter) else None


def _tied_to_embeddings(model: nn.Module) -> list[nn.Module]:
    """Linear layers that share their weight with an embedding: heads, whether or not the model says so."""
    owners = _parameter_owners(model, ())
    layers = {f"{path}.weight": one for path, one in model.named_modules() if isinstance(one, nn.Linear | nn.Embedding)}
    shared = {owners[name] for name, one in layers.items() if isinstance(one, nn.Embedding) and name in owners}
    return [one for name, one in layers.items() if isinstance(one, nn.Linear) and owners.get(name) in shared]


def _parameter_owners(model: nn.Module, cut: Sequence[str]) -> dict[str, str]:
    first: dict[int, str] = {}
    owners = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners[name] = name if name in cut else first.setdefault(id(parameter), name)
    # A model on the meta device may not be tied yet: transformers then says what it will tie.
    for name, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if name in owners and source in owners and owners[name] == name and not {name, source} & {*cut}:
            owners[name] = owners[source]
    return owners
