"""Transforms of inputs at run time, which compressed-tensors can say and not every runtime makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.formats.transform_config import TRANSFORM_CONFIG
from goldstick.jobs.doctor.runtimes.runtime import AMD, CPU, Answers, no
from goldstick.jobs.doctor.runtimes.subject import Subject

_NO_KERNEL = no("layers turn their input at run time, by a kernel for NVIDIA GPUs alone (hadacore)")


def turned_at_run_time(subject: Subject) -> Iterator[str]:
    """The groups of a config that have inputs or outputs turned at run time."""
    told = subject.table.get(TRANSFORM_CONFIG)
    groups = told.get("config_groups") if isinstance(told, Mapping) else None
    if subject.method != COMPRESSED_TENSORS.method or not isinstance(groups, Mapping):
        return
    for name, group in groups.items():
        places = group.get("apply") if isinstance(group, Mapping) else None
        for place in places if isinstance(places, list) else []:
            where = place.get("location") if isinstance(place, Mapping) else None
            if isinstance(where, str) and not where.startswith("weight_"):
                yield f"{TRANSFORM_CONFIG}: {name[:100]} at {where}"


def turned_on_several(subject: Subject) -> Iterator[str]:
    """The same, where layers are split over devices."""
    if subject.tensor_parallel > 1:
        yield from turned_at_run_time(subject)


def on_nvidia_alone(answers: Answers, subject: Subject) -> Answers:
    """Answers of a runtime whose kernel for such transforms is one for NVIDIA GPUs."""
    return {**answers, AMD: _NO_KERNEL, CPU: _NO_KERNEL} if any(turned_at_run_time(subject)) else answers
