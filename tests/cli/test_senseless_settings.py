"""Options and variables of which nothing can come end a command at once, with their name, their value and a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from goldstick.cli.environment import _CHOICES
from goldstick.kernels import BACKENDS
from tests.support.commands import Refused, run

HUGE = str(2**70)

VARIABLES = [
    ({"GOLDSTICK_ISA": "zzz"}, ("GOLDSTICK_ISA is 'zzz'", "avx2", "unset it")),
    ({"GOLDSTICK_BACKEND": "gpu"}, ("GOLDSTICK_BACKEND is 'gpu'", "reference", "unset it")),
    ({"OMP_NUM_THREADS": "abc"}, ("OMP_NUM_THREADS is 'abc'", "unset it")),
    ({"OMP_NUM_THREADS": "-1"}, ("OMP_NUM_THREADS is '-1'", "unset it")),
    ({"MKL_NUM_THREADS": "0"}, ("MKL_NUM_THREADS is '0'", "unset it")),
    ({"RANK": "0", "WORLD_SIZE": "abc"}, ("WORLD_SIZE is 'abc'", "unset RANK and WORLD_SIZE")),
    ({"RANK": "x", "WORLD_SIZE": "2"}, ("RANK is 'x'", "unset RANK and WORLD_SIZE")),
    ({"RANK": "2", "WORLD_SIZE": "2"}, ("RANK is 2 and WORLD_SIZE 2", "unset RANK and WORLD_SIZE")),
    ({"RANK": "1", "WORLD_SIZE": "2"}, ("RANK=1 and WORLD_SIZE=2", "MASTER_ADDR", "unset RANK and WORLD_SIZE")),
    (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "x"},
        ("MASTER_PORT is 'x'", "unset RANK and WORLD_SIZE"),
    ),
]


@pytest.mark.parametrize(("variables", "says"), VARIABLES, ids=lambda part: " ".join(part) if part else "")
def test_a_variable_that_means_nothing(
    variables: dict[str, str],
    says: tuple[str, ...],
    pristine: Path,
    tmp_path: Path,
    assert_refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = ("quantize", str(pristine), "-o", str(tmp_path / "out"), "-r", "rtn-w4a16-g32")
    assert_refused(*arguments, code=2, says=says)


def test_several_processes_that_would_each_measure_the_same(
    tmp_path: Path, assert_refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    found = str(tmp_path / "found.gguf")
    assert_refused("importance", "reference", "-o", found, code=2, says=("importance' is not divided", "one process"))


def test_instructions_that_the_processor_does_not_have(
    made: Path, assert_refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks() -> str:
        raise ValueError("GOLDSTICK_ISA asks for amx, which this processor does not have")

    monkeypatch.setattr("goldstick.kernels.cpu._C.isa", lacks)
    assert_refused("verify", str(made), code=2, says=("GOLDSTICK_ISA asks for amx", "unset it"))


def test_variables_of_other_launchers_are_nobody_s_business_where_they_say_of_one_process(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from goldstick.core.processes import process_count, rank

    for variables in ({"RANK": "3"}, {"WORLD_SIZE": "abc"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"LOCAL_RANK": "abc"}):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert (process_count(), rank()) == (1, 0)


def test_the_backends_that_may_be_named_are_those_there_are() -> None:
    assert sorted(_CHOICES["GOLDSTICK_BACKEND"]) == sorted(backend.name for backend in BACKENDS)


QUANTIZE = "quantize {model} -o {here}/out -r rtn-w4a16-g32 "
GPTQ = "quantize {model} -o {here}/out -r gptq-w4a16-g32 --dataset {text} --samples 2 --seq-len 8 "
OPTIONS = [
    (QUANTIZE + "--threads 100000", "--threads"),
    (QUANTIZE + "--threads 0", "--threads"),
    ("evaluate {model} --tasks text --threads 100000", "--threads"),
    ("compare {model} {model} --threads 100000", "--threads"),
    ("sensitivity {model} --threads 100000", "--threads"),
    ("bench kernels --threads 100000", "--threads"),
    (GPTQ + f"--seed {HUGE}", "--seed"),
    (GPTQ + f"--seed -{HUGE}", "--seed"),
    (QUANTIZE + "--max-memory " + "9" * 400, "--max-memory"),
    (QUANTIZE + "--max-memory lots", "--max-memory"),
    *((QUANTIZE + f"--device {name}", f"device {name!r}") for name in ("foo", "cuda:abc", "mps", "meta", "hpu", "xla")),
    ("bench kernels --seconds 0 --shape 10000000x10000000", "--shape"),
    ("bench decode --seconds 0 --shape 10000000x10000000", "--shape"),
    ("bench kernels --seconds 0 --shape ²x²", "--shape"),
    ("bench kernels --seconds 0 --shape " + "9" * 5000 + "x4", "--shape"),
    (f"bench kernels --seconds 0 --tokens {HUGE}", "--tokens"),
    (f"bench decode --seconds 0 --blocks {HUGE}", "--blocks"),
    (f"generate reference --prompt a --max-new-tokens {HUGE}", "max_new_tokens"),
    ("sensitivity {model} --bits 99", "bits"),
]


@pytest.mark.parametrize(("command", "named"), OPTIONS, ids=lambda part: part[-40:])
def test_an_option_that_nothing_can_come_of(command: str, named: str, pristine: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c " * 30)
    result = run(*command.format(model=pristine, here=tmp_path, text=text).split())
    assert result.exit_code == 2, result.output
    assert named in result.stderr
    assert "did not expect" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("option", ["--samples", "--seq-len", "--limit"])
def test_a_number_beyond_all_data_is_no_crash(option: str, pristine: Path, tmp_path: Path) -> None:
    if option == "--limit":
        result = run("evaluate", "reference", "--tasks", "boolq", "--limit", HUGE, "--data-dir", str(tmp_path))
    else:
        text = tmp_path / "text.txt"
        text.write_text("a b c " * 30)
        result = run("compare", "reference", "reference", "--dataset", str(text), option, HUGE)
    assert "did not expect" not in result.output


def test_doctor_without_a_checkpoint_shows_what_goldstick_runs_on() -> None:
    shown = run("doctor")
    assert shown.exit_code == 0
    assert "kernels: compiled, using " in shown.stdout
    assert "threads: 1 of " in shown.stdout
    found = json.loads(run("doctor", "--json").stdout)
    assert found["instructions"] in _CHOICES["GOLDSTICK_ISA"]
    assert found["versions"]["goldstick"]


WITHOUT_KERNELS = """
import sys
sys.modules["goldstick.kernels.cpu._C"] = None
from goldstick.cli import main
main(sys.argv[1:])
"""


def test_missing_kernels_are_said_once_with_the_remedy() -> None:
    command = [sys.executable, "-c", WITHOUT_KERNELS, "doctor"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("note: The compiled kernels of goldstick cannot be imported")
    assert "C++17 compiler" in done.stderr
    assert "kernels: the compiled kernels cannot be imported" in done.stdout


def test_the_version_is_a_line_and_imports_nothing_heavy() -> None:
    script = "import sys\nfrom goldstick.cli import main\ntry:\n    main(['--version'])\nfinally:\n    "
    script += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert ", version " in first
    assert second == "False"
