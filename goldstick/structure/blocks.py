"""The repeated blocks of a network: the unit that calibration visits one at a time."""

from __future__ import annotations

from torch import nn


def find_blocks(model: nn.Module) -> tuple[str, ...]:
    """Paths of the repeated blocks: the members of the outermost ``ModuleList``s that hold weights.

    A list counts when it has two members or more (or one, in a model with a single layer), and each member holds a
    matrix and is called: of a list of lists, the lists count. Lists inside a block (experts, heads) are not blocks of
    their own. An encoder–decoder gives the encoder's blocks and then the decoder's.
    """
    found: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and block_of(path, tuple(found)) is None and len(module) > 0:
            members = [f"{path}.{index}" if path else str(index) for index in range(len(module))]
            if all(_holds_matrix(member) and not isinstance(member, nn.ModuleList) for member in module):
                found.extend(members)
    return tuple(found)


def block_of(path: str, blocks: tuple[str, ...]) -> str | None:
    """The block that ``path`` lies in, or ``None``."""
    return next((block for block in blocks if path == block or path.startswith(block + ".")), None)


def _holds_matrix(module: nn.Module) -> bool:
    return any(parameter.ndim >= 2 for parameter in module.parameters())
