"""Where the loss of a compressed model comes from: what is left of it when one part is put back to float."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from goldstick.core.counts import counted
from goldstick.report.terminal import print_table

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a compressed model, put back to float alone.

    Args:
        name: a source (``weights``, ``activations``, ``KV cache``), or the path of a layer or block.
        left: the mean KL per token, in nats, that is left then.
    """

    name: str
    left: float


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The loss of a compressed model, and what each part of it accounts for.

    Args:
        total: mean KL(p ‖ q) per token in nats, p the float and q the compressed model's distribution.
        tokens: how many predictions were compared.
        inputs: the text, in words.
        sources: the kinds of rounding there are in the model.
        places: its layers, or its blocks.
        notes: what could not be split, and why.
    """

    total: float
    tokens: int
    inputs: str
    sources: tuple[Part, ...]
    places: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    def share(self, part: Part) -> float:
        """What putting the part back takes off the loss, in percent of it; negative where the loss grows."""
        return 100.0 * (self.total - part.left) / self.total if self.total > 0 else 0.0

    def words(self) -> str:
        """What the figures are, in a sentence or two."""
        return (
            f"The compressed model's predictions are {self.total:.3g} nats a token from the float model's (mean KL "
            f"over {counted(self.tokens, 'token')}). One part at a time was put back to float; the shares need not add "
            "up to 100 %, since errors cancel and add up."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, each part's ``share`` in percent with it."""
        data = asdict(self)
        for kind in ("sources", "places"):
            data[kind] = [asdict(part) | {"share": self.share(part)} for part in getattr(self, kind)]
        return data


def print_attribution(console: Console, found: Attribution) -> None:
    """Print what each source, and each layer or block, accounts for."""
    columns = ("put back to float", "<KL left", "<share of the loss")
    for title, parts in (("Loss by source", found.sources), ("Loss by place", found.places)):
        cells = [[part.name, f"{part.left:.3e}", f"{found.share(part):.1f} %"] for part in parts]
        print_table(console, title, columns, cells)
    for words in (found.words(), *found.notes):
        console.print(words, markup=False, highlight=False, soft_wrap=True)
