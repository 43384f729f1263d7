"""``doctor --for``: a sound checkpoint is taken by the runtimes that read its format, and refused by the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldstick.cli import main
from tests.support.runtime_checkpoints import Workshop


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("for"))


def test_the_command_says_where_it_runs_and_its_code_whether_it_does(workshop: Workshop) -> None:
    directory = str(workshop.quantized("llama", "w4a16-g128", "gptq"))
    taken = CliRunner().invoke(main, ["doctor", directory, "--for", "vllm"])
    assert taken.exit_code == 0, taken.output
    assert "vllm 0.32.0: loads it" in taken.stdout
    assert "  NVIDIA GPU: compute capability 7.5 or later" in taken.stdout
    refused = CliRunner().invoke(main, ["doctor", directory, "--for", "llama.cpp"])
    assert refused.exit_code == 1
    assert "llama.cpp 0c1e570 (2026-10-01): does not load it" in refused.stdout


def test_json_holds_the_verdict(workshop: Workshop) -> None:
    directory = str(workshop.quantized("llama", "w4a16-g128", "gptq"))
    printed = CliRunner().invoke(main, ["doctor", directory, "--for", "sglang", "--json"]).stdout
    verdict = json.loads(printed)["verdict"]
    assert (verdict["runtime"], verdict["version"], verdict["loads"]) == ("sglang", "0.5.23", True)
    assert verdict["hardware"]["NVIDIA GPU"] == "compute capability 8.0 or later"
    assert "AMD GPU" in verdict["not_on"]
    assert json.loads(CliRunner().invoke(main, ["doctor", directory, "--json"]).stdout)["verdict"] is None


def test_a_runtime_that_is_not_known_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["doctor", str(tmp_path), "--for", "nothing"])
    assert found.exit_code == 2
    assert "vllm" in found.stderr
