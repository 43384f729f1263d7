"""What every model of the zoo goes through: rounded in memory, calibrated, compared, stored, loaded and exported."""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import goldstick
from goldstick.errors import CheckpointError, GoldstickError
from goldstick.jobs.save import finish
from goldstick.report import Report
from tools.zoo.build import Built, NotBuilt, build
from tools.zoo.catalogue import Architecture
from tools.zoo.meaning import dequantized_twin, layers_apart, packed
from tools.zoo.outputs import Outputs, difference, outputs_of
from tools.zoo.proof import prove_here

#: Stages in their order; the quick ones first.
STAGES = ("float", "rtn", "meaning", "gptq", "save", "load", "export")
QUICK = STAGES[:3]

#: ‖quantized − meant‖ / ‖meant‖ of a whole model in float32: the kernels sum in another order.
CLOSE = 1e-4
#: The same of a layer alone, whose inputs may stand out or cancel; kernels promise 1e-4 for normal ones.
LAYERS_CLOSE = 1e-3

Record = dict[str, Any]


class Different(Exception):  # noqa: N818
    """Two models that should compute the same do not."""


def live(architecture: Architecture, stages: tuple[str, ...], fresh_proofs: bool = False) -> Record:
    """What became of an architecture: whether it was built, the stages passed, and every failure with its class.

    Args:
        architecture: Which.
        stages: What it goes through.
        fresh_proofs: Whether what is stored is proven in a fresh process, as users' checkpoints are, which takes many
            seconds; otherwise in this one.
    """
    if not fresh_proofs:
        finish.prove = prove_here
    started = time.monotonic()
    warnings.simplefilter("ignore")
    record: Record = {"kind": architecture.kind, "config": architecture.config, "built": False, "passed": []}
    try:
        built = build(architecture)
        record |= {"built": True, "variant": built.variant, "parameters": built.parameters}
        record["inputs"] = sorted(built.inputs or ())
        if built.inputs is None:
            record["failures"] = {"float": {"class": "no inputs", "error": built.obstacle}}
        else:
            _Visit(built, record).go(stages)
    except NotBuilt as error:
        record["failures"] = {"build": {"class": "not built", "error": str(error)}}
    record["seconds"] = round(time.monotonic() - started, 2)
    return record


class _Visit:
    """One model on its way through the stages; a stage that needs what an earlier one did not give is left out."""

    def __init__(self, built: Built, record: Record) -> None:
        self.model, self.inputs, self.record = built.model, built.inputs or {}, record
        self.failures: dict[str, dict[str, str]] = {}
        self.expected: Outputs = {}
        self.quantized: Any = None
        self.folder: Path | None = None

    def go(self, stages: tuple[str, ...]) -> None:
        needs = {"meaning": "rtn", "save": "rtn", "load": "save", "export": "save"}
        with tempfile.TemporaryDirectory() as folder:
            self.place = Path(folder)
            for stage in stages:
                if needs.get(stage, "float") in self.record["passed"] or stage == "float":
                    self._try(stage, getattr(self, f"_{stage}"))
        if self.failures:
            self.record["failures"] = self.failures

    def _try(self, stage: str, work: Callable[[], None]) -> None:
        try:
            work()
            self.record["passed"].append(stage)
        except GoldstickError as error:
            kind = "fault" if isinstance(error, CheckpointError) else "refused"  # what it wrote itself it cannot read
            self.failures[stage] = {"class": kind, "error": _line(error)}
        except Exception as error:
            self.failures[stage] = {"class": "fault", "error": _line(error), "where": _where(error)}

    def _float(self) -> None:
        self.expected = outputs_of(self.model, self.inputs)
        again = outputs_of(self.model, self.inputs)
        self.record["repeats itself"] = difference(again, self.expected) <= CLOSE

    def _rtn(self) -> None:
        self.quantized = goldstick.apply(self.model, _recipe("rtn"))
        layers = packed(self.quantized.model)
        self.record["packed"] = dict(Counter(type(layer).__name__ for layer in layers.values()))
        left = [layer for layer in self.quantized.report.layers if not layer.scheme and len(layer.shape) > 1]
        self.record["left in float"] = {layer.name: layer.reason for layer in left[:40]}
        outputs_of(self.quantized.model, self.inputs)

    def _meaning(self) -> None:
        self.record["meaning"] = self._compare(self.quantized.model)

    def _compare(self, quantized: Any) -> float:
        twin = dequantized_twin(self.model, quantized)
        away = difference(outputs_of(quantized, self.inputs), outputs_of(twin, self.inputs))
        if away <= CLOSE:
            return away
        apart, path = layers_apart(twin, quantized, self.inputs)
        if apart > LAYERS_CLOSE:
            raise Different(
                f"the outputs are {away:.2g} of their norm away from those of the dequantized weights, and of single "
                f"layers {path} {apart:.2g}"
            )
        self.record["close layer by layer"] = apart
        return away

    def _gptq(self) -> None:
        calibrated = goldstick.apply(self.model, _recipe("gptq"), data=[self.inputs, self.inputs])
        unseen = [layer.name for layer in calibrated.report.layers if "unreached" in layer.notes]
        if unseen:
            self.record["not reached"] = len(unseen)
        self.record["meaning of gptq"] = self._compare(calibrated.model)

    def _save(self) -> None:
        self.folder = self.quantized.save(self.place / "saved")
        self.record["format"] = Report.read(self.folder).format

    def _load(self) -> None:
        loaded = goldstick.load(self.place / "saved")
        away = difference(outputs_of(loaded, self.inputs), outputs_of(self.quantized.model, self.inputs))
        if away > CLOSE and self.record["repeats itself"]:
            raise Different(f"what was loaded gives outputs {away:.2g} of their norm away from what was saved")

    def _export(self) -> None:
        other = "native" if self.record["format"] == "compressed-tensors" else "compressed-tensors"
        goldstick.export(self.place / "saved", other, output=self.place / "exported", proof="tensors")
        loaded = goldstick.load(self.place / "exported")
        away = difference(outputs_of(loaded, self.inputs), outputs_of(self.quantized.model, self.inputs))
        if away > CLOSE and self.record["repeats itself"]:
            raise Different(f"what was exported gives outputs {away:.2g} of their norm away from what was saved")


def _recipe(algorithm: str) -> dict[str, Any]:
    return {"stages": [{algorithm: {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}}]}


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    name = "" if isinstance(error, GoldstickError) else f"{type(error).__name__}: "
    return f"{name}{text[:500]}"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/goldstick/" in frame.filename]
    shown = list(
        dict.fromkeys(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in [*ours[-2:], *frames[-2:]])
    )
    return " → ".join(shown)
