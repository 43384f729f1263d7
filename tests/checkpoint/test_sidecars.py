"""What is carried on beside weights: also the modules that sentence-transformers keeps in folders of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goldstick.checkpoint.sidecars import is_inside, sidecars_of
from goldstick.core.notices import LeftOutWarning
from goldstick.errors import SourceError

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
]
FILES = [
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
]


def encoder(directory: Path, modules: object = MODULES) -> Path:
    for name in FILES:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
    (directory / "modules.json").write_text(json.dumps(modules))
    for name in ("config.json", "4_Other/config.json", "1_Pooling/README.md"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("not carried on")
    return directory


def test_the_modules_after_a_model_are_carried_on_with_the_files_that_name_them(tmp_path: Path) -> None:
    found = sidecars_of(encoder(tmp_path))
    assert list(found) == FILES
    assert found["2_Dense/model.safetensors"].read_text() == "2_Dense/model.safetensors"


def test_folders_of_the_hubs_cache_are_followed_to_its_blobs_and_no_further(tmp_path: Path) -> None:
    made = encoder(tmp_path / "made")
    snapshot, blobs = tmp_path / "cache" / "snapshots" / "abc", tmp_path / "cache" / "blobs"
    blobs.mkdir(parents=True)
    for number, name in enumerate(FILES):
        (blobs / str(number)).write_bytes((made / name).read_bytes())
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (3 + name.count("/") - 1)
        (snapshot / name).symlink_to(f"{up}blobs/{number}")
    assert list(sidecars_of(snapshot)) == FILES
    (tmp_path / "secret.json").write_text("{}")
    (snapshot / "1_Pooling" / "secret.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(SourceError, match="link out of its directory"):
        sidecars_of(snapshot)


def test_a_folder_that_is_a_link_elsewhere_is_refused(tmp_path: Path) -> None:
    made = encoder(tmp_path / "made")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "config.json").write_text("{}")
    (made / "3_Normalize").symlink_to(tmp_path / "private")
    with pytest.raises(SourceError, match="link out of its directory"):
        sidecars_of(made)


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "1_Pooling/../..", "a//b", "a/" + "b" * 300])
def test_a_module_that_lies_elsewhere_is_refused(path: str, tmp_path: Path) -> None:
    assert not is_inside(path)
    with pytest.raises(SourceError, match="lies elsewhere"):
        sidecars_of(encoder(tmp_path, [{"type": "x.Pooling", "path": path}]))


@pytest.mark.parametrize("modules", [3, ["a"], [{"path": "1_Pooling"}], {"path": "1_Pooling"}])
def test_a_list_of_modules_that_is_none_is_an_error_that_names_the_file(modules: object, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"modules\.json is no list of modules"):
        sidecars_of(encoder(tmp_path, modules))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling.py"])
def test_what_could_run_code_stays_behind_and_is_named(name: str, tmp_path: Path) -> None:
    (encoder(tmp_path) / "2_Dense" / name).write_text("")
    with pytest.warns(LeftOutWarning, match=f"2_Dense/{name}"):
        assert list(sidecars_of(tmp_path)) == FILES
