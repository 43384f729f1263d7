"""What layers of the float model are given on the calibration rows, so that candidates are rounded as they will be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.inputs import InputObserver
from goldstick.core.layout import Layout
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.search.layers import Layers
from goldstick.structure.network import Network, Site

#: Bytes of the Hessians of all layers together, with a factor of each; of more, none is made.
MOST_HESSIANS = 4_000_000_000


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
            mask = batch.get("attention_mask")
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


def inputs_as_calibrated(
    layers: Layers, network: Network, data_dir: Path | None, progress: Progress = quiet, ranks: Ranks | None = None
) -> dict[str, InputObserver]:
    """The same on the rows that the recipe is calibrated on, where GPTQ rounds them; else nothing.

    Args:
        layers: The layers, and the recipe's calibration data.
        network: The model, in float32.
        data_dir: Where sets of text known by name lie.
        progress: Told what is done.
        ranks: Who looks together.

    Raises:
        DataError: The data are missing, malformed or too few.
    """
    if layers.method != "gptq":
        return {}
    progress("inputs of layers", 0, 1)
    data = calibration_data(layers.calibration, layers.directory, data_dir)(network.model)
    sites = [site for group in layers.groups for site in group.sites]
    found = inputs_of_layers(network, sites, data.batches(), ranks)
    progress("inputs of layers", 1, 1)
    return found


def _looking(look: Callable[[Tensor, Tensor | None], None], mask: Tensor | None) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, given: Any) -> None:
        x: Tensor = given[0]
        counted = mask is not None and mask.shape == x.shape[:-1]
        look(x.detach(), mask.bool() if counted and mask is not None else None)

    return hook
