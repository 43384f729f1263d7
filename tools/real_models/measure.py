"""One model after another: prepared, compressed and measured, each step kept so that a stopped run goes on."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.core.json_files import write_atomically
from goldstick.evaluation.metrics import Items, paired_interval
from tools.real_models.measured_run import run_measured
from tools.real_models.model import FLOAT, RealModel, Variant, Workplace

Record = dict[str, Any]


def measure(model: RealModel, place: Workplace) -> Iterator[Record]:
    """What the table says of a model, once for each variant that is done."""
    about: Record = {"title": model.title, "packages": list(model.packages), "licence": model.licence}
    about |= {"task": model.task, "errors": sorted(model.lower_is_better)}
    place.build.mkdir(parents=True, exist_ok=True)
    model.prepare(place)
    before, seconds = _outputs(model, place, FLOAT)
    print(f"{model.name}: float measured in {seconds:.0f} s", flush=True)
    plain = model.score(place, before, before)
    variants = {
        FLOAT: {"bytes": _size(place.path(FLOAT)), "seconds measured": seconds, "metrics": _metrics(plain, None)}
    }
    for variant in model.variants:
        record = {"command": shlex.join(_command(model, variant))} | _made(model, place, variant)
        after, seconds = _outputs(model, place, folder_name(variant))
        scores = model.score(place, after, before)
        variants[variant.name] = record | {"seconds measured": seconds, "metrics": _metrics(scores, plain)}
        print(f"{model.name} {variant.name}: {_said(variants[variant.name])}", flush=True)
        yield about | {"variants": dict(variants)}


def folder_name(variant: Variant) -> str:
    """The folder of a compressed model in its workplace."""
    return variant.name.replace(" ", "-")


def _made(model: RealModel, place: Workplace, variant: Variant) -> Record:
    """How a compressed model was made, which is done where it was not, or by other arguments."""
    kept = place.path(f"{folder_name(variant)}.json")
    if kept.exists() and place.path(folder_name(variant)).exists():
        record: Record = json.loads(kept.read_text())
        if record["arguments"] == list(variant.arguments):
            return record
    record = _compress(model, place, variant)
    kept.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _command(model: RealModel, variant: Variant) -> list[str]:
    """What makes a variant: in the model's folder, or for plain modules in the checkout."""
    if model.compress is None:
        return ["goldstick", "quantize", FLOAT, *variant.arguments, "-o", folder_name(variant)]
    return ["python", "-m", "tools.real_models", model.name, "--compress", variant.name]


def _compress(model: RealModel, place: Workplace, variant: Variant) -> Record:
    """In a process of its own, so that time and memory are this command's alone."""
    out = folder_name(variant)
    for old in (out, f".{out}.work"):
        shutil.rmtree(place.path(old), ignore_errors=True)
    command = _command(model, variant)
    if model.compress is None:
        run, folder = [str(Path(sys.executable).with_name("goldstick")), *command[1:]], place.build
    else:
        where = ["--site", str(place.site), "--build", str(place.build.parent)]
        run, folder = [sys.executable, *command[1:], *where], Path.cwd()
    took = run_measured(run, folder, place.path(f"{out}.log"))
    report = json.loads((place.path(out) / "report.json").read_text())
    return {
        "arguments": list(variant.arguments),
        "seconds": round(took.seconds, 1),
        "processor seconds": round(took.processor_seconds, 1),
        "peak bytes": took.peak_bytes,
        "bytes": _size(place.path(out)),
        "format": json.loads((place.path(out) / "goldstick.json").read_text())["format"],
        "bits per quantized weight": report["size"].get("bits_per_weight"),
    }


def _outputs(model: RealModel, place: Workplace, folder: str) -> tuple[list[Any], float]:
    kept = place.path(f"{folder}.outputs.pt")
    source = max(file.stat().st_mtime for file in place.path(folder).rglob("*"))
    if kept.exists() and kept.stat().st_mtime >= source:
        found = torch.load(kept, weights_only=True)
        return found["outputs"], found["seconds"]
    loaded = model.load(place, place.path(folder))
    started = time.monotonic()
    outputs = list(model.outputs(place, loaded))
    seconds = round(time.monotonic() - started, 1)
    torch.save({"outputs": outputs, "seconds": seconds}, kept)
    return outputs, seconds


def _metrics(scores: Mapping[str, Items], plain: Mapping[str, Items] | None) -> dict[str, Record]:
    """Each metric with its 95 % interval, and that of its difference to the float model on the same items."""
    found = {}
    for name, items in scores.items():
        record: Record = {"value": items.metric(), "interval": items.interval(), "items": len(items.values)}
        if plain is not None:
            record["difference"] = items.metric() - plain[name].metric()
            record["difference interval"] = paired_interval(items, plain[name])
        found[name] = record
    return found


def _size(folder: Path) -> int:
    """Bytes of the weights alone."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _said(record: Record) -> str:
    metrics = ", ".join(f"{name} {one['value']:.3f}" for name, one in record["metrics"].items())
    return (
        f"{record['bytes'] / 1e6:.1f} MB, made in {record['seconds']} s, {record['peak bytes'] / 1e6:.0f} MB; {metrics}"
    )


def processor_name() -> str:
    """What Linux calls the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "an unnamed processor"
    )


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    return {name: importlib.metadata.version(name) for name in ("goldstick", "torch", "transformers")}


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write the results' file, whole or not at all."""
    write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())
