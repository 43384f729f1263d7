"""Every example of the documents runs, in the order in which it is read, and prints what is shown."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import goldstick
from goldstick.jobs.bench import stopwatch
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify as verify_module
from goldstick.recipes.calibration import Calibration
from tests.support.example_pages import (
    BUNDLED,
    OTHERWISE,
    PREPARE,
    WHOLE,
    bundled_with_few_data,
    few_data,
    small_model,
    texts,
)  # fmt: skip
from tests.support.examples import DOCUMENTS, Block, Reader, blocks_of, same_line
from tests.support.proofs import prove_here

DRAWING = (
    "model ──structure──▶ sites ──▶ resolve(recipe) ──▶ algorithm.solve(site, weight) ──▶ edits ──▶ surgery ──▶ "
    "rewritten model"
)
#: What no test runs, by page and first line of the block or by the command, and why.
NOT_RUN = {
    ("README.md", "make quickstart"): "installs; the commands it runs are those of the block behind it",
    ("commands.md", "goldstick export DIR --format awq -o OUT --push-to-hub owner/name"): "needs the hub",
    ("commands.md", "goldstick serve DIR"): "serves until it is stopped; tests/cli/test_serve.py",
    ("commands.md", "goldstick chat DIR"): "talks; tests/cli/test_chat.py",
    ("consumers.md", "make consumers"): "installs vLLM and others, and runs for an hour: tools/consumers",
    ("onnx.md", "pip install 'goldstick[onnx]'"): "installs",
    ("serve.md", "pip install 'goldstick[serve]'"): "installs",
    ("serve.md", "goldstick serve DIR"): "serves until it is stopped; tests/cli/test_serve.py",
    ("serve.md", "goldstick chat DIR"): "talks; tests/cli/test_chat.py",
    ("serve.md", "from openai import OpenAI"): "needs a server, and has one in tests/jobs/serve/test_server.py",
    ("architecture.md", DRAWING): "a drawing",
    ("start.md", "make quickstart"): "installs; the commands it runs are those of the README's next block",
    ("wheel.md", "make wheel"): "compiles for minutes, and installs torch; what it does is tools/wheel.py",
    ("kernels.md", "y = Σ over groups  (Σ u·q − zero · Σ q) · (weight scale · input scale)  + bias"): "a formula",
    ("kernels.md", "OMP_NUM_THREADS=2 python benchmarks/kernels.py --shapes 4096x4096 11008x4096 --threads 2 "
     "--seconds 3"): "times kernels for minutes",
    ("kernels.md", "OMP_NUM_THREADS=1 python -m benchmarks.float_kernels --threads 1 --clock processor --seconds 1"):
        "times kernels for minutes",
    ("kernels.md", "OMP_NUM_THREADS=1 python -m benchmarks.hadamard --threads 1 --clock processor --seconds 0.4"):
        "times kernels for minutes",
    ("kernels.md", "python benchmarks/gpu_kernels.py"): "needs a GPU",
    ("optimize.md", "goldstick bench kernels --shape 4096x4096 --threads 2"): "times layers for a quarter of a minute",
    ("optimize.md", "goldstick bench decode --shape 5632x2048 --blocks 4"): "times networks for a quarter of a minute",
    ("recipes.md", "[fold|rotate-][smoothquant-][awq-][METHOD-][FINISH-][distill-]SCHEME[-down8][-kv8|kv4]"): "grammar",
}  # fmt: skip
#: Pages whose example is a package, installed and used in processes of its own by test_docs.py.
PACKAGES = {"task.md", "writing-a-format.md", "writing-an-algorithm.md"}
SHOWN = {page.name: found for page in DOCUMENTS if (found := blocks_of(page))}
READ = [name for name in SHOWN if name not in PACKAGES]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Layers this small lose more to waking threads than they win."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with little data."""
    folder = tmp_path_factory.mktemp("bundled") / "reference"
    bundled_with_few_data(folder)
    return folder


@pytest.fixture(autouse=True)
def sixteen_bits() -> Iterator[None]:
    """What an example lets inputs be rounded to is of no account for the next page."""
    yield
    goldstick.set_input_bits(16)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers, for what compressed-tensors calls
@pytest.mark.parametrize("name", READ)
def test_every_example_of_a_page_runs(
    name: str, bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_model = importlib.import_module("goldstick.jobs.load.find_model")
    model = small_model(tmp_path / "model", name)
    data = few_data(tmp_path / "data")
    reference = bundled
    if name not in WHOLE:
        reference = Path(shutil.copytree(model, tmp_path / "small-reference"))
        shutil.copytree(data, reference / "data")
    monkeypatch.setattr(find_model, "reference_directory", lambda: reference)
    monkeypatch.setattr(finish, "prove", prove_here)
    monkeypatch.setattr(verify_module, "prove", prove_here)
    monkeypatch.setattr(stopwatch, "beyond_caches", lambda: 1 << 20)
    bench = importlib.import_module("goldstick.jobs.bench.bench")
    of_checkpoint = bench.bench_checkpoint
    monkeypatch.setattr(bench, "bench_checkpoint", lambda *args, **options: of_checkpoint(*args[:2], 0.0, **options))
    monkeypatch.chdir(tmp_path)
    texts(tmp_path)
    reader = Reader(not_run=frozenset(line for page, line in NOT_RUN if page == name))
    if name in PREPARE:
        PREPARE[name](tmp_path, reader.names)
    for block in SHOWN[name]:
        if (name, block.first) not in NOT_RUN:
            reader.does(block)


def test_the_bundled_text_is_as_many_samples_as_the_page_says() -> None:
    settings = Calibration(dataset="reference", samples=128, allow_short=True)
    data = calibration_data(settings, BUNDLED, None)(AutoModelForCausalLM.from_pretrained(BUNDLED))
    page = next(one for one in DOCUMENTS if one.name == "start.md")
    assert f"that text comes along, {len(data.ids)} samples of the 128 that" in page.read_text()


def test_everything_that_is_not_run_is_shown_somewhere() -> None:
    lines = {
        (page, one)
        for page, found in SHOWN.items()
        for block in found
        for one in (block.first, *(_commands(block) if block.language in ("bash", "console") else ()))
    }
    assert sorted(NOT_RUN.keys() - lines) == []
    assert sorted({*OTHERWISE, *PREPARE, *WHOLE, *PACKAGES} - SHOWN.keys()) == []


def _commands(block: Block) -> list[str]:
    return [line.partition("  #")[0].strip() for line, _ in block.commands()]


def test_lines_are_the_same_but_for_the_last_digits_of_fractions() -> None:
    assert same_line("error 1.1e-15, reaches 13.60", " error 1.3e-15, reaches 13.62")
    assert not same_line("outputs reach 13.6", "outputs reach 13.8")
    assert not same_line("256 channels", "255 channels")
    assert not same_line("kv8", "kv8 by head")


def test_an_example_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = Block(page="page.md", line=7, language="console", text="$ goldstick recipes list\nno such line\n")
    with pytest.raises(AssertionError, match="no such line") as caught:
        Reader().does(block)
    assert "page.md:7" in caught.value.__notes__[0]
    with pytest.raises(AssertionError, match=r"page\.md:1: nobody knows how to run 'rust'"):
        Reader().does(Block(page="page.md", line=1, language="rust", text="fn main() {}"))
