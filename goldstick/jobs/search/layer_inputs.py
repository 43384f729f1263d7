"""What layers of the float model are given on the calibration rows, so that candidates are rounded as they will be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import run_around
from goldstick.calibration.block_loop import block_runs, starts
from goldstick.calibration.end_gradients import FloatBlocks
from goldstick.calibration.spilled import Spilled
from goldstick.core.disk_space import require_temporary_space
from goldstick.core.inputs import SAMPLE, InputObserver
from goldstick.core.layout import Layout
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.core.token_mask import TokenMask, token_mask
from goldstick.jobs.search.chain import find_chain
from goldstick.jobs.search.in_turn import SearchedModel
from goldstick.jobs.search.kept_inputs import InputStatistic, KeptInputs
from goldstick.jobs.search.layers import Layers
from goldstick.jobs.search.shortage import recipe_data
from goldstick.structure.network import Network, Site

#: Bytes of the Hessians of all layers together, with a factor of each; of more, none is made.
MOST_HESSIANS = 4_000_000_000
#: Bytes of the Hessians of all layers together where they wait on disk; of more, none is made.
MOST_ON_DISK = 64_000_000_000


def inputs_of_layers(
    network: Network, sites: Iterable[Site], batches: Sequence[Mapping[str, Tensor]], ranks: Ranks | None = None
) -> dict[str, InputObserver]:
    """The statistic of each linear layer's inputs in the float model, site name → observer; embeddings have none.

    Errors of the layers before, which a quantization would find in these inputs, are not in them.

    Args:
        network: The model, in float32.
        sites: The layers.
        batches: Keyword arguments of its forward.
        ranks: Who looks together, each at some of the batches; the sums are whole numbers.

    Returns:
        Nothing where the Hessians would take more than ``MOST_HESSIANS`` bytes.
    """
    linear = [site for site in sites if site.layout is Layout.LINEAR and site.role != "embedding"]
    if sum(2 * 8 * site.in_features**2 for site in linear) > MOST_HESSIANS:
        return {}
    observers = {site.name: InputObserver(site.in_features) for site in linear}
    model: Any = network.model
    ranks = ranks or Ranks()
    for widen in (True, False):  # the range of all batches comes before their sums
        for batch in (batches[number] for number in ranks.share(len(batches))):
            mask = token_mask(batch)
            with ExitStack() as stack, torch.no_grad():
                for site in linear:
                    observer = observers[site.name]
                    look = observer.observe_range if widen else observer.observe
                    hook = network.module(site).register_forward_pre_hook(_looking(look, mask))
                    stack.callback(hook.remove)
                model(**batch, use_cache=False)
        for observer in observers.values():
            observer.share_ranges(ranks) if widen else observer.share(ranks)
    return observers


def inputs_by_blocks(
    network: Network,
    sites: Iterable[Site],
    batches: Sequence[Mapping[str, Tensor]],
    blocks: Sequence[str],
    floats: FloatBlocks,
    ranks: Ranks | None = None,
) -> Mapping[str, InputObserver]:
    """The same, block by block, with the statistics of one block in memory and those of all others on disk.

    Args:
        network: The model, in float32.
        sites: The layers.
        batches: Keyword arguments of its forward.
        blocks: Its blocks, of :func:`goldstick.jobs.search.chain.find_chain`.
        floats: Loads them.
        ranks: Who looks together, each at some of the batches.

    Returns:
        Nothing where the Hessians would take more than ``MOST_ON_DISK`` bytes.

    Raises:
        OutputError: There is no room for them.
    """
    linear = [site for site in sites if site.layout is Layout.LINEAR and site.role != "embedding"]
    hessians = sum(8 * site.in_features**2 for site in linear)
    if hessians > MOST_ON_DISK:
        return {}
    model: Any = network.model
    ranks = ranks or Ranks()
    own: list[dict[str, Any]] = [{**batches[number], "use_cache": False} for number in ranks.share(len(batches))]
    masks = [token_mask(batch) for batch in own]
    found = KeptInputs()
    floats.load(blocks[0])
    with torch.no_grad():
        states, calls = starts(model, blocks, own)
        between = 2 * sum(state.nbytes for state in states)
        rows = min(SAMPLE, ranks.count * sum(state[..., 0].numel() for state in states))
        samples = 4 * rows * sum(site.in_features for site in linear)
        require_temporary_space(hessians + samples + between, "What the layers of a search are given")
        here: Sequence[Tensor] = Spilled(states)
        for block in blocks:
            module = floats.load(block)
            runs = block_runs(module, block, calls, here)
            inside = [site for site in linear if site.block == block]
            here = Spilled(_observed(network, inside, runs, masks, ranks, found))
        rest = calls[0][blocks[0]].rest if own else None
        around = [
            partial(run_around, model, blocks, state, rest, partial(model, **batch))
            for state, batch in zip(here, own, strict=True)
        ]
        outside = [site for site in linear if site.block not in blocks]
        for _ in _observed(network, outside, around, masks, ranks, found) if outside else ():
            pass
    return found


def _observed(
    network: Network,
    sites: Sequence[Site],
    runs: Sequence[Callable[[], Any]],
    masks: Sequence[TokenMask],
    ranks: Ranks,
    found: KeptInputs,
) -> Iterator[Any]:
    """What runs give, with what layers are given on the way kept in ``found``."""
    observers = {site.name: InputStatistic(site.in_features) for site in sites}

    def passes(widen: bool) -> Iterator[Any]:
        for run, mask in zip(runs, masks, strict=True):
            with ExitStack() as stack:
                for site in sites:
                    observer = observers[site.name]
                    look = observer.observe_range if widen else observer.observe
                    stack.callback(network.module(site).register_forward_pre_hook(_looking(look, mask)).remove)
                output = run()
            yield output

    if sites:
        for _ in passes(True):
            pass
        for observer in observers.values():
            observer.share_ranges(ranks)
    yield from passes(False)
    for name, observer in observers.items():
        observer.share(ranks)
        found.keep(name, observer)


def inputs_as_calibrated(
    layers: Layers,
    searched: SearchedModel,
    data_dir: Path | None,
    progress: Progress = quiet,
    ranks: Ranks | None = None,
) -> Mapping[str, InputObserver]:
    """The same on the rows that the recipe is calibrated on, where GPTQ rounds them; else nothing.

    Args:
        layers: The layers, and the recipe's calibration data.
        searched: The model.
        data_dir: Where sets of text known by name lie.
        progress: Told what is done.
        ranks: Who looks together.

    Raises:
        DataError: The data are missing, malformed or too few.
    """
    if layers.method != "gptq":
        return {}
    progress("inputs of layers", 0, 1)
    batches = recipe_data(layers, layers.calibration, searched.model, data_dir).batches()
    sites = [site for group in layers.groups for site in group.sites]
    row = {**{name: value[:1] for name, value in batches[0].items()}, "use_cache": False}
    network = searched.network
    if blocks := find_chain(network, row, searched):
        found = inputs_by_blocks(network, sites, batches, blocks, searched, ranks)
    else:
        found = inputs_of_layers(network, sites, batches, ranks)
    progress("inputs of layers", 1, 1)
    return found


def _looking(look: Callable[[Tensor, Tensor | None], None], mask: TokenMask) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, given: Any) -> None:
        x: Tensor = given[0]
        counted = mask.of(x)
        look(x.detach(), None if counted is None else counted.bool())

    return hook
