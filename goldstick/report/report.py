"""The contents of ``report.json``: plain records that others fill in.

The file is a function of its contents: no clock is read, so equal runs write equal bytes (but for
``timing`` and ``peak_memory``).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from goldstick.core.json_files import dump_json, parse_json, read_text, write_atomically
from goldstick.core.local_paths import last_part, without_folders
from goldstick.errors import DataError, UsageError
from goldstick.report.file_names import FILE_NAME

VERSION = 1
#: Bytes of a report; 100,000 layers with notes stay below it.
_SIZE_LIMIT = 64_000_000


@dataclass(frozen=True, kw_only=True)
class LayerRecord:
    """What became of one parameter.

    Args:
        name: the parameter's full name.
        shape: its shape; where channels were cut, what is left of it (the note ``shape_before`` says what was).
        dtype: its type before, such as ``bfloat16``.
        bytes_before: its size before; 0 for a name that shares another parameter's memory.
        bytes_after: the size of all that stands for it now: codes, scales and zeros.
        scheme: the label of what it became, or None where it was not quantized.
        algorithm: what decided on it, or None where nothing did.
        reason: why it was left alone, or None where it was not.
        weight_sqnr_db: 10·log10(Σw² / Σ(w − ŵ)²) in decibels; infinite where nothing was lost.
        max_abs_error: the largest |w − ŵ|.
        worst_channels: the output channels of the least such ratio, the worst first: (which one, in decibels).
        notes: what the algorithm found out on the way: tokens seen, damping, why it fell back.

    Raises UsageError for a record that says neither what was done nor why nothing was.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes_before: int
    bytes_after: int
    scheme: str | None = None
    algorithm: str | None = None
    reason: str | None = None
    weight_sqnr_db: float | None = None
    max_abs_error: float | None = None
    worst_channels: tuple[tuple[str, float], ...] = ()
    notes: Mapping[str, float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a record nobody could read."""
        if self.bytes_before < 0 or self.bytes_after < 0:
            raise UsageError(f"{self.name}: a size in bytes cannot be negative")
        if any(size < 0 for size in self.shape) or (self.scheme is not None and len(self.shape) < 2):
            raise UsageError(f"{self.name}: a weight of the shape {list(self.shape)} cannot be, or not be quantized")
        if self.scheme is None and self.algorithm is None and self.reason is None:
            raise UsageError(f"{self.name}: the record must say what was done, or the reason why nothing was")

    @property
    def elements(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class SizeSummary:
    """Sizes of all parameters together, in bytes of tensors (the headers of files are not counted).

    Args:
        bytes_before: before.
        bytes_after: after.
        bits_per_weight: stored bits, scales and zeros included, per value of the quantized parameters; None
            where none was quantized.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    bytes_before: int
    bytes_after: int
    bits_per_weight: float | None = None

    @classmethod
    def of(cls, layers: Sequence[LayerRecord]) -> SizeSummary:
        """Add up ``layers``."""
        quantized = [layer for layer in layers if layer.scheme is not None]
        elements = sum(layer.elements for layer in quantized)
        return cls(
            bytes_before=sum(layer.bytes_before for layer in layers),
            bytes_after=sum(layer.bytes_after for layer in layers),
            bits_per_weight=8 * sum(layer.bytes_after for layer in quantized) / elements if elements else None,
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """One compression, from the recipe to the proof.

    Args:
        goldstick_version: the version that made it.
        model: the model's name or directory, as the user gave it.
        recipe: the recipe as plain data.
        format: the storage format's name.
        size: the sizes; must equal the sums over ``layers``.
        layers: a record for every parameter of the network.
        structure: what looking at the network found.
        rotation: what was turned, and the errors of its proof; empty where nothing was.
        kv_cache: how keys and values are stored; empty where they stay in float.
        training: for each stage that trained its steps, the mean loss and the validation of each epoch, and which epoch
            was kept; empty where none did.
        pruning: for each stage that cut channels: ``parameters``, ``macs`` and ``seconds`` of a forward, before and
            after; the scores of every layer's channels, and which went; ``refused`` layers with the reason. The seconds
            are measured, so equal runs differ in them.
        calibration: what data the algorithms looked at.
        sensitivity: what rounding each layer alone did to the output, as in the file that ``goldstick sensitivity``
            writes, where the recipe chose its bits by it, or it was put here later; empty where nobody measured it.
        search: what a search for a size or a loss measured and chose, as in the JSON that ``goldstick search`` writes;
            empty where the recipe was given.
        evaluation: ``{"before": …, "after": …, "divergence": …, "speed": …}``, the first two each what
            `goldstick.evaluation.Evaluation.to_dict` returns, the third what `goldstick.evaluation.divergence` finds,
            the last, of models that write, their tokens a second: ``before``, ``after``, and the ``threads``. These are
            measured, so equal runs differ in them.
        proof: what was done to show that the checkpoint holds what was decided.
        warnings: sentences for the user.
        timing: seconds by stage; durations, never a time of day.
        peak_memory: the most memory the process held at once until the checkpoint was written, in bytes; what ran
            in it before, such as an evaluation of the float model, is in it, and the proof is not.
        ranks: of a run in several processes, the ``work_seconds``, the ``wait_seconds`` and the ``sent_bytes`` of each;
            empty where there was one.
        environment: versions of the libraries in use.
        run: digests of what the run was of: recipe, source, calibration data, versions; equal ones give equal
            checkpoints. Empty where nobody can say.

    Raises UsageError where the sizes do not add up or a parameter is recorded twice.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    goldstick_version: str
    model: str
    recipe: Mapping[str, Any]
    format: str
    size: SizeSummary
    layers: tuple[LayerRecord, ...]
    structure: Mapping[str, Any] = field(default_factory=dict)
    rotation: Mapping[str, Any] = field(default_factory=dict)
    kv_cache: Mapping[str, Any] = field(default_factory=dict)
    training: tuple[Mapping[str, Any], ...] = ()
    pruning: tuple[Mapping[str, Any], ...] = ()
    calibration: Mapping[str, Any] = field(default_factory=dict)
    sensitivity: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    peak_memory: int | None = None
    ranks: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that every byte is accounted for, once; keep the last part of absolute paths to the model and to data,
        since checkpoints go to others.
        """
        told = {"model": last_part(self.model), "calibration": without_folders(self.calibration)}
        if not self.search:  # the command that searched takes its recipe from here, when it is repeated
            told["recipe"] = without_folders(self.recipe)
        for name, value in told.items():
            object.__setattr__(self, name, value)
        counted = Counter(layer.name for layer in self.layers)
        twice = sorted(name for name, count in counted.items() if count > 1)
        if twice:
            raise UsageError(f"the report records {twice[0]} twice")
        for side in ("bytes_before", "bytes_after"):
            total, summed = getattr(self.size, side), sum(getattr(layer, side) for layer in self.layers)
            if total != summed:
                raise UsageError(
                    f"the report's {side} is {total} but its {len(self.layers)} records add up to {summed}: "
                    "a parameter is missing from the records or counted wrongly"
                )

    def to_json(self) -> str:
        """Return the report as JSON text; infinities and NaN as strings, see `goldstick.core.json_files`."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        fields["size"] = dataclasses.asdict(self.size)
        fields["layers"] = [dataclasses.asdict(layer) for layer in self.layers]
        return dump_json({"report_version": VERSION, **fields})

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote; DataError for anything else."""
        data = parse_json(text, "the report")
        if not isinstance(data, dict) or data.pop("report_version", None) != VERSION:
            raise DataError(f"not a goldstick report of version {VERSION}, the only one this release reads")
        try:
            read: Report = TypeAdapter(cls).validate_python(data)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, wrong["loc"]))[:100]
            raise DataError(f"the report lacks a field or has a wrong one ({place}: {wrong['msg']})") from error
        except UsageError as error:  # what its makers may not do, a file may not hold
            raise DataError(str(error)) from error
        return read

    @classmethod
    def read(cls, directory: Path | str) -> Report:
        """Read ``report.json`` from ``directory``; DataError where there is none."""
        path = Path(directory) / FILE_NAME
        text = read_text(path, _SIZE_LIMIT)
        try:
            return cls.from_json(text)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def write(self, directory: Path | str) -> Path:
        """Write ``report.json`` into ``directory`` and return its path; whole even after a crash.

        OutputError where the directory cannot be written to.
        """
        path = Path(directory) / FILE_NAME
        write_atomically(path, self.to_json().encode())
        return path
