"""What the GPTQ and the AWQ format have in common: 4-byte words, one scheme for all layers, scales in float16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shown
from typing import Any, ClassVar

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import StorageFormat, StoredLayer, StoredTensor
from goldstick.formats.site_table import SiteTable

WORD_BITS = 32


class WeightOnly(StorageFormat):
    """What the classes of both share; ``title`` is what messages call the format."""

    title: ClassVar[str]
    codes_suffix = ".qweight"
    scale_suffix = ".scales"
    loading = (
        "Load it with `goldstick.load(directory)`, with vLLM, or with transformers: `import goldstick` before "
        "`from_pretrained`\nor install the packages it asks for (gptqmodel, and optimum for GPTQ)."
    )
    float16_scales = True
    linear_only = True

    def refuses_together(self, layers: Sequence[StoredLayer], ties: Mapping[str, str]) -> str | None:
        """Layers of several bits or group sizes: the config names one."""
        return refuses_mixture(layers, ties, self.title)

    def remarks(self, layers: Sequence[StoredLayer]) -> list[str]:
        """Which scales do not fit float16."""
        return remarks_on_scales(layers, self.title)

    def listed(self, config: Mapping[str, Any]) -> SiteTable:
        """None: the config names what is excepted."""
        return SiteTable()

    def matrix_shape(self, name: str, tensors: Mapping[str, StoredTensor], in_features: int) -> torch.Size:
        """Codes are stored input by input."""
        return torch.Size([tensors[name].shape[-1], in_features])


def refuses_weight_only(layer: StoredLayer, title: str) -> str | None:
    """Why neither format can hold a layer without loss; ``title`` is what the message calls the format."""
    if not layer.scheme.weight.plain:
        return f"{title} holds integers with float scales, and its scheme is {layer.scheme.label}"
    if layer.kind == "experts":
        return f"goldstick stores no experts in {title} files, which gather otherwise than their model's"
    if layer.kind != "linear":
        return f"{title} readers quantize linear layers only, not a {layer.kind} weight"
    if not layer.name.endswith(".weight") or len(layer.shape) != 2:
        return f"{title} names its tensors after a linear layer's weight, and this is {layer.name}"
    if layer.scheme.activation:
        return f"{title} files say nothing of rounded activations, and its scheme is {layer.scheme.label}"
    if layer.multiplied:
        return f"'unfoldable: multiply' gives it a factor for each input, which {title} has no place for"
    if layer.fractional_zeros and not layer.scheme.weight.symmetric:
        return "its zeros are integers and this algorithm's are fractions"
    return refuses_scales(layer, title)


def refuses_scales(layer: StoredLayer, title: str) -> str | None:
    """Why float16 cannot hold the scales of a layer whatever they are."""
    if layer.scale_dtype in (None, torch.float16, torch.bfloat16):
        return None
    return (
        f"its scales are {str(layer.scale_dtype).removeprefix('torch.')}, as its weights are, and {title} files "
        "hold float16, so that rounding them would change every weight; convert the float model to float16 or "
        "bfloat16 first"
    )


def remarks_on_scales(layers: Sequence[StoredLayer], title: str) -> list[str]:
    """What the user should know of bfloat16 scales that become float16."""
    if all(layer.scale_dtype is not torch.bfloat16 for layer in layers):
        return []
    return [
        f"{title} files hold scales in float16. Those of this bfloat16 model are held exactly from 2**-17 to 65504; a "
        "scale outside, as only weights that are almost nothing have, ends the run with an error."
    ]


def refuses_words(layer: StoredLayer, title: str, inputs: int, outputs: int) -> str | None:
    """Why codes do not fill whole words, where inputs and outputs must be multiples of the given numbers."""
    out_features, in_features = layer.shape
    for count, multiple, what in ((in_features, inputs, "inputs"), (out_features, outputs, "outputs")):
        if count % multiple:
            return (
                f"{title} packs {layer.scheme.weight.bits}-bit codes into whole words of {WORD_BITS} bits and needs a "
                f"multiple of {multiple} {what}, not {count}; exclude it, or store it in another format"
            )
    return None


def refuses_mixture(layers: Sequence[StoredLayer], ties: Mapping[str, str], title: str) -> str | None:
    """Why layers that could be held each cannot be held together where a config names one scheme."""
    if reason := refuses_joined(layers, ties, title):
        return reason
    sizes = {stored_group_size(layer.scheme.weight): layer for layer in layers}
    bits = {layer.scheme.weight.bits: layer for layer in layers}
    if len(sizes) > 1 or len(bits) > 1:
        one, other = list((sizes if len(sizes) > 1 else bits).values())[:2]
        return (
            f"its config names one scheme for all layers, and {one.site} is {one.scheme.label}, {other.site} is "
            f"{other.scheme.label}"
        )
    return None


def refuses_joined(layers: Sequence[StoredLayer], ties: Mapping[str, str], title: str) -> str | None:
    """Why layers that could be held each cannot be held together, whatever their schemes."""
    if not layers:
        return f"nothing is quantized, and a {title} checkpoint without quantized layers has no meaning"
    if ties:
        return f"{next(iter(ties))} runs on the quantized weight of another layer, which {title} cannot say"
    owners: set[str] = set()
    for layer in layers:
        if layer.site in owners:
            return f"the model joins {layer.site} from several stored tensors, which its readers do not do with {title}"
        owners.add(layer.site)
    return None


def stored_group_size(grid: Grid) -> int:
    """``group_size`` as both configs write it: −1 for one scale by channel."""
    return -1 if grid.group_size is None else grid.group_size


def float16_scales(scale: Tensor, title: str) -> Tensor:
    """Scales as float16, equal in value.

    Raises:
        FormatError: Some are no float16 numbers.
    """
    half = scale.to(torch.float16)
    changed = int((half.float() != scale.float()).sum())
    if changed:
        raise FormatError(
            f"{title} files hold scales in float16, and {changed} of {scale.numel()} scales of a layer are no float16 "
            f"numbers (they are {str(scale.dtype).removeprefix('torch.')}, from {float(scale.min()):.3g} to "
            f"{float(scale.max()):.3g}). Use compressed-tensors or native, which keep them, or quantize the model "
            "in float16."
        )
    return half


def whole_zeros(tensor: QuantizedTensor, title: str) -> Tensor:
    """The zeros of a tensor as codes, uint8 [out, groups]; the midpoint where its grid is symmetric.

    Raises:
        FormatError: One is not a whole number of the grid.
    """
    if tensor.zero is None:
        return torch.full(tensor.scale.shape, tensor.grid.midpoint, dtype=torch.uint8, device=tensor.scale.device)
    zero = tensor.zero.float()
    if not tensor.grid.are_codes(zero):
        raise FormatError(f"{title} holds whole zeros only; export to the native format instead.")
    return zero.to(torch.uint8)


def zeros_of(zero: Tensor, grid: Grid, title: str) -> Tensor | None:
    """Stored zeros, uint8 [out, groups], as a :class:`QuantizedTensor` has them: none where the grid is symmetric.

    Raises:
        FormatError: The grid is symmetric and a zero is not its midpoint.
    """
    if not grid.symmetric:
        return zero.float()
    if not bool((zero == grid.midpoint).all()):
        raise FormatError(
            f"its config declares symmetric weights and it holds zeros other than {grid.midpoint}; the {title} "
            "checkpoint contradicts itself."
        )
    return None


def refuse_inputs(title: str, scheme: Scheme, *given: Tensor | None) -> None:
    """Raise a FormatError where a layer brings anything for its input."""
    if scheme.activation is not None or any(tensor is not None for tensor in given):
        raise FormatError(f"{title} has no place for what a layer does to its input; export to the native format.")


def declared_grid(config: Mapping[str, Any], allowed: Sequence[int], symmetric: bool, title: str) -> Grid:
    """The grid that ``bits`` and ``group_size`` of a config declare.

    Raises:
        FormatError: They are missing or make no sense.
    """
    bits, size = config.get("bits"), config.get("group_size")
    if type(bits) is not int or bits not in allowed:
        known = ", ".join(map(str, allowed))
        raise FormatError(
            f"The {title} config declares {shown(bits)} bits, and goldstick reads {known} in that format."
        )
    if type(size) is not int or (size != -1 and size < 2):
        raise FormatError(
            f"The {title} config declares the group_size {shown(size)}; it is -1, for one scale by "
            "channel, or 2 and more."
        )
    if size == -1:
        return Grid(bits=bits, symmetric=symmetric)
    return Grid(bits=bits, symmetric=symmetric, granularity="group", group_size=size)
