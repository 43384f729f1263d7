"""Checkpoints across tools: theirs read by goldstick, goldstick's read by theirs, and whether both answer alike.

``make cross-reading``, which makes the environments of all tools, does this with the reference model:

- *Written here.* goldstick stores it as GPTQ (both versions) and AWQ; plain transformers with GPTQModel reads the
  files, and ``goldstick.accelerate`` takes over what that loaded.
- *Written there.* GPTQModel and AutoGPTQ (with and without act-order), AutoAWQ, llm-compressor, auto-round,
  bitsandbytes and MLX quantize it, and read back what they wrote. goldstick inspects, loads and exports the same files.

Each time the largest difference of the logits is taken, three times. ``difference`` is of the same arithmetic and must
be within 5e-4: GPTQModel's layers multiply codes and scales in float16, also in a model of float32, so goldstick's
weights are dequantized in float16 beside them and AutoGPTQ's, AutoAWQ's and auto-round's, in float32 beside
compressed-tensors', and everything else is float32.
``in_float32`` and ``by_default`` are of goldstick's model in float32 as it is, with its plain backend and with the one
it chooses by itself. All goes to ``results/cross-reading.json`` with every version.

``--miniatures DIRECTORY`` writes the files of these tools anew that the tests read, a few KB each, from a model of one
small block; the tests hold what each tool's own reader answered.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import goldstick
from benchmarks.cross_reading_cases import EXPORTS, THEIRS, WRITTEN_HERE, miniature, reference_in_float16
from goldstick import api
from goldstick.errors import FormatError
from goldstick.hf.checkpoint import open_quantized
from goldstick.nn import QuantizedLinear

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "cross-reading.json"
BOUND = 5e-4
#: Layers of GPTQModel that dequantize in float16 whatever the model computes in.
FLOAT16_LAYERS = (
    "TorchLinear",
    "TorchAtenLinear",
    "TorchCpuAvx512Linear",
    "AwqTorchLinear",
    "TorchAtenAwqLinear",
    "TorchCpuAvx512AwqLinear",
    "float16 weights",
)
WRITERS = {
    "gptqmodel": "write_gptqmodel.py",
    "llm-compressor": "write_llm_compressor.py",
    "autogptq": "write_autogptq.py",
    "autoawq": "write_autoawq.py",
    "auto-round": "write_auto_round.py",
    "bitsandbytes": "write_bitsandbytes.py",
    "mlx": "write_mlx.py",
}
#: The file in which a tool that no reader calls any more says what it answers itself.
ANSWER = "answer.safetensors"


def main() -> None:
    """Run everything, print a line for each checkpoint, write the results."""
    arguments = parse()
    pythons = {"gptqmodel": arguments.gptqmodel, "llm-compressor": arguments.llm_compressor}
    pythons |= dict.fromkeys(("autogptq", "autoawq"), arguments.auto_tools)
    pythons |= {"auto-round": arguments.auto_round, "bitsandbytes": arguments.bitsandbytes, "mlx": arguments.mlx}
    with tempfile.TemporaryDirectory(prefix="goldstick-cross-reading-") as folder:
        work = Work(Path(folder), pythons)
        if arguments.miniatures:
            work.model = miniature(work.folder / "float")
            work.miniatures(arguments.miniatures, [tool for tool in THEIRS if pythons[tool]])
            return
        work.model = reference_in_float16(work.folder / "float")
        results = {"written_here": work.written_here(), "written_there": work.written_there()}
    results["versions"] = {"goldstick": goldstick.__version__, "torch": torch.__version__, **work.versions}
    arguments.output.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(f"written to {arguments.output}")
    apart = [
        f"{name}: {case['difference']:.3g}"
        for part in ("written_here", "written_there")
        for name, case in results[part].items()
        if max(case["difference"], case.get("accelerated_difference", 0.0)) > BOUND
    ]
    if apart:
        raise SystemExit(f"Further apart than {BOUND}: {', '.join(apart)}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tools = {
        "--gptqmodel": "GPTQModel and optimum",
        "--llm-compressor": "llm-compressor",
        "--auto-tools": "AutoGPTQ and AutoAWQ",
        "--auto-round": "auto-round",
        "--bitsandbytes": "bitsandbytes",
        "--mlx": "mlx-lm and MLX for a CPU",
    }
    for option, holds in tools.items():
        parser.add_argument(option, metavar="PYTHON", help=f"a Python that has {holds}")
    parser.add_argument(
        "--miniatures", type=Path, metavar="DIRECTORY", help="write the tests' files of the tools given there, and end"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    missing = [option for option in tools if getattr(arguments, option[2:].replace("-", "_")) is None]
    if missing and not arguments.miniatures:
        parser.error(f"all tools are compared; {', '.join(missing)} is missing")
    return arguments


def on_float16_weights(checkpoint: Path) -> Any:
    """A float32 model whose linear layers hold what goldstick's give in float16."""
    model: Any = goldstick.load(checkpoint, dtype=torch.float16)
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear):
            layer = torch.nn.Linear(module.in_features, module.out_features, bias=False)
            layer.weight.data = module.weight.float()
            model.set_submodule(name, layer)
    return torch.nn.Module.float(model)  # transformers refuses it for quantized models


class Work:
    """A folder with one float model, the tokens shown to it, and what was made of it."""

    def __init__(self, folder: Path, pythons: dict[str, str]) -> None:
        self.folder, self.pythons = folder, pythons
        self.model = folder
        self.versions: dict[str, dict[str, str]] = {}

    def tokens(self) -> Path:
        """Random tokens: ``ids`` to compare logits on, ``calibration`` for methods that look at data."""
        count = json.loads((self.model / "config.json").read_text())["vocab_size"]
        generator = torch.Generator().manual_seed(0)
        path = self.folder / "ids.safetensors"
        sizes = {"ids": (2, 24), "calibration": (16, 64)}
        save_file({name: torch.randint(count, size, generator=generator) for name, size in sizes.items()}, path)
        return path

    def write_here(self, names: Iterable[str]) -> dict[str, Path]:
        """goldstick's files of these names."""
        made = {}
        for name in names:
            scheme, format_ = WRITTEN_HERE[name]
            made[name] = self.folder / f"here-{name}"
            recipe = {"stages": [{"rtn": {"scheme": scheme}}], "export": {"format": format_}}
            goldstick.quantize(self.model, recipe, output=made[name], proof="tensors")
        return made

    def read_there(self, made: dict[str, Path]) -> dict[str, dict[str, Any]]:
        """goldstick's files, read by GPTQModel through transformers."""
        theirs, layers = self.logits("gptqmodel", made)
        return {name: self.compared(name, path, theirs[name], layers[name]) for name, path in made.items()}

    def written_here(self) -> dict[str, Any]:
        """goldstick's files, read by GPTQModel, and what ``accelerate`` makes of what that loaded."""
        made = self.write_here(WRITTEN_HERE)
        results = self.read_there(made)
        accelerated, replaced = self.logits("gptqmodel", made, "run_accelerated.py")
        for name, path in made.items():
            results[name]["accelerated"] = replaced[name]
            if name in accelerated:
                apart = self.apart(goldstick.load(path, dtype=torch.float32), accelerated[name], "reference")
                results[name]["accelerated_difference"] = apart
        return results

    def written_there(self) -> dict[str, Any]:
        """The tools' files, read by goldstick and by themselves."""
        results = {}
        for tool in THEIRS:
            made = self.let_write(tool)
            theirs, layers = self.answers(tool, made)
            for name, path in made.items():
                results[f"{tool} {name}"] = {
                    **self.compared(f"{tool} {name}", path, theirs[name], layers[name]),
                    "schemes": sorted({layer.scheme.label for layer in open_quantized(path).stored.layers}),
                    "exports": {format_: self.exported(path, format_) for format_ in EXPORTS},
                }
        return results

    def miniatures(self, output: Path, tools: Iterable[str]) -> None:
        """The files of tools with what their own readers answer, for the tests."""
        for tool in tools:
            made = self.let_write(tool)
            theirs, _ = self.answers(tool, made)
            for name, path in made.items():
                target = output / f"{tool}-{name}"
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir(parents=True)
                for file in [path / "config.json", *path.glob("*model*.safetensors")]:
                    shutil.copyfile(file, target / file.name)
                ids = load_file(self.tokens())["ids"]
                save_file({"ids": ids, "logits": theirs[name]}, target / ANSWER)

    def let_write(self, tool: str) -> dict[str, Path]:
        """Every case of a tool, written by it."""
        output = self.folder / tool
        spec = {"model": str(self.model), "ids": str(self.tokens()), "output": str(output), "cases": THEIRS[tool]}
        self.call(tool, WRITERS[tool], spec)
        return {name: output / name for name in THEIRS[tool]}

    def answers(self, tool: str, made: dict[str, Path]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What a tool answers on its own files, through its reader or as it noted beside them, and its layers."""
        noted = {name: path / ANSWER for name, path in made.items() if (path / ANSWER).is_file()}
        if not noted:
            return self.logits(tool, made)
        for file in noted.values():
            with safe_open(file, "pt") as answer:
                self.versions[tool] = dict(answer.metadata())
        weights = "float32 weights" if tool in ("bitsandbytes", "mlx") else "float16 weights"
        return {name: load_file(file)["logits"] for name, file in noted.items()}, dict.fromkeys(made, weights)

    def logits(
        self, tool: str, checkpoints: dict[str, Path], script: str = "logits.py"
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What a tool's reader answers, and the layers it ran on."""
        files = {"logits": self.folder / "logits.safetensors", "result": self.folder / "result.json"}
        spec = {
            "ids": str(self.tokens()),
            "checkpoints": {name: str(path) for name, path in checkpoints.items()},
            **{key: str(file) for key, file in files.items()},
        }
        self.call(tool, script, spec)
        found = json.loads(files["result"].read_text())
        self.versions |= {tool: found["versions"]} if "versions" in found else {}
        return load_file(files["logits"]), found["layers"]

    def compared(self, name: str, checkpoint: Path, theirs: Tensor, layer: str) -> dict[str, Any]:
        """How far goldstick's answer is from the other tool's."""
        model = goldstick.load(checkpoint, dtype=torch.float32)
        found: dict[str, Any] = {"in_float32": self.apart(model, theirs, "reference")}
        found |= {"by_default": self.apart(model, theirs, ""), "difference": found["in_float32"]}
        if layer in FLOAT16_LAYERS:
            found["difference"] = self.apart(on_float16_weights(checkpoint), theirs, "reference")
        found |= {"largest_logit": float(theirs.abs().max()), "their_layer": layer}
        print(f"{name:40} {found['difference']:.2e}, in float32 {found['in_float32']:.2e}", flush=True)
        return found

    def apart(self, model: Any, theirs: Tensor, backend: str) -> float:
        """The largest difference of a model's logits, with a backend, from others."""
        os.environ["GOLDSTICK_BACKEND"] = backend
        with torch.inference_mode():
            return float((model(input_ids=load_file(self.tokens())["ids"]).logits - theirs).abs().max())

    def exported(self, checkpoint: Path, format_: str) -> str:
        """What becomes of an export: its proof, or why it is refused."""
        output = self.folder / "exported"
        shutil.rmtree(output, ignore_errors=True)
        try:
            proof = api.export(checkpoint, format_, output=output).report.proof
        except (FormatError, goldstick.GoldstickError) as error:
            return str(error).replace(str(checkpoint), checkpoint.name)
        return f"outputs differ by {proof['max_abs_difference']}"

    def call(self, tool: str, script: str, spec: dict[str, Any]) -> None:
        """Run a script by a tool's Python."""
        path = self.folder / "spec.json"
        path.write_text(json.dumps(spec))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment |= {"PYTHONPATH": str(HERE.parent), "GOLDSTICK_BACKEND": "reference"}
        job = [self.pythons[tool], str(HERE / "peers" / script), str(path)]
        done = subprocess.run(job, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{tool}: {script} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")


if __name__ == "__main__":
    main()
