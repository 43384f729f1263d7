"""What counts as proven: equal outputs, or close ones with every stored tensor as it was written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import goldstick
from goldstick.errors import CheckpointError
from goldstick.jobs.proof.observation import Observation
from goldstick.jobs.save import finish, result
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("proof_here")


def off_by(relative: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model in memory have given outputs so far from those that the checkpoint gives."""
    plain = result.observe_or_say

    def shifted(*args: Any) -> tuple[Observation | None, str]:
        found, why = plain(*args)
        assert found is not None
        outputs = found.outputs.clone()
        outputs[0] += relative * outputs.abs().max()
        return dataclasses.replace(found, outputs=outputs), why

    monkeypatch.setattr(result, "observe_or_say", shifted)


def test_what_a_network_makes_of_last_bits_is_no_fault_where_all_tensors_are_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off_by(5e-4, monkeypatch)
    saved = goldstick.apply(FAMILIES["llama_gqa"]().eval(), "rtn-w8a16").save(tmp_path / "out")
    proof = json.loads((saved / "goldstick.json").read_text())["proof"]
    assert proof["passed"] and proof["stored"]["passed"] and proof["stored"]["tensors_quantized"] > 0
    assert "every stored tensor is as written" in (saved / "report.html").read_text()


def test_more_than_that_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off_by(5e-3, monkeypatch)
    with pytest.raises(CheckpointError, match="does not give what the model in memory gave"):
        goldstick.apply(FAMILIES["llama_gqa"]().eval(), "rtn-w8a16").save(tmp_path / "out")


def test_close_outputs_are_not_enough_where_a_tensor_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off_by(5e-4, monkeypatch)
    plain = finish.prove

    def damaged(directory: Path, request: Any, expected: Any) -> Any:
        if request["method"] == "files":
            path = directory / "model.safetensors"
            path.write_bytes(path.read_bytes()[:-1] + b"\x55")
        return plain(directory, request, expected)

    monkeypatch.setattr(finish, "prove", damaged)
    with pytest.raises(CheckpointError, match="does not give what the model in memory gave"):
        goldstick.apply(FAMILIES["llama_gqa"]().eval(), "rtn-w8a16").save(tmp_path / "out")


def test_the_callers_autocast_has_no_part_in_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = result.observe_or_say, []

    def watched(*args: Any) -> tuple[Observation | None, str]:
        seen.append(torch.is_autocast_enabled("cpu"))
        return plain(*args)

    monkeypatch.setattr(result, "observe_or_say", watched)
    compressed = goldstick.apply(FAMILIES["llama_gqa"]().eval(), "rtn-w8a16")
    with torch.autocast("cpu", torch.bfloat16):
        compressed.save(tmp_path / "out")
    assert seen == [False]
