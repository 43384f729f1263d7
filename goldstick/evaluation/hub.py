"""The Hugging Face hub through `datasets`, with a bounded wait: the one file that imports it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from goldstick.errors import DataError

HUB_TIMEOUT = 10.0
"""Seconds; without this bound, `datasets` retries for 23 s where there is no network."""

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A data set on the hub.

    Args:
        path: its repository, ``owner/name``.
        configuration: the configuration's name, or None for the only one.
        split: the split's name.
        configuration_field: the field of each row that takes the configuration's name, or None.
    """

    path: str
    configuration: str | None = None
    split: str
    configuration_field: str | None = None


def hub_answers(timeout: float = 2.0) -> bool:
    """Whether the hub's host has an address; where not, nothing is asked of it, since its client would try for long.

    Args:
        timeout: Seconds; behind a slow server of names the hub counts as there.
    """
    from huggingface_hub import constants

    host, known = urlsplit(constants.ENDPOINT).hostname or "", [True]

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            known[0] = False

    thread = threading.Thread(target=look_up, daemon=True, name="goldstick-hub-name")
    thread.start()
    thread.join(timeout)
    return known[0]


@contextmanager
def asking_the_cache_alone() -> Iterator[None]:
    """Let the hub's clients look at what they have stored, and ask nobody."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def load_from_hub(dataset: HubDataset, timeout: float = HUB_TIMEOUT) -> list[Mapping[str, Any]]:
    """Return the rows of one split from the hub or from the local cache of `datasets`.

    Images are mappings with the ``bytes`` of their files. The hub has ``timeout`` seconds to answer which files make
    up the data set; downloading them is not bounded. Where the environment says offline only the cache is asked, at
    once. Raises DataError with the cause and the state of the offline switch.
    """
    with _asked(dataset, timeout) as builder:
        import datasets

        builder.download_and_prepare()
        found = builder.as_dataset(split=dataset.split)
        for name, feature in (getattr(found, "features", None) or {}).items():
            if isinstance(feature, datasets.Image):
                found = found.cast_column(name, datasets.Image(decode=False))
        rows: list[Mapping[str, Any]] = [dict(row) for row in found]
    if dataset.configuration_field is not None:
        rows = [{dataset.configuration_field: dataset.configuration, **row} for row in rows]
    return rows


def require_on_hub(dataset: HubDataset, timeout: float = HUB_TIMEOUT) -> None:
    """Raise the DataError of `load_from_hub` where the data set cannot be had; nothing is downloaded but its facts."""
    with _asked(dataset, timeout):
        pass


@contextmanager
def _asked(dataset: HubDataset, timeout: float) -> Iterator[Any]:
    """The data set's builder, with the hub or the local cache behind it; what fails inside is a DataError."""
    offline = _offline_variable()
    if os.path.exists(dataset.path):  # `datasets` would take it for the data set
        raise DataError(
            f"{dataset.path} is on the hub, and the current directory holds a folder of that name, which would be read "
            "in its place; run in another directory, or name the folder's parent as the data directory"
        )
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DataError(f"{dataset.path} would come from the hub, but `datasets` is not installed") from error
    if offline and not datasets.config.HF_HUB_OFFLINE:  # set after the library read its environment
        raise DataError(f"{dataset.path} is on the hub and {offline} forbids asking it")
    state = f"{offline} is set" if offline else "HF_HUB_OFFLINE is not set"
    alone = not offline and not hub_answers()
    if alone:
        state = "this machine has no way to it"
    try:
        with asking_the_cache_alone() if alone else nullcontext():
            yield _bounded(dataset, timeout)
    except Exception as error:  # the library raises OSError, ValueError and its own classes for one cause
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{dataset.path} cannot be had from the hub ({cause}; {state})") from error


def _bounded(dataset: HubDataset, timeout: float) -> Any:
    """Return the data set's builder, or raise TimeoutError after ``timeout`` seconds.

    The thread is a daemon: one that still waits for the network does not keep the program from ending.
    """
    from datasets import load_dataset_builder

    outcome: list[Any] = []

    def ask() -> None:
        try:
            outcome.append(load_dataset_builder(dataset.path, dataset.configuration))
        except Exception as error:  # handed to the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True, name="goldstick-hub")
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise TimeoutError(f"no answer within {timeout:g} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _offline_variable() -> str | None:
    """Return ``NAME=value`` of the environment variable that asks for offline work, or None."""
    for name in OFFLINE_VARIABLES:
        value = os.environ.get(name, "")
        if value.upper() in {"1", "ON", "YES", "TRUE"}:
            return f"{name}={value}"
    return None
