"""The rows that a layer's weight matrix is multiplied with."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.structure.plain_layers import Product, inherits_forward, products_in


def rows_read_by(module: nn.Module, x: Tensor) -> Tensor | None:
    """What each output of a layer is a product with.

    For a linear layer its input. For a convolution its patches [batch, places, in · kernel], in the order of the
    flattened kernel. For a layer with a forward of its own, what that forward multiplies the weight with. ``None`` for
    a convolution in groups, whose groups read different patches, for an embedding, whose rows are looked up, and where
    a forward of its own makes more of the weight than one product.

    Args:
        module: The layer, with its float weight.
        x: Its input.
    """
    if isinstance(
        module, nn.modules.conv._ConvTransposeNd | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase | nn.EmbeddingBag
    ):
        return None
    if isinstance(module, nn.Embedding):
        return None
    plain = inherits_forward(module)
    if plain and not isinstance(module, nn.modules.conv._ConvNd):
        return x
    weight: Any = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or getattr(module, "groups", 1) > 1:
        return None
    own: Any = module
    products = [_plain(own, x)] if plain else products_in(lambda: own.forward(x), weight)[0]
    return _rows(products[0]) if len(products) == 1 else None


def reading(module: nn.Module) -> tuple[object, ...]:
    """Equal for two layers that read the same rows of the same input: what :func:`rows_read_by` depends on."""
    if not inherits_forward(module):
        return (module,)
    if not isinstance(module, nn.modules.conv._ConvNd):
        return ()
    settings = (module.kernel_size, module.stride, module._reversed_padding_repeated_twice, module.dilation)
    return *(tuple(setting) for setting in settings), module.padding_mode, module.groups > 1


def _plain(module: nn.modules.conv._ConvNd, x: Tensor) -> Product:
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return Product(
        input=F.pad(x, list(module._reversed_padding_repeated_twice), mode=mode),
        kernel=tuple(module.kernel_size),
        stride=tuple(module.stride),
        padding=(0,) * len(module.kernel_size),
        dilation=tuple(module.dilation),
        groups=module.groups,
    )


def _rows(product: Product) -> Tensor | None:
    if product.groups > 1:
        return None
    if not product.kernel:
        return product.input
    x = F.pad(product.input, [amount for side in reversed(product.padding) for amount in (side, side)])
    if x.ndim == len(product.kernel) + 1:  # a sample without a batch
        x = x.unsqueeze(0)
    sides = len(product.kernel)
    for axis, (kernel, stride, dilation) in enumerate(
        zip(product.kernel, product.stride, product.dilation, strict=True), 2
    ):
        x = x.unfold(axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    # [batch, channels, *places, *kernel] → [batch, places, channels · kernel]
    order = (0, *range(2, 2 + sides), 1, *range(2 + sides, 2 + 2 * sides))
    places = x.permute(order).flatten(1, sides)
    return places.flatten(2)
