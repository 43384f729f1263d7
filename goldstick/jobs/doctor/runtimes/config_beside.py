"""Configs of AutoGPTQ and AutoAWQ that lie beside config.json, where a runtime does not look."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.checkpoint.source import overlooked_config
from goldstick.errors import GoldstickError
from goldstick.jobs.doctor.files import INTO_CONFIG
from goldstick.jobs.doctor.runtimes.runtime import Rule
from goldstick.jobs.doctor.runtimes.subject import Subject


def config_beside_rule(read_in: str) -> Rule:
    """What transformers makes of them; ``read_in`` is where its source says so."""
    return Rule(
        check="config-beside",
        severity="fault",
        what="how weights are quantized stands beside config.json, so that transformers takes the model for a float "
        "one and fills its quantized layers at random; goldstick.load reads it",
        remedy=INTO_CONFIG,
        read_in=read_in,
        find=_config_beside,
    )


def _config_beside(subject: Subject) -> Iterator[str]:
    try:
        name = None if subject.directory is None else overlooked_config(subject.directory)
    except GoldstickError:  # told by whoever reads the config
        return
    if name is not None:
        yield name
