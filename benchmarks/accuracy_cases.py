"""What accuracy.py measures: three models, and the recipes whose cost is looked at on each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldstick.jobs.load.find_model import reference_directory

Stages = Sequence[Mapping[str, Mapping[str, Any]]]

#: What is planted where ``Subject.planted``: share of the channels, smallest and largest factor, seed.
PLANTED_SHARE, PLANTED_FACTORS, PLANTED_SEED = 0.02, (20.0, 100.0), 0
BITS = (4, 3, 2)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is measured, and its data.

    Attributes:
        name: What tables call it.
        title: What documents say of it.
        directory: The checkpoint.
        data: Where the data of calibration and evaluation lie.
        dataset: Calibration data.
        task: The evaluation task; its text has no part in the calibration data.
        grains: Grains of the weights.
        planted: Whether activation outliers are planted first.
    """

    name: str
    title: str
    directory: Path
    data: Path
    dataset: str
    task: str
    grains: tuple[str, ...] = ("g32",)
    planted: bool = False


def subjects() -> dict[str, Subject]:
    """The models by name, whether they are there or not."""
    reference = reference_directory()
    shared = Path(os.environ.get("GOLDSTICK_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"
    own = {"directory": reference, "data": reference / "data", "dataset": "reference", "task": "text"}
    found = (
        Subject(name="reference", title="the bundled reference model, its held-out text", **own),
        Subject(
            name="stories260k",
            title="stories260K, 200 held-out TinyStories of at most 256 tokens",
            directory=shared / "stories260k",
            data=shared,
            dataset="tinystories",
            task="tinystories",
            grains=("g32", "channel"),
        ),
        Subject(
            name="planted",
            title="the reference model with outliers planted: 2 % of the channels behind every norm, times 20 to 100",
            planted=True,
            **own,
        ),
    )
    return {subject.name: subject for subject in found}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A recipe.

    Attributes:
        method: What is done, as tables call it.
        scheme: What the weights become; ``kv8`` where only the cache is rounded.
        stages: The recipe's stages; none for the float model.
    """

    method: str
    scheme: str
    stages: Stages

    @property
    def name(self) -> str:
        """What the results call it."""
        return f"{self.method} {self.scheme}".strip()


FLOAT = Row(method="float", scheme="", stages=())


def rows(subject: Subject) -> Iterator[Row]:
    """All rows of a model but the float one."""
    for grain in subject.grains:
        for bits in BITS:
            yield from weight_rows(f"w{bits}a16-{grain}")
    for scheme in ("w8a8-dynamic", "w8a8-static"):
        yield from eight_bit_rows(scheme)
    for mode in ("static", "dynamic"):
        yield Row(method=f"kv_cache {mode}", scheme="kv8", stages=[{"kv_cache": {"mode": mode}}])


def weight_rows(scheme: str) -> Iterator[Row]:
    """Weights alone are rounded. ``rtn`` has searched ranges, as the word of recipes; ``rtn minmax`` plain ones."""
    options = {"scheme": scheme, "group_size_mismatch": "channel"}
    gptq, scales = {"gptq": options}, {"awq": {"quantize": False}}
    recipes: dict[str, Stages] = {
        "rtn minmax": [{"rtn": {**options, "range_search": "minmax"}}],
        "rtn": [{"rtn": {**options, "range_search": "mse"}}],
        "imatrix": [{"rtn": {**options, "range_search": "imatrix"}}],
        "awq": [{"awq": options}],
        "gptq": [gptq],
        "awq+gptq": [scales, gptq],
        "rotate+gptq": [{"rotate": {}}, gptq],
    }
    for method, stages in recipes.items():
        yield Row(method=method, scheme=scheme, stages=stages)


def eight_bit_rows(scheme: str) -> Iterator[Row]:
    """Weights and activations at 8 bits."""
    rtn = {"rtn": {"scheme": scheme}}
    yield Row(method="rtn", scheme=scheme, stages=[rtn])
    for alpha in (0.5, "search"):
        yield Row(method=f"smoothquant {alpha}", scheme=scheme, stages=[{"smoothquant": {"alpha": alpha}}, rtn])
    yield Row(method="rotate", scheme=scheme, stages=[{"rotate": {}}, rtn])
