"""``--for`` and ``--tensor-parallel``: the program that is to run a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from goldstick.jobs.doctor.finding import Verdict


class RuntimeName(click.ParamType[str]):
    """The name of a runtime; they are looked up when one is given, so that help is quick.

    Args:
        own: Names beside those that there are rules of.
    """

    name = "runtime"

    def __init__(self, *own: str) -> None:
        self._own = own

    def _choice(self) -> click.Choice[str]:
        from goldstick.jobs.doctor.runtimes import RUNTIMES

        return click.Choice([*self._own, *RUNTIMES])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, checked."""
        return self._choice().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin with what is typed."""
        return self._choice().shell_complete(ctx, param, incomplete)


#: The runtime that a checkpoint is looked at for.
CHECKED_RUNTIME = click.option(
    "--for", "runtime", metavar="RUNTIME", type=RuntimeName(),
    help="The program that is to run it: vllm, sglang, transformers or llama.cpp.",
)  # fmt: skip
#: The runtime that a checkpoint is made for.
RUNTIME = click.option(
    "--for", "runtime", metavar="RUNTIME", type=RuntimeName("goldstick"),
    help="What is to run it: goldstick, vllm, sglang, transformers or llama.cpp. It decides the format, and in a "
         "search what layers may become.",
)  # fmt: skip
TENSOR_PARALLEL = click.option(
    "--tensor-parallel", type=click.IntRange(1), default=1, metavar="N",
    help="Over how many devices it is to split the layers; of vllm and sglang. A search chooses what can be split.",
)  # fmt: skip


def verdict_in_words(verdict: Verdict) -> list[str]:
    """What a runtime makes of a checkpoint, in lines."""
    does = "loads it" if verdict.loads else "does not load it, or runs it wrong"
    lines = [f"{verdict.runtime} {verdict.version}: {does}"]
    if verdict.loads:
        lines += [f"  {hardware}: {words}" for hardware, words in verdict.hardware.items()]
        lines += [f"  not on {hardware}: {words}" for hardware, words in verdict.not_on.items()]
    return lines
