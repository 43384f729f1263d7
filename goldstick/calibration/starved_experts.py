"""Experts that are modules of a list, to which the router sent too few tokens: shown what all experts are given.

The mixture's own forward runs as it is, so the router chooses as before; beside each call of an expert, those that had
too few run on the same tokens, and what they give goes nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.pauses import CapturedInput, inputs_in_order
from goldstick.calibration.task import Assignment
from goldstick.core.inputs import InputObserver
from goldstick.core.ranks import Ranks
from goldstick.structure.calls import called_before
from goldstick.structure.network import Network, Site

Runs = Sequence[Callable[[], Tensor]]


def expert_list(network: Network, site: Site) -> str | None:
    """The path of the innermost list of modules that a site's layer lies in, inside its block, which may itself be one
    of a list of experts; ``None`` for none.
    """
    parts = site.module.split(".")
    least = len(site.block.split(".")) - 1 if site.block else 1
    for end in range(len(parts) - 1, least - 1, -1):
        if isinstance(network.model.get_submodule(".".join(parts[:end])), nn.ModuleList):
            return ".".join(parts[:end])
    return None


def shown_every_token(
    network: Network, tasks: Iterable[Assignment], runs: Runs, ranks: Ranks
) -> Iterator[tuple[Assignment, InputObserver]]:
    """Those of some tasks that are experts of a list, each with an observer of what all experts were given.

    Args:
        network: The network, with the weights of the block in memory.
        tasks: Tasks that no token reached, or too few. Each is to be solved before the next is asked for.
        runs: The block's forward on each batch; the layers before the experts are solved.
        ranks: Who runs other batches.
    """
    lists: dict[str, list[Assignment]] = {}
    for task in tasks:
        path = expert_list(network, task.site)
        if path is not None and not task.site.layout.fused:
            lists.setdefault(path, []).append(task)
    for path, members in lists.items():
        of = {task.site.name: task for task in members}
        for observers in _StarvedExperts(network, path, members, runs, ranks).rounds():
            for name, observer in observers.items():
                yield of[name], observer
                observer.release()


def are_starved(network: Network, group: Sequence[Assignment], tokens: int) -> bool:
    """Whether layers of a list of modules were given too few tokens."""
    least = max(task.stage.least_inputs(task.site) for task in group)
    return tokens < least and all(expert_list(network, task.site) is not None for task in group)


class _StarvedExperts:
    """The starved experts of one list of modules.

    Args:
        network: The network, with the weights of the block in memory.
        path: The list's path.
        tasks: The tasks of experts that are to be shown every token.
        runs: The block's forward on each batch; the layers before the experts are solved.
        ranks: Who runs other batches.
    """

    def __init__(self, network: Network, path: str, tasks: Sequence[Assignment], runs: Runs, ranks: Ranks) -> None:
        self._all: list[nn.Module] = list(network.model.get_submodule(path).children())
        self._network, self._runs, self._ranks = network, runs, ranks
        self._tasks: dict[nn.Module, list[Assignment]] = {}
        for task in tasks:
            number = task.site.module.removeprefix(f"{path}.").split(".")[0]
            self._tasks.setdefault(network.model.get_submodule(f"{path}.{number}"), []).append(task)

    def rounds(self) -> Iterator[Mapping[str, InputObserver]]:
        """Observers by the names of sites, the first layers of all starved experts first. Asking for more says that
        these are solved. None where the modules are no experts: all are given as many tokens, or tokens are not what
        they are given, or they cannot be run alone.
        """
        orders = self._orders()
        for step in range(max(map(len, orders.values()), default=0)):
            members = {expert: order[step] for expert, order in orders.items() if step < len(order)}
            observers = {
                task.site.name: InputObserver(task.site.in_features) for tasks in members.values() for task in tasks
            }
            for look in (InputObserver.observe_range, InputObserver.observe):  # so that no token is held
                for captured in self._calls():
                    for expert, tasks in members.items():
                        layers = {self._network.module(task.site): observers[task.site.name] for task in tasks}
                        _observe(expert, layers, captured, look)
                for observer in observers.values() if look is InputObserver.observe_range else ():
                    observer.share_ranges(self._ranks)
            for observer in observers.values():
                observer.share(self._ranks)
            yield observers

    def _orders(self) -> dict[nn.Module, list[list[Assignment]]]:
        """The tasks of each starved expert, those that read one tensor together, in the order they run."""
        given: list[dict[nn.Module, int]] = []
        example: CapturedInput | None = None
        for captured in self._calls(given):
            example = example or captured
        called = {one for counts in given for one in counts}
        several = len(called) > 1 or not called <= self._tasks.keys()
        routed = several and any(len({counts.get(one, 0) for one in self._all}) > 1 for counts in given)
        if not self._ranks.any(routed) or example is None:
            return {}
        found: dict[nn.Module, list[list[Assignment]]] = {}
        for expert, tasks in self._tasks.items():
            by_module = {self._network.module(task.site): task for task in tasks}
            try:
                traced = inputs_in_order(list(by_module), partial(example.through, expert))
            except Exception:  # any code of the model may fail, in any way
                continue
            groups: dict[object, list[Assignment]] = {}
            for module, key in traced:
                groups.setdefault(key, []).append(by_module[module])
            found[expert] = list(groups.values())
        return found

    def _calls(self, given: list[dict[nn.Module, int]] | None = None) -> Iterator[CapturedInput]:
        """What each expert is given, call by call; how many tokens each got of each batch is added to ``given``."""
        for run in self._runs:
            found: list[CapturedInput] = []

            def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                if args and isinstance(args[0], Tensor) and args[0].ndim == 2 and len(args[0]):
                    found.append(CapturedInput(module=module, args=args, kwargs=kwargs))  # noqa: B023

            with called_before(self._all, note), torch.no_grad():
                run()
            if given is not None:
                counts: dict[nn.Module, int] = {}
                for one in found:
                    counts[one.module] = counts.get(one.module, 0) + len(one.tensor)
                given.append(counts)
            yield from found


def _observe(
    expert: nn.Module,
    layers: Mapping[nn.Module, InputObserver],
    captured: CapturedInput,
    look: Callable[[InputObserver, Tensor], None],
) -> None:
    def hear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        look(layers[module], CapturedInput(module=module, args=args, kwargs=kwargs).tensor)

    with called_before(layers, hear), torch.no_grad():
        captured.through(expert)
