"""The rows that a layer's weight matrix is multiplied with."""

from __future__ import annotations

from torch import Tensor, nn


def rows_read_by(module: nn.Module, x: Tensor) -> Tensor | None:
    """What each output of a layer is a product with.

    For a linear layer its input. For a 2-D convolution its patches [batch, places, in · height · width], in the order
    of the flattened kernel; ``None`` for a convolution in groups, whose groups read different patches, and for an
    embedding, whose rows are looked up and not multiplied with anything.

    Args:
        module: The layer.
        x: Its input.
    """
    if isinstance(module, nn.Embedding):
        return None
    if not isinstance(module, nn.Conv2d):
        return x
    if module.groups > 1:
        return None
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = nn.functional.pad(x, list(module._reversed_padding_repeated_twice), mode=mode)
    patches: Tensor = nn.functional.unfold(padded, module.kernel_size, module.dilation, 0, module.stride)
    return patches.transpose(1, 2)


def reading(module: nn.Module) -> tuple[object, ...]:
    """Equal for two layers that read the same rows of the same input: what :func:`rows_read_by` depends on."""
    if not isinstance(module, nn.Conv2d):
        return ()
    padding = tuple(module._reversed_padding_repeated_twice)
    return module.kernel_size, module.stride, padding, module.dilation, module.padding_mode, module.groups > 1
