"""Verify and inspect: a sound checkpoint passes, a spoiled one is found out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from goldstick.errors import CheckpointError, SourceError
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.proof.observation import Observation
from goldstick.jobs.proof.proof import compare
from goldstick.jobs.verify import verify as verify_module
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.proofs import Job, prove_here


@pytest.fixture
def checkpoint(family_job: Callable[[str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(verify_module, "prove", prove_here)
    return Path(shutil.copytree(family_job("llama_gqa").made.directory, tmp_path / "copy"))


def change_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "goldstick.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_sound_checkpoint_passes_in_a_fresh_process(family_job: Callable[[str], Job]) -> None:
    found = verify_checkpoint(family_job("llama_gqa").made.directory)
    assert found["passed"] is True
    assert found["files"] >= 3
    assert "equal to the bit" in found["proof"]


def test_a_copy_elsewhere_passes(checkpoint: Path) -> None:
    assert verify_checkpoint(checkpoint)["passed"] is True


def test_a_flipped_bit_is_found(checkpoint: Path) -> None:
    shard = checkpoint / "model.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors .* has changed since it was written"):
        verify_checkpoint(checkpoint)


def test_a_changed_config_is_found(checkpoint: Path) -> None:
    config = checkpoint / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    with pytest.raises(CheckpointError, match=r"config\.json .* has changed"):
        verify_checkpoint(checkpoint)


def test_a_missing_file_is_found(checkpoint: Path) -> None:
    (checkpoint / "README.md").unlink()
    with pytest.raises(CheckpointError, match=r"README\.md is missing"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "model.gguf"])
def test_weights_that_came_after_the_proof_are_found(checkpoint: Path, name: str) -> None:
    change_manifest(checkpoint, lambda manifest: manifest["proof"].update(method="tensors"))
    assert verify_checkpoint(checkpoint)["passed"] is True
    (checkpoint / name).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="the manifest does not name it"):
        verify_checkpoint(checkpoint)


def test_a_missing_proof_is_found(checkpoint: Path) -> None:
    change_manifest(checkpoint, lambda manifest: manifest.pop("proof"))
    with pytest.raises(CheckpointError, match="holds no proof"):
        verify_checkpoint(checkpoint)


def test_other_outputs_than_those_recorded_are_found(checkpoint: Path) -> None:
    def spoil(manifest: dict[str, Any]) -> None:
        observed = manifest["proof"]["observed"]
        observed["sha256"] = "0" * 64
        observed["samples"][3] += 0.5

    change_manifest(checkpoint, spoil)
    with pytest.raises(CheckpointError, match=r"gives other outputs than when it was proven: 0\.5"):
        verify_checkpoint(checkpoint)


def test_outputs_that_differ_by_rounding_pass_and_are_called_so(checkpoint: Path) -> None:
    def nudge(manifest: dict[str, Any]) -> None:
        observed = manifest["proof"]["observed"]
        observed["sha256"] = "0" * 64
        observed["samples"][3] += 1e-6

    change_manifest(checkpoint, nudge)
    assert "up to rounding" in verify_checkpoint(checkpoint)["proof"]


def test_a_proof_by_tensors_is_carried_by_the_hashes(checkpoint: Path) -> None:
    change_manifest(checkpoint, lambda manifest: manifest["proof"].update(method="tensors"))
    assert "equal hashes" in verify_checkpoint(checkpoint)["proof"]


def test_a_manifest_that_is_missing_or_broken_is_said(checkpoint: Path) -> None:
    (checkpoint / "goldstick.json").write_text("{")
    with pytest.raises(SourceError, match=r"goldstick\.json cannot be read"):
        verify_checkpoint(checkpoint)
    (checkpoint / "goldstick.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no goldstick\.json"):
        verify_checkpoint(checkpoint)


def test_inspect_reads_the_report_and_doubts_one_that_promises_more_than_is_there(checkpoint: Path) -> None:
    report = read_report(checkpoint)
    assert report.proof["passed"] is True
    text = (checkpoint / "report.json").read_text()
    value = json.loads(text)
    value["layers"][0]["bytes_after"] += 10**6
    value["size"]["bytes_after"] += 10**6
    (checkpoint / "report.json").write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="promises"):
        read_report(checkpoint)
    (checkpoint / "report.json").unlink()
    with pytest.raises(CheckpointError, match=r"report\.json"):
        read_report(checkpoint)


@pytest.mark.parametrize(("perplexity", "passed"), [(20.0, True), (20.001, True), (20.1, False), (float("nan"), False)])
def test_a_proof_compares_perplexities_too(perplexity: float, passed: bool) -> None:
    outputs = torch.ones(4)
    expected = Observation(outputs=outputs, perplexity=20.0)
    assert compare(expected, Observation(outputs=outputs, perplexity=perplexity))["passed"] is passed
