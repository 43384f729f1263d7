"""What a run reads is hashed, whichever way it goes, and may not become something else while it reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import goldstick
from goldstick.calibration.block_loop import BlockLoop
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import OutputError, SourceError
from goldstick.jobs.export import export as exporting
from goldstick.jobs.quantize import quantize
from goldstick.jobs.quantize.stream import SourceReader
from tests.support.crash_points import CrashPoints, Died, contents, run, tiny_checkpoint, write_text
from tests.support.pruning_recipe import pruning_recipe

LAST = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of two blocks in several files, to be changed; a text lies beside it."""
    write_text(tmp_path / "text.txt")
    whole = tiny_checkpoint(tmp_path / "whole", 2)
    goldstick.load(whole).save_pretrained(tmp_path / "source", max_shard_size="20KB")
    (whole / "model.safetensors").unlink()
    for sidecar in whole.glob("tokenizer*"):
        shutil.copy(sidecar, tmp_path / "source")
    shutil.rmtree(whole)
    return tmp_path / "source"


def overwrite(source: Path, name: str) -> Path:
    """Change one value of a tensor in place: as many bytes, and the time of the change put back."""
    info = open_tensors(source)[name]
    before = info.file.stat()
    with info.file.open("r+b") as file:
        file.seek(info.start + info.nbytes - 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(info.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = info.file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    return info.file


def recorded(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / "goldstick.json").read_text())["source"]["files"]
    return found


def hashes(directory: Path) -> dict[str, str]:
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in sorted(directory.glob("*.safetensors"))}


def no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "prepare", lambda *_: None)


@pytest.mark.parametrize("stages", ["rtn", "gptq", "rotate"])
@pytest.mark.parametrize("way", ["as planned", "whole in memory"])
def test_the_manifest_names_every_weight_file_of_the_source_with_its_hash(
    stages: str, way: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "whole in memory":
        no_blocks(monkeypatch)
    run(source, tmp_path / "text.txt", tmp_path / "out", stages)
    assert len(hashes(source)) > 3
    assert recorded(tmp_path / "out") == hashes(source)


@pytest.mark.usefixtures("proof_here", "reference_backend")
def test_what_was_pruned_and_trained_names_them_too_and_an_export_names_what_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint(tmp_path / "model", 2)
    write_text(tmp_path / "text.txt")
    recipe = pruning_recipe(tmp_path, 0.25, {"gptq": {"scheme": "w4a16-g16"}})
    goldstick.quantize(folder, recipe, output=tmp_path / "pruned")
    assert recorded(tmp_path / "pruned") == hashes(folder)
    run(folder, tmp_path / "text.txt", tmp_path / "out", "gptq")
    goldstick.export(tmp_path / "out", "native", output=tmp_path / "exported", proof="tensors")
    manifest = json.loads((tmp_path / "exported" / "goldstick.json").read_text())
    assert manifest["source"]["files"] == hashes(folder)
    assert manifest["exported_from"]["files"] == hashes(tmp_path / "out")


@pytest.mark.parametrize("changed", ["model.layers.0.mlp.down_proj.weight", LAST, "model.norm.weight"])
def test_a_run_is_not_gone_on_with_where_weights_changed_that_look_the_same(
    changed: str, source: Path, tmp_path: Path
) -> None:
    """Of the block that is finished, of the one that is not, and outside both."""
    text = tmp_path / "text.txt"
    with pytest.raises(Died), CrashPoints(tmp_path, 120).watching():
        run(source, text, tmp_path / "out", "gptq")
    before = contents(tmp_path / ".out.work")
    assert json.loads(before["journal.json"])["content"]["blocks_done"] == 1
    file = overwrite(source, changed)
    with pytest.raises(OutputError, match=f"made with another source file {file.name}, so"):
        run(source, text, tmp_path / "out", "gptq", resume=True)
    assert contents(tmp_path / ".out.work") == before
    overwrite(source, changed)  # back again
    run(source, text, tmp_path / "out", "gptq", resume=True)
    run(source, text, tmp_path / "fresh", "gptq")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("stages", ["rtn", "gptq"])
def test_a_finished_run_is_not_taken_for_that_of_weights_that_look_the_same(
    stages: str, source: Path, tmp_path: Path
) -> None:
    run(source, tmp_path / "text.txt", tmp_path / "out", stages)
    file = overwrite(source, LAST)
    with pytest.raises(OutputError, match=f"made with another source file {file.name}. Choose"):
        run(source, tmp_path / "text.txt", tmp_path / "out", stages, resume=True)


def test_a_source_that_was_copied_elsewhere_is_the_same_source(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "text.txt", tmp_path / "out", "gptq")
    (source / "config.json").touch()
    moved = source.rename(tmp_path / "moved")
    assert run(moved, tmp_path / "text.txt", tmp_path / "out", "gptq", resume=True).finished_before


def spoil_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, spoil: Callable[[], object]) -> None:
    """Call ``spoil`` right after the first call of a function."""
    real, spoilt = getattr(owner, name), []

    def call(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        if not spoilt:
            spoilt.append(True)
            spoil()
        return found

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("stages", "owner", "name"),
    [
        ("rtn", SourceReader, "read"),
        ("rtn", quantize, "plan_for"),
        ("gptq", quantize, "prepare"),
        ("gptq", BlockLoop, "advance"),
        ("gptq", quantize, "in_memory"),
    ],
    ids=["streamed", "planned", "read", "by blocks", "in memory"],
)
@pytest.mark.parametrize("touched", ["weights", "tokenizer.json"])
def test_a_source_that_is_overwritten_during_the_run_is_an_error_that_names_the_file(
    stages: str, owner: Any, name: str, touched: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_tensors(source)[LAST].file if touched == "weights" else source / touched

    def spoil() -> None:
        if touched == "weights":
            overwrite(source, LAST)
        else:
            file.write_text(file.read_text().replace("cats", "dogs") + " ")

    if name == "plan_for":
        owner = goldstick.api
    elif name == "in_memory":
        no_blocks(monkeypatch)
    spoil_once(monkeypatch, owner, name, spoil)
    with pytest.raises(SourceError, match=f"{file.name} was changed while this run was reading it"):
        run(source, tmp_path / "text.txt", tmp_path / "out", stages)
    kept = [".out.work"] if name == "advance" else []  # a block that was finished before
    assert sorted(path.name for path in tmp_path.iterdir()) == [*kept, "source", "text.txt"]


def test_blocks_that_were_finished_before_a_change_are_kept_for_when_it_is_undone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    real = BlockLoop.advance

    def spoil(loop: BlockLoop, block: str, *rest: Any) -> Any:
        if block.endswith(".1"):
            overwrite(source, LAST)
        return real(loop, block, *rest)

    with monkeypatch.context() as patch, pytest.raises(SourceError, match="was changed while") as caught:
        patch.setattr(BlockLoop, "advance", spoil)
        run(source, text, tmp_path / "out", "gptq")
    assert "1 finished block kept" in str(caught.value.__notes__)
    with pytest.raises(OutputError, match="made with another source file"):
        run(source, text, tmp_path / "out", "gptq", resume=True)
    overwrite(source, LAST)
    run(source, text, tmp_path / "out", "gptq", resume=True)
    run(source, text, tmp_path / "fresh", "gptq")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["prepare", "in_memory"])
def test_a_file_that_is_touched_and_holds_the_same_bytes_is_no_reason_to_stop(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_tensors(source)[LAST].file
    if name == "in_memory":
        no_blocks(monkeypatch)
    spoil_once(monkeypatch, quantize, name, lambda: os.utime(file))
    run(source, tmp_path / "text.txt", tmp_path / "out", "gptq")
    assert recorded(tmp_path / "out") == hashes(source)


@pytest.mark.parametrize("name", ["write_entries", "compare_layers"])
def test_a_checkpoint_that_is_overwritten_while_it_is_exported_is_named(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(source, tmp_path / "text.txt", tmp_path / "made", "rtn")
    packed = LAST + "_packed"
    file = open_tensors(tmp_path / "made")[packed].file
    spoil_once(monkeypatch, exporting, name, lambda: overwrite(tmp_path / "made", packed))
    with pytest.raises(SourceError, match=f"{file.name} was changed while"):
        goldstick.export(tmp_path / "made", "native", output=tmp_path / "out", proof="tensors")
    assert not (tmp_path / "out").exists()
