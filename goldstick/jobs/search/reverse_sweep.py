"""Gradients of a model's own log-likelihood in its weights, by one reverse sweep: a block at a time, the rest on disk.

One sweep forward leaves what each block is given on disk. One backward takes the blocks from the last to the first,
with the gradients at what they give; of each weight's gradient only its products with the changes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import BlockCall, block_calls, run_around
from goldstick.calibration.end_gradients import FloatBlocks
from goldstick.calibration.spilled import Spilled
from goldstick.core.disk_space import require_temporary_space
from goldstick.core.layout import Layout
from goldstick.core.progress import Progress
from goldstick.jobs.search.chain import Row, learning, parameter_of
from goldstick.structure.calls import ForwardLeft, standing_in
from goldstick.structure.network import Network, Site

#: Bytes of the changes Δ that are held at a time; with more of them a block's backward passes are repeated.
MOST_HELD = 1_000_000_000


@dataclass(kw_only=True)
class Products:
    """What is kept of the gradients of a group, for each set of labels and candidate; float64 [sets, candidates].

    Attributes:
        first: Σ|G ∘ Δ|. Of a weight that is read at several places, the sum over these.
        inner: ⟨G, Δ⟩.
    """

    first: Tensor
    inner: Tensor


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """One candidate of one site: where its products belong."""

    group: str
    site: Site
    scheme: str
    column: int


class ReverseSweep:
    """The sweep.

    Args:
        network: The model, in float32.
        blocks: Its blocks, of :func:`goldstick.jobs.search.chain.find_chain`; without any the whole model is gone
            through at once.
        floats: Loads them.
        rows: Keyword arguments of the model's forward, one sequence each, with ``use_cache`` off.
        labels: Draws labels [tokens, 1], given log-probabilities [tokens, vocabulary], of one sequence after another.
        changes: Group → its sites.
        candidates: Group → its schemes.
        rounded: Gives the weight of a site as a scheme has it (:class:`RoundedLayers`).
        draws: Sets of labels for each sequence.
        progress: Told what is done.
    """

    def __init__(
        self,
        network: Network,
        blocks: Sequence[str],
        floats: FloatBlocks,
        rows: Sequence[Row],
        labels: Callable[[Tensor], Tensor],
        *,
        changes: Mapping[str, Sequence[Site]],
        candidates: Mapping[str, Sequence[str]],
        rounded: Any,
        draws: int,
        progress: Progress,
    ) -> None:
        self._network, self._blocks, self._floats, self._rows = network, tuple(blocks), floats, rows
        self._draw, self._labels = labels, list[list[Tensor]]()
        self._rounded, self._draws, self._progress = rounded, draws, progress
        self._units: dict[str | None, list[_Unit]] = {}
        for name, sites in changes.items():
            for site in sites:
                units = [
                    _Unit(group=name, site=site, scheme=scheme, column=column)
                    for column, scheme in enumerate(candidates[name])
                ]
                self._units.setdefault(site.block if site.block in self._blocks else None, []).extend(units)
        sets = len(rows) * draws
        self.products = {
            name: Products(
                **{kind: torch.zeros(sets, len(candidates[name]), dtype=torch.float64) for kind in ("first", "inner")}
            )
            for name in changes
        }

    def run(self) -> dict[str, Products]:
        """Group → what is kept of its gradients."""
        model, blocks, rows = self._network.model, self._blocks, self._rows
        if not blocks:
            nothing = torch.zeros(0)
            self._through(None, lambda index, parameters: self._head(index, nothing, None, parameters))
            return self.products
        known: list[Tensor] = []
        self._floats.load(blocks[0])
        with torch.no_grad():
            starts, calls = zip(*(block_calls(model, blocks, row, known) for row in rows), strict=True)
        files = len(blocks) + 1 + 2 * self._draws
        require_temporary_space(files * sum(state.nbytes for state in starts), "The sweep for gradient scores")
        given: dict[str, Sequence[Tensor]] = {}
        here: Sequence[Tensor] = Spilled(starts)
        for block in blocks:
            given[block] = here
            module = self._floats.load(block)
            with torch.no_grad():
                here = Spilled(calls[index][block].run(module, state) for index, state in enumerate(given[block]))
        steps = len(blocks) + 2
        self._progress("gradient scores", 0, steps)
        rest = calls[0][blocks[0]].rest
        ahead = self._through(None, lambda index, parameters: self._head(index, here[index], rest, parameters))
        for done, block in enumerate(reversed(blocks), start=1):
            self._progress("gradient scores", done, steps)
            module = self._floats.load(block)
            states, later = given.pop(block), ahead
            ahead = self._through(
                block,
                lambda index, parameters, block=block, module=module, states=states, later=later: _backward(  # type: ignore[misc]
                    module, calls[index][block], states[index], self._of_row(later, index), parameters
                ),
            )
        self._progress("gradient scores", steps - 1, steps)
        last = ahead
        self._through(None, lambda index, parameters: self._start(index, self._of_row(last, index), parameters))
        self._progress("gradient scores", steps, steps)
        return self.products

    def _of_row(self, gradients: Sequence[Tensor], index: int) -> Sequence[Tensor]:
        return [gradients[index * self._draws + draw] for draw in range(self._draws)]

    def _through(
        self,
        block: str | None,
        backward: Callable[[int, Sequence[nn.Parameter]], Iterator[tuple[Tensor | None, Sequence[Tensor | None]]]],
    ) -> Sequence[Tensor]:
        """Add what one part of the model gives to the products; returns the gradients at what it is given, on disk."""
        ahead: list[Tensor] | Spilled = Spilled([])
        for number, part in enumerate(_parts(self._units.get(block, ()))):
            sites = list(dict.fromkeys(unit.site for unit in part))
            parameters = [parameter_of(self._network, site) for site in sites]
            held = {site: self._held([unit for unit in part if unit.site is site]) for site in sites}
            for index in range(len(self._rows)):
                for draw, (before, gradients) in enumerate(backward(index, parameters)):
                    if number == 0 and before is not None:
                        ahead.append(before)
                    for site, gradient in zip(sites, gradients, strict=True):
                        if gradient is not None:
                            group, columns, change, size = held[site]
                            G = _matrix(site, gradient).flatten()  # noqa: N806
                            products, place = self.products[group], index * self._draws + draw
                            products.inner[place, columns] += (change @ G).double()
                            products.first[place, columns] += (size @ G.abs()).double()
        return ahead

    def _held(self, units: Sequence[_Unit]) -> tuple[str, list[int], Tensor, Tensor]:
        site = units[0].site
        weight = self._network.weight(site)
        change = torch.stack([(self._rounded.matrix(site, unit.scheme) - weight).flatten() for unit in units])
        return units[0].group, [unit.column for unit in units], change, change.abs()

    def _head(
        self, index: int, final: Tensor, rest: tuple[Any, ...] | None, parameters: Sequence[nn.Parameter]
    ) -> Iterator[tuple[Tensor | None, Sequence[Tensor | None]]]:
        """From the log-likelihood of labels to what the last block gives; of no blocks, to all weights."""
        model: Any = self._network.model
        if index == len(self._labels):
            self._labels.append([])
        drawn = self._labels[index]
        with torch.enable_grad(), learning(parameters):
            leaf = final.detach().clone().requires_grad_()
            output = run_around(model, self._blocks, leaf, rest, lambda: model(**self._rows[index]))
            log_p = torch.log_softmax(output.logits[0].float(), dim=-1)
            for draw in range(self._draws):
                if draw == len(drawn):
                    drawn.append(self._draw(log_p.detach()))
                before, *found = torch.autograd.grad(
                    log_p.gather(1, drawn[draw]).sum(), [leaf, *parameters], retain_graph=draw + 1 < self._draws,
                    allow_unused=True,
                )  # fmt: skip
                yield before, found

    def _start(
        self, index: int, ahead: Sequence[Tensor], parameters: Sequence[nn.Parameter]
    ) -> Iterator[tuple[Tensor | None, Sequence[Tensor | None]]]:
        """From what the first block is given to the weights before it."""
        model: Any = self._network.model
        reached: list[Tensor] = []

        def first(*args: Any, **kwargs: Any) -> Any:
            reached.append(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
            raise ForwardLeft

        with torch.enable_grad(), learning(parameters):
            try:
                with standing_in(model, {self._blocks[0]: first}):
                    model(**self._rows[index])
            except ForwardLeft:
                pass
            if not parameters or not reached[0].requires_grad:
                return
            for draw, gradient in enumerate(ahead):
                yield (
                    None,
                    torch.autograd.grad(
                        reached[0], list(parameters), gradient, retain_graph=draw + 1 < len(ahead), allow_unused=True
                    ),
                )


def _backward(
    module: nn.Module, call: BlockCall, given: Tensor, ahead: Sequence[Tensor], parameters: Sequence[nn.Parameter]
) -> Iterator[tuple[Tensor | None, Sequence[Tensor | None]]]:
    """From what a block gives to what it is given."""
    with torch.enable_grad(), learning(parameters):
        leaf = given.detach().clone().requires_grad_()
        output = call.run(module, leaf)
        for draw, gradient in enumerate(ahead):
            before, *found = torch.autograd.grad(
                output, [leaf, *parameters], gradient, retain_graph=draw + 1 < len(ahead), allow_unused=True
            )
            yield before, found


def _parts(units: Sequence[_Unit]) -> Iterator[list[_Unit]]:
    """Changes that are held together; one empty part where there are none."""
    part: list[_Unit] = []
    size = 0
    for unit in units:
        own = 8 * unit.site.shape.numel()  # the change, and its size
        if part and size + own > MOST_HELD:
            yield part
            part, size = [], 0
        part.append(unit)
        size += own
    yield part


def _matrix(site: Site, gradient: Tensor) -> Tensor:
    return gradient if site.layout is Layout.LINEAR else site.layout.to_matrix(gradient)
