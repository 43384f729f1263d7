"""A GGUF model in several files: written and read as llama.cpp splits one, and refused where a file is not its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import goldstick
from goldstick import api
from goldstick.checkpoint.gguf.shards import gguf_file_in, read_model, shard_name, shards_of
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import FormatError, GoldstickError, RecipeError, SourceError
from goldstick.hf.source import open_source
from goldstick.jobs.save import finish
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.gguf_models import GGUF_MODELS
from tests.support.proofs import prove_here

IDS = torch.arange(3, 19)[None]


def quantized(source: Path, output: Path, **export: Any) -> Path:
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}], "export": {"format": "gguf", **export}}
    goldstick.quantize(source, recipe, output=output, proof="tensors")
    return output


@torch.no_grad()
def logits_of(directory: Path) -> Tensor:
    logits: Tensor = goldstick.load(directory, dtype=torch.float32)(IDS).logits
    return logits


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A mixture of experts whole and in four files; tensors of its experts lie in pieces that come one by one."""
    folder = tmp_path_factory.mktemp("made")
    GGUF_MODELS["mixtral"]().to(torch.bfloat16).save_pretrained(folder / "float")
    size = sum(info.nbytes for info in open_source(folder / "float").tensors.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        whole = quantized(folder / "float", folder / "whole")
        patch.setattr("goldstick.checkpoint.gguf.shards.MAX_SHARD_SIZE", size // 6)
        parts = quantized(folder / "float", folder / "parts")
    return {"float": folder / "float", "whole": whole, "parts": parts}


def test_several_files_hold_the_tensors_of_one(made: dict[str, Path]) -> None:
    found = sorted(file.name for file in made["parts"].glob("*.gguf"))
    assert len(found) > 2 and found[0] == shard_name("model", 0, len(found))
    whole, parts = open_tensors(made["whole"]), open_tensors(made["parts"])
    assert set(whole) == set(parts)
    assert all(torch.equal(whole[name].read(), parts[name].read()) for name in whole)
    logits = [logits_of(made[name]) for name in ("whole", "parts")]
    assert torch.equal(*logits)
    verify_checkpoint(made["parts"])
    assert not [finding for finding in api.doctor(made["parts"]).findings if finding.severity == "fault"]


def test_the_metadata_are_those_that_llama_cpp_asks_for(made: dict[str, Path]) -> None:
    files = shards_of(gguf_file_in(made["parts"]) or Path())
    readers = [gguf.GGUFReader(file) for file in files]
    total = sum(len(reader.tensors) for reader in readers)
    for number, reader in enumerate(readers):
        fields = {key: field for key, field in reader.fields.items() if key.startswith("split.")}
        kinds = {key: field.types for key, field in fields.items()}
        assert kinds == {
            "split.no": [gguf.GGUFValueType.UINT16],
            "split.count": [gguf.GGUFValueType.UINT16],
            "split.tensors.count": [gguf.GGUFValueType.INT32],
        }
        assert [fields[key].contents() for key in ("split.no", "split.count", "split.tensors.count")] == [
            number, len(files), total,
        ]  # fmt: skip
    keys = set(gguf.GGUFReader(made["whole"] / "model.gguf").fields)
    assert keys < set(readers[0].fields)


def test_files_of_another_tool_are_a_model_by_any_of_them_or_by_their_folder(
    made: dict[str, Path], tmp_path: Path
) -> None:
    files = shards_of(gguf_file_in(made["parts"]) or Path())
    folder = tmp_path / "fetched"
    folder.mkdir()
    for number, file in enumerate(files):
        shutil.copy(file, folder / shard_name("mixtral-q8", number, len(files)))
    expected = logits_of(made["whole"])
    for path in (folder, *(folder / shard_name("mixtral-q8", number, len(files)) for number in (0, 1))):
        assert torch.equal(logits_of(path), expected)


def test_links_of_a_cache_are_followed(made: dict[str, Path], tmp_path: Path) -> None:
    files = shards_of(gguf_file_in(made["parts"]) or Path())
    snapshot = tmp_path / "snapshots" / "abc"
    (tmp_path / "blobs").mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(files):
        shutil.copy(file, tmp_path / "blobs" / f"{number:064x}")
        (snapshot / file.name).symlink_to(tmp_path / "blobs" / f"{number:064x}")
    assert read_model(snapshot / files[0].name).tensors.keys() == read_model(files[0]).tensors.keys()
    assert torch.equal(logits_of(snapshot), logits_of(made["whole"]))


@pytest.mark.parametrize("config", [True, False])
def test_other_links_out_of_a_directory_are_refused(config: bool, made: dict[str, Path], tmp_path: Path) -> None:
    """Of a directory that goldstick wrote, and of one that holds another tool's file alone."""
    folder = tmp_path / "linked"
    shutil.copytree(made["parts"], folder, ignore=None if config else shutil.ignore_patterns("config.json"))
    file = shards_of(gguf_file_in(folder) or Path())[1]
    file.rename(tmp_path / "elsewhere.gguf")
    file.symlink_to(tmp_path / "elsewhere.gguf")
    with pytest.raises(SourceError, match=rf"{file.name} is a link out of its directory, to .*elsewhere\.gguf"):
        logits_of(folder)
    whole = tmp_path / "named.gguf"
    whole.symlink_to(made["whole"] / "model.gguf")
    assert torch.equal(logits_of(whole), logits_of(made["whole"])), "a link that is named itself is meant"


def missing(folder: Path, files: list[Path]) -> None:
    files[1].unlink()


def exchanged(folder: Path, files: list[Path]) -> None:
    files[1].rename(folder / "kept")
    files[2].rename(files[1])
    (folder / "kept").rename(files[2])


def renamed(folder: Path, files: list[Path]) -> None:
    for file in files[1:]:
        file.unlink()
    files[0].rename(folder / "model.gguf")


def counted_otherwise(folder: Path, files: list[Path]) -> None:
    files[-1].unlink()
    for number, file in enumerate(files[:-1]):
        file.rename(folder / shard_name("model", number, len(files) - 1))


@pytest.mark.parametrize(
    "spoil, words",
    [
        (missing, "is not beside it"),
        (exchanged, "as its name says"),
        (renamed, "by its name one of 1"),
        (counted_otherwise, "by its name one of"),
    ],
)
def test_a_file_that_is_not_its_own_is_refused(spoil: Any, words: str, made: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made["parts"], tmp_path / "spoiled"))
    spoil(folder, [folder / file.name for file in shards_of(gguf_file_in(made["parts"]) or Path())])
    with pytest.raises(FormatError, match=words):
        read_model(gguf_file_in(folder) or Path())
    with pytest.raises(GoldstickError, match=words):
        goldstick.load(folder)


def test_a_limit_below_a_megabyte_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="max_shard_size"):
        quantized(made["float"], tmp_path / "out", max_shard_size=1000)


def test_it_is_a_source_and_exported_to_a_whole_file(made: dict[str, Path], tmp_path: Path) -> None:
    goldstick.export(made["parts"], "native", output=tmp_path / "native", proof="tensors")
    assert "model.safetensors" in [file.name for file in (tmp_path / "native").iterdir()]
    assert load_file(tmp_path / "native" / "model.safetensors")
    assert open_source(made["parts"]).quantized_as == open_source(made["whole"]).quantized_as
