"""Die at every step of writing, and at random, and go on: are the bytes those of a run that nothing disturbed?

``points``: a small llama is quantized in this process once for each step of writing, dies there, and goes on.
``kills``: the reference model is quantized by the command line, killed (SIGKILL) at random until it gets through.

    python -m benchmarks.crash points kills --out benchmarks/results/crash-points.json
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from tests.support.crash_points import STAGES, contents, die_and_go_on, steps_of, tiny_checkpoint, write_text


def command(recipe: str) -> list[str]:
    """The command line that quantizes the reference model, but for its output."""
    return [
        sys.executable, "-m", "goldstick.cli", "quantize", "goldstick/reference", "-r", recipe, "--dataset",
        "reference", "--data-dir", "reference", "--samples", "8", "--seq-len", "128",
        "--group-size-mismatch", "channel",
    ]  # fmt: skip


def points_of(stages: str, blocks: int, every: int, folder: Path) -> dict[str, Any]:
    """Die at every ``every``-th step of one recipe."""
    source = tiny_checkpoint(folder / f"source-{stages}", blocks)
    text = write_text(folder / "text.txt")
    (folder / "whole" / stages).mkdir(parents=True)  # whose making would be a step
    steps, expected = steps_of(source, text, folder / "whole" / stages, stages)
    found: dict[str, Any] = {"recipe": stages, "blocks": blocks, "steps": steps, "every": every}
    identical, different, errors = 0, [], []
    for step in range(1, steps + 1, every):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            try:
                got = die_and_go_on(source, text, Path(place), stages, step)
            except (Exception, pytest.fail.Exception) as error:  # the run that did not die
                errors.append(f"{step}: {type(error).__name__}: {error}")
                continue
        if got == {f"out/{name}": content for name, content in expected.items()}:
            identical += 1
        else:
            different.append(step)
    total = identical + len(different) + len(errors)
    return found | {"points": total, "identical": identical, "different": different, "errors": errors}


def kills(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Kill the command line ``count`` times at random moments, letting a run end whenever it outlives its time."""
    started = time.perf_counter()
    subprocess.run([*command("gptq-w4a16-g32"), "-o", str(folder / "whole")], check=True, capture_output=True)
    whole = time.perf_counter() - started
    expected = contents(folder / "whole")
    moments = random.Random(seed)
    killed, finished, different, errors, output = 0, 0, 0, [], folder / "out"
    while killed < count or output.with_name(".out.work").exists():
        arguments = [*command("gptq-w4a16-g32"), "-o", str(output), "--resume"]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, said = process.communicate(timeout=moments.uniform(0.2, 1) * whole if killed < count else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
            if not output.exists() or output.with_name(".out.work").exists():
                continue  # else it was killed when all was done
        else:
            if process.returncode:
                errors.append(said.strip().splitlines()[-1])
                break
        finished += 1
        different += contents(folder) != {
            **{f"whole/{name}": content for name, content in expected.items()},
            **{f"out/{name}": content for name, content in expected.items()},
        }
        for file in output.iterdir():
            file.unlink()
        output.rmdir()
    return {"kills": killed, "finished_runs": finished, "different": different, "errors": errors}


def main() -> None:
    """Run what was asked for and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=["points", "kills"])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--every", type=int, default=1, help="die at every n-th step only")
    parser.add_argument("--recipes", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/crash-points.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        if "points" in options.what:
            for stages in options.recipes:
                one = points_of(stages, options.blocks, options.every, Path(folder))
                results.setdefault("points", {})[f"{stages}, {options.blocks} blocks"] = one
                options.out.write_text(json.dumps(results, indent=1) + "\n")
                print(json.dumps(one), flush=True)
        if "kills" in options.what:
            results["kills"] = kills(options.kills, 0, Path(folder))
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(json.dumps(results["kills"]), flush=True)
    found = [*results.get("points", {}).values(), *([results["kills"]] if "kills" in results else [])]
    if any(one["different"] or one["errors"] for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
