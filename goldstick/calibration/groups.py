"""Input groups of a calibration: sites that read one tensor, in the order the block comes to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from goldstick.calibration.patches import reading
from goldstick.calibration.pauses import inputs_in_order
from goldstick.calibration.task import Assignment
from goldstick.structure.network import Network


def input_groups(
    network: Network, tasks: Mapping[str, Assignment], run: Callable[[], Tensor]
) -> tuple[list[list[Assignment]], set[int]]:
    """Tasks that share an input, in order of execution; fused experts are a group of their own.

    Layers that are called several times share the inputs of all their calls, or are of different groups.

    Args:
        network: The network.
        tasks: Site name → what to do there.
        run: The block's forward on one batch; runs once.

    Returns:
        The groups, and the numbers of those whose layers are called more than once.
    """
    by_module: dict[nn.Module, list[Assignment]] = {}
    for task in tasks.values():
        by_module.setdefault(network.module(task.site), []).append(task)
    traced = inputs_in_order(list(by_module), run)
    first = {module: place for place, (module, _) in reversed([*enumerate(traced)])}
    keys: dict[nn.Module, list[object]] = {}
    for module, key in traced:
        keys.setdefault(module, []).append(key)
    groups: dict[object, tuple[float, list[Assignment]]] = {}
    latest = -1.0
    for module, members in by_module.items():
        # Experts that only other batches reach come after all that was registered before them. Any other order would
        # let a group be solved while some batches have yet to come to it.
        place = first.get(module, latest + 0.5)
        latest = max(latest, place) if module in first else latest
        alone = module not in first or members[0].site.layout.fused
        earlier, together = groups.get(name := module if alone else (tuple(keys[module]), reading(module)), (place, []))
        groups[name] = min(earlier, place), together + members
    ordered = [members for _, members in sorted(groups.values(), key=lambda group: group[0])]
    return ordered, {
        number for number, members in enumerate(ordered) if len(keys.get(network.module(members[0].site), ())) > 1
    }
