"""What every test runs under: offline, two threads, or one beside other processes of tests, a fixed seed."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path

# Before any library reads them: tests never reach for a network, and say nothing to anyone.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["DO_NOT_TRACK"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Triton decides when it is imported whether its kernels are compiled or run by its interpreter; on the CPU only the
# second is possible. Nothing but tests/kernels/test_triton*.py uses it here.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from hypothesis import settings

from goldstick.core import fresh_process
from tests.support import ranks, warm_processes

ROOT = Path(__file__).resolve().parent.parent

# Two processes of two threads each on two cores spend most of their time waiting for each other's threads.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
# Examples found at random are for a developer's machine; CI repeats the same ones.
settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("local", deadline=None)
settings.register_profile("many", max_examples=500, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local"))


#: torch's own writes tracebacks for devices that are not here, each time.
_seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


def pytest_collection_finish() -> None:
    """Let no search for garbage go through all that was imported, again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Seed torch and random, and leave torch's default dtype as it was found."""
    random.seed(0)
    _seed(0)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture
def reference_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that compute as written; others promise closeness only, and have tests of their own."""
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep results of evaluations apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDSTICK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Fork proofs and ranks from a process that has imported everything, but where CUDA would forbid it."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(fresh_process, "_started", warm_processes.fresh_process)
            patch.setattr(ranks, "_started", warm_processes.rank)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Models and data sets: $GOLDSTICK_SHARED/data, by default ../shared/data beside the checkout."""
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or ROOT.parent / "shared")
    data = shared / "data" if (shared / "data").is_dir() else shared
    if not data.is_dir():
        pytest.skip(f"no data sets at {shared}: set GOLDSTICK_SHARED to the directory that holds them")
    return data
