"""goldstick beside llm-compressor and auto-round: the same model, tokens, scheme, threads and evaluator.

``python benchmarks/peers.py --model DIR --dataset tinystories --data-dir DIR --group-size 32 --llm-compressor PYTHON
--auto-round PYTHON`` runs the cases of which both tools are at hand and prints a table; ``--model random`` makes a
model of 160 million random weights, for time and memory. Each peer lies in an environment of its own, whose Python is
given: ``pip install llmcompressor`` and ``pip install auto-round``, each beside the same torch as goldstick's.

What is compared:

- *Time.* ``quantize_and_write`` is loading, calibrating, quantizing and writing, in the tool's own process after its
  imports. ``process_seconds`` is everything from start to end; goldstick's includes reading the result back in a fresh
  process and comparing outputs, which the peers do not do.
- *Memory.* The largest resident set of any process of the job, as the kernel counted it, and the largest sum over all
  its processes at one time, sampled.
- *Accuracy.* Plain transformers loads every checkpoint in one and the same program, see ``peers/perplexity.py``.

The windows of all tools are equal: goldstick's report states the fingerprint of what it read, and that is checked. Runs
alternate (goldstick, peer, goldstick, peer, …); ratios are medians of those within a pair, peer over goldstick.

Peers run with their defaults but for scheme, data, device and batch size, and auto-round without compiling, which is
faster for it on small models. It leaves layers float whose sides 32 does not divide, so there is no comparison with it
on a model that has such layers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peer_cases import CASES, Case

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "peers"
RESULTS = HERE / "results" / "peers.json"
TOKENS_PER_BATCH = 2048  # of a peer; goldstick takes 512
RUNNERS = {"llm-compressor": "run_llm_compressor.py", "auto-round": "run_auto_round.py"}


def main() -> None:
    """Run the cases, print a table, write the results."""
    arguments = parse()
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "MKL_NUM_THREADS": str(arguments.threads)}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory(prefix="goldstick-peers-", dir=arguments.folder) as folder:
        bench = Bench(arguments, Path(folder), environment)
        for case in CASES:
            if arguments.cases and case.name not in arguments.cases:
                continue
            try:
                result = bench.compare(case)
            except ToolFailedError as error:
                result = {"failed": str(error).partition(":")[0]}
                print(error, file=sys.stderr)
            save(arguments.output, f"{bench.name} {case.name}", result)
            print(line(case.name, result), flush=True)
    print(f"written to {arguments.output}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a directory, or 'random' for 160 million random weights")
    parser.add_argument("--random-dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--name", help="what the results call the model; its directory's name by default")
    parser.add_argument("--dataset", default="reference", choices=["reference", "tinystories", "wikitext2"])
    parser.add_argument("--data-dir", type=Path, required=True, help="where the data set lies")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--held-out", type=int, default=100, help="windows for the accuracy; 0 for none")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--goldstick", default=f"{sys.executable} -m goldstick.cli", metavar="COMMAND")
    parser.add_argument("--llm-compressor", metavar="PYTHON", help="a Python that has llm-compressor")
    parser.add_argument("--auto-round", metavar="PYTHON", help="a Python that has auto-round")
    parser.add_argument("--evaluator", metavar="PYTHON", help="a Python that has transformers and compressed-tensors; "
                        "that of llm-compressor by default, else this one")  # fmt: skip
    parser.add_argument("--folder", type=Path, help="where checkpoints are made; a temporary one by default")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file that results are added to")
    return parser.parse_args()


class ToolFailedError(Exception):
    """A tool ended with an error; the other cases go on."""


class Bench:
    """One model and its windows; see the module for what is compared."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, environment: dict[str, str]) -> None:
        self.arguments, self.folder, self.environment = arguments, folder, environment
        self.bare = {name: value for name, value in environment.items() if name != "PYTHONPATH"}  # for the peers
        self.pythons = {"llm-compressor": arguments.llm_compressor, "auto-round": arguments.auto_round}
        self.model = Path(arguments.model)
        self.name = arguments.name or self.model.name
        held_out = arguments.held_out
        if arguments.model == "random":
            self.model, held_out = folder / "random", 0  # there is nothing to be accurate about
            made = [sys.executable, str(SCRIPTS / "random_model.py"), str(self.model), arguments.random_dtype]
            self.call(made, environment)
        self.windows = folder / "windows.safetensors"
        self.calibration = {
            "dataset": arguments.dataset,
            "samples": arguments.samples,
            "seq_len": arguments.seq_len,
            "seed": 0,
        }
        spec = {**self.common(), **self.calibration, "data_dir": str(arguments.data_dir), "held_out": held_out}
        job = [sys.executable, str(SCRIPTS / "windows.py"), self.spec("windows", spec)]
        found = json.loads(self.call(job, environment))
        self.fingerprint, self.evaluates = found["fingerprint"], held_out > 0

    def compare(self, case: Case) -> dict[str, Any]:
        """Alternate the two tools, then evaluate the last checkpoint of each."""
        recipe, python = self.recipe(case), self.pythons[case.peer]
        if recipe is None:
            return {"skipped": f"goldstick has no recipe {case.recipe}"}
        if python is None:
            return {"skipped": f"--{case.peer} was not given"}
        odd = [size for size in self.sides() if size % 32]
        if case.peer == "auto-round" and odd:
            return {"skipped": f"auto-round leaves layers float that have {odd[0]} rows or columns"}
        runs: dict[str, list[dict[str, Any]]] = {"goldstick": [], case.peer: []}
        outputs = {name: self.folder / f"{case.name}-{name}" for name in runs}
        for _ in range(self.arguments.repeats):
            runs["goldstick"].append(self.goldstick(recipe, outputs["goldstick"]))
            runs[case.peer].append(self.peer(case, python, outputs[case.peer]))
        result: dict[str, Any] = {
            "settings": {**self.calibration, "group_size": self.group_size(case), "threads": self.arguments.threads},
            "peer": case.peer,
            "method": case.method,
            "options": case.options,
            "fingerprint": self.fingerprint,
            "runs": runs,
            "ratios": {
                key: round(statistics.median(b[key] / a[key] for a, b in zip(*runs.values(), strict=True)), 3)
                for key in ("quantize_and_write", "process_seconds", "peak_process_bytes", "peak_tree_bytes")
            },
        }
        if self.evaluates:
            result["accuracy"] = self.evaluate(outputs)
        return result

    def recipe(self, case: Case) -> Path | None:
        """The recipe as a file, with the case's scheme; None where goldstick has no such recipe."""
        shown = subprocess.run(
            [*shlex.split(self.arguments.goldstick), "recipes", "show", case.recipe],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if shown.returncode:
            if "No recipe is called" not in shown.stderr:
                raise SystemExit(f"goldstick recipes show {case.recipe} failed:\n{shown.stderr}")
            return None
        path = self.folder / f"{case.name}.yaml"
        path.write_text(re.sub(r"w\da16-g\d+", f"w{case.bits}a16-g{self.arguments.group_size}", shown.stdout))
        return path

    def goldstick(self, recipe: Path, output: Path) -> dict[str, Any]:
        """One run through the command line."""
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self.calibration.items()]
        options += [f"--data-dir={self.arguments.data_dir}", "--group-size-mismatch=channel", "--overwrite", "--json"]
        command = [*shlex.split(self.arguments.goldstick), "quantize", str(self.model), "-o", str(output)]
        job = [*command, f"--recipe={recipe}", *options]
        measured = self.measure(job, f"goldstick {recipe.stem}", self.environment)
        report = json.loads((output / "report.json").read_text())
        calibrated = report["calibration"]
        if calibrated and calibrated["fingerprint"] != self.fingerprint:
            raise SystemExit(f"goldstick calibrated {recipe.stem} on other windows than those given to the peers")
        return {**measured, **report["timing"], "versions": report["environment"]}

    def peer(self, case: Case, python: str, output: Path) -> dict[str, Any]:
        """One run of the other tool."""
        times = self.folder / "times.json"
        spec = {
            **self.common(),
            "output": str(output),
            "times": str(times),
            "method": case.method,
            "options": case.options,
            "bits": case.bits,
            "group_size": self.group_size(case),
            "activation_bits": case.activation_bits,
            "by_row": self.indivisible(self.group_size(case)),
            "batch_size": max(1, TOKENS_PER_BATCH // self.arguments.seq_len),
        }
        job = [python, str(SCRIPTS / RUNNERS[case.peer]), self.spec("peer", spec)]
        measured = self.measure(job, f"{case.peer} {case.name}", self.bare)
        return {**measured, **json.loads(times.read_text())}

    def evaluate(self, outputs: dict[str, Path]) -> dict[str, Any]:
        """What the one evaluator says of each checkpoint."""
        python = self.arguments.evaluator or self.arguments.llm_compressor or sys.executable
        # auto-round puts its checkpoint into a folder of the output in some versions
        checkpoints = {
            name: str(next(iter(sorted(path.rglob("config.json")))).parent) for name, path in outputs.items()
        }
        result = self.folder / "accuracy.json"
        spec = {**self.common(), "checkpoints": checkpoints, "result": str(result)}
        self.call([python, str(SCRIPTS / "perplexity.py"), self.spec("accuracy", spec)], self.bare)
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def measure(self, command: list[str], what: str, environment: dict[str, str]) -> dict[str, Any]:
        """Run a command in a small process that watches it, see memory.py.

        Raises:
            ToolFailedError: It ended with an error.
        """
        log = self.folder / "log.txt"
        wrapper = [sys.executable, str(HERE / "memory.py"), "--measure", *command]
        began = time.perf_counter()
        with log.open("w") as file:
            done = subprocess.run(wrapper, env=environment, stdout=subprocess.PIPE, stderr=file, text=True, check=True)
        found = json.loads(done.stdout)
        if found["returncode"]:
            raise ToolFailedError(f"{what} ended with code {found['returncode']}: {log.read_text()[-3000:]}")
        return {
            "process_seconds": round(time.perf_counter() - began, 2),
            "peak_process_bytes": found["peak_process_bytes"],
            "peak_tree_bytes": found["peak_tree_bytes"],
        }

    def group_size(self, case: Case) -> int | None:
        """None where there is one scale for each row."""
        return None if case.activation_bits else self.arguments.group_size

    def indivisible(self, group_size: int | None) -> list[str]:
        """The kinds of layers of a Llama that get a scale for each row, for groups do not divide their inputs."""
        if not group_size:
            return []
        hidden, heads, _, inner = self.sides()
        inputs = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), hidden)
        inputs |= {"o_proj": heads, "down_proj": inner}
        return [name for name, size in inputs.items() if size % group_size]

    def sides(self) -> tuple[int, int, int, int]:
        """Widths of a Llama's hidden state, of its queries, its keys and the inside of its MLP."""
        config = json.loads((self.model / "config.json").read_text())
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head = config.get("head_dim") or hidden // heads
        return hidden, heads * head, config["num_key_value_heads"] * head, config["intermediate_size"]

    def common(self) -> dict[str, str]:
        """What every script is told."""
        return {"model": str(self.model), "windows": str(self.windows)}

    def spec(self, name: str, content: dict[str, Any]) -> str:
        """Write a script's JSON file; its path."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(content))
        return str(path)

    def call(self, command: list[str], environment: dict[str, str]) -> str:
        """Run a script that is not measured; what it printed last."""
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-6000:]}")
        return done.stdout.strip().rpartition("\n")[2]


def save(path: Path, key: str, result: dict[str, Any]) -> None:
    """Add a result to the file, in the place of an older one of its key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**results, key: result}, indent=1, sort_keys=True) + "\n")


def line(name: str, result: dict[str, Any]) -> str:
    """One line of the table: each tool's figures, then the peer's over goldstick's."""
    for reason in ("skipped", "failed"):
        if reason in result:
            return f"{name:28s} {reason}: {result[reason]}"
    cells = []
    for tool, runs in result["runs"].items():
        seconds, process = (
            statistics.median(run[key] for run in runs) for key in ("quantize_and_write", "process_seconds")
        )
        peak = statistics.median(run["peak_process_bytes"] for run in runs) / 1e6
        accuracy = result.get("accuracy", {}).get(tool)
        quality = f", perplexity {accuracy['perplexity']:.4f}, KL {accuracy['divergence']:.4f}" if accuracy else ""
        cells.append(f"{tool}: {seconds:.1f} s ({process:.1f} s whole), {peak:.0f} MB{quality}")
    ratios = result["ratios"]
    cells.append(
        f"× {ratios['quantize_and_write']:.2f} ({ratios['process_seconds']:.2f} whole), "
        f"memory × {ratios['peak_process_bytes']:.2f} ({ratios['peak_tree_bytes']:.2f} all processes)"
    )
    return f"{name:28s} " + " | ".join(cells)


if __name__ == "__main__":
    main()
