"""Runnable: which choices a runtime runs, on each of the devices that it splits layers over, by the rules of doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.jobs.doctor.runtimes import runtime_named
from goldstick.jobs.doctor.runtimes.planned import faults_in_words
from goldstick.jobs.doctor.runtimes.runtime import Runtime
from goldstick.jobs.doctor.runtimes.subject import Module, Subject
from goldstick.jobs.plan.plan import Plan
from goldstick.structure.network import Site


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a runtime refuses of choices, each alone, before any is measured.

    Attributes:
        runtime: The runtime, as doctor knows it.
        tensor_parallel: Over how many devices it is to split the layers.
    """

    runtime: Runtime
    tensor_parallel: int = 1

    def refusal(self, plan: Plan, group: Sequence[tuple[Site, StoredLayer]], storage: StorageFormat) -> str:
        """Why it does not run layers that share one scheme, whatever the others become; nothing where it does.

        Args:
            plan: A plan of the model.
            group: The matrices of these layers, as they would be stored: [out, in] each.
            storage: The format that they are stored in.
        """
        modules = tuple(
            Module(
                name=layer.name.removesuffix(".weight"),
                shape=layer.shape[-2:],
                scheme=layer.scheme,
                role=site.role,
            )
            for site, layer in group
        )
        table = storage.config([layer for _, layer in group], (), {})
        subject = Subject(config=plan.source.config, table=table, modules=modules, tensor_parallel=self.tensor_parallel)
        findings, _ = self.runtime.judge(subject)
        faults = [finding for finding in findings if finding.severity == "fault"]
        return faults_in_words(self.runtime, storage, faults) if faults else ""


def rules_of(name: str, tensor_parallel: int = 1) -> Rules | None:
    """The rules of a runtime; ``None`` for goldstick, which runs all that it writes.

    Args:
        name: What ``--for`` names.
        tensor_parallel: Over how many devices it is to split the layers.

    Raises:
        UsageError: There is no such runtime, or no rules of how it splits layers are known.
    """
    found = runtime_named(name, tensor_parallel)
    return None if found is None else Rules(runtime=found, tensor_parallel=tensor_parallel)
