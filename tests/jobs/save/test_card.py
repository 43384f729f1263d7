"""The model card, and pushing a checkpoint to the hub, with a hub that is not there."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml
from click.testing import CliRunner
from huggingface_hub import constants

import goldstick
from goldstick.checkpoint.hub import check_repository, push_to_hub
from goldstick.cli import main
from goldstick.core.local_paths import last_part
from goldstick.errors import OutputError, UsageError
from goldstick.formats import FORMATS
from goldstick.jobs.load.front_matter import card_remarks
from goldstick.jobs.save.card import model_card
from goldstick.jobs.save.finish import add_accuracy
from goldstick.recipes import Recipe
from tests.support.other_tools import FOLDER
from tests.support.time_limit import within

RECIPE = Recipe.load({"stages": [{"rtn": {"scheme": "w4a16-g32"}}]})
LLAMA = {"architectures": ["LlamaForCausalLM"]}


def card(base_model: str, tmp_path: Path, former: str | None = None, format_: str = "awq") -> dict[str, Any]:
    if former is not None:
        (tmp_path / "README.md").write_text(former)
    text = model_card(base_model, RECIPE, FORMATS[format_], LLAMA, source=tmp_path)
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_the_front_matter_names_the_base_model_and_carries_the_licence_on(tmp_path: Path) -> None:
    former = "---\nlicense: other\nlicense_name: llama3\nlanguage:\n- en\ndatasets:\n- secret\n---\n# Llama\n"
    assert card("meta/Llama-3-8B", tmp_path, former) == {
        "base_model": "meta/Llama-3-8B",
        "base_model_relation": "quantized",
        "language": ["en"],
        "library_name": "transformers",
        "license": "other",
        "license_name": "llama3",
        "pipeline_tag": "text-generation",
        "tags": ["goldstick", "awq", "rtn"],
    }


@pytest.mark.parametrize("former", [None, "no front matter", "---\nlicense: [\n---\n", "---\n- a list\n---\n"])
def test_a_base_model_that_is_no_hub_id_is_left_out_for_hubs_refuse_it(former: str | None, tmp_path: Path) -> None:
    found = card("./Llama-3-8B", tmp_path, former)
    assert "base_model" not in found
    assert "license" not in found
    assert found["tags"] == ["goldstick", "awq", "rtn"]


def test_an_export_keeps_the_base_model_of_the_card_it_was_made_from(tmp_path: Path) -> None:
    former = "---\nbase_model: meta/Llama-3-8B\nbase_model_relation: quantized\n---\n"
    assert card("checkpoint", tmp_path, former)["base_model"] == "meta/Llama-3-8B"
    assert "base_model" not in card("checkpoint", tmp_path, former.replace("quantized", "finetune"))


def test_the_accuracy_before_and_after_goes_into_the_card_and_its_hash_into_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A model\n")
    (tmp_path / "goldstick.json").write_text(json.dumps({"files": {"README.md": "old", "config.json": "x"}}))
    result = {"protocol": {"windows": 4}, "n": 100, "details": {}}
    evaluation = {
        side: {"tasks": {"wikitext2": {**result, "metrics": {"perplexity": value}}}}
        for side, value in (("before", 5.0), ("after", 5.25))
    }
    add_accuracy(tmp_path, evaluation)
    text = (tmp_path / "README.md").read_text()
    assert "| wikitext2 | perplexity, lower is better | 5 | 5.25 | +0.25 |" in text
    files = json.loads((tmp_path / "goldstick.json").read_text())["files"]
    assert files == {"README.md": hashlib.sha256(text.encode()).hexdigest(), "config.json": "x"}


BOMB = "".join(
    f"{name}: &{name} [{', '.join([f'*{former}'] * 9)}]\n" for former, name in zip("abcdefgh", "bcdefghi", strict=True)
)

UNREADABLE = {
    "a date that is none": "license: 2024-13-45",
    "a date": "license: 2024-01-01",
    "a number": "license: 5",
    "a number of 5,000 digits": "license: " + "9" * 5000,
    "a number in base 60": "license: " + "1:" * 5000 + "1",
    "no boolean": "license: !!bool x",
    "no number": "license: !!int ''",
    "no timestamp": "license: !!timestamp x",
    "code": "license: !!python/object/apply:os.system [ls]",
    "an alias bomb": f"datasets: &a [lol]\n{BOMB}license: *i",
    "a merge bomb": "license:\n  - &a {k: v}\n" + "  - &b {<<: [*a, *a, *a, *a]}\n",
    "deep lists": "license: " + "[" * 5000 + "]" * 5000,
    "deep blocks": "license:\n" + "\n".join(" " * depth + "-" for depth in range(1, 900)),
    "an open bracket": "license: [",
    "a table": "license: {mit: true}",
    "a language that is a table": "language: {en: 1}",
    "languages that are numbers": "language: [1, 2]",
    "an escape of half a character": 'license: "\\ud800"',
    "a control character": 'license: "\\0"',
    "a long name": "license: " + "x" * 2000,
    "a base model that is a list": "base_model_relation: quantized\nbase_model: [a/b]",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_carried_on_is_left_out_with_a_warning_and_the_card_is_written(
    name: str, tmp_path: Path
) -> None:
    with within(seconds=5):
        found = card("checkpoint", tmp_path, f"---\ntitle: x\n{UNREADABLE[name]}\nlicense_name: kept\n---\n# Model\n")
        (remark,) = card_remarks(tmp_path)
    assert found == {
        "library_name": "transformers",
        "license_name": "kept",
        "pipeline_tag": "text-generation",
        "tags": ["goldstick", "awq", "rtn"],
    }
    assert str(tmp_path / "README.md") in remark or "front matter" in remark


def test_a_card_that_is_no_text_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"---\nlicense: \xff\n---\n")
    assert "license" not in card("checkpoint", tmp_path)
    assert "cannot be read" in card_remarks(tmp_path)[0]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf---\r\nlicense: mit\r\nlanguage:\r\n- en\r\n- no\r\n---\r\n",
        b"---\nmodel-index: *nothing\ndate: 2024-13-45\nlicense: mit\nlanguage: [en, 'no']\n---\n"
        + "é".encode() * 1_500_000,
        b"---\n5: [\nlicense: mit\n\nlanguage:\n  - en\n\n  - 'no'\n---\n",
    ],
)
def test_only_what_is_carried_on_is_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(content.replace(b"- no\r", b"- 'no'\r"))
    found = card("checkpoint", tmp_path)
    assert (found["license"], found["language"], card_remarks(tmp_path)) == ("mit", ["en", "no"], [])


@pytest.mark.parametrize("architectures", [5, "LlamaForCausalLM", {"a": 1}, [5, None]])
def test_architectures_that_are_none_make_no_card_fail(architectures: Any) -> None:
    assert "text-generation" not in model_card("a", RECIPE, FORMATS["awq"], {"architectures": architectures})


def test_a_path_that_is_no_text_is_named_in_text() -> None:
    assert b"Made from `?`" in model_card("/models/\udcff", RECIPE, FORMATS["awq"], LLAMA).encode()


def test_an_export_of_a_checkpoint_whose_card_cannot_be_read_succeeds_and_says_so(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOLDER / "gptqmodel-gptq", source)
    (source / "README.md").write_text("---\nlicense: 2024-13-45\n---\n")
    made = goldstick.export(source, format="native", output=tmp_path / "made", proof="tensors")
    assert any("not valid YAML" in warning for warning in made.report.warnings)
    assert (tmp_path / "made" / "README.md").read_text().startswith("---\n")


class Hub:
    """What stands for the hub: remembers what it was asked, holds the files it was given."""

    files: tuple[str, ...] = ()
    failure: Exception | None = None

    def __init__(self, **_: Any) -> None:
        self.asked: dict[str, Any] = {}
        Hub.last = self

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if self.failure:
            raise self.failure
        self.asked |= {"repo": name, "private": private, "exist_ok": exist_ok}
        return f"https://hub.example/{name}"

    def list_repo_files(self, name: str) -> list[str]:
        return list(self.files)

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        self.asked["uploaded"] = (repo_id, sorted(path.name for path in Path(folder_path).iterdir()), commit_message)

    last: Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    """A hub that can be reached, with a token."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_not_real")
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "files", (".gitattributes",))
    monkeypatch.setattr(Hub, "failure", None)
    return Hub


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "made"
    directory.mkdir()
    for name in ("model.safetensors", "README.md"):
        (directory / name).touch()
    return directory


def test_every_file_goes_up_in_one_commit(hub: type[Hub], checkpoint: Path) -> None:
    assert push_to_hub(checkpoint, "me/model", private=True) == "https://hub.example/me/model"
    assert hub.last.asked == {
        "repo": "me/model",
        "private": True,
        "exist_ok": True,
        "uploaded": (
            "me/model",
            ["README.md", "model.safetensors"],
            f"Checkpoint made by goldstick {goldstick.__version__}",
        ),
    }


@pytest.mark.parametrize("how", ["offline", "no token", "refused", "other weights"])
def test_what_hinders_a_push_is_said_with_where_the_checkpoint_lies_and_what_pushes_it(
    how: str, hub: type[Hub], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = {
        "offline": "HF_HUB_OFFLINE is set",
        "no token": "no token: run 'hf auth login'",
        "refused": "ConnectionError came back: nobody there",
        "other weights": "holds other weights, model-00001-of-00002.safetensors",
    }[how]
    if how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if how == "no token":
        monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    if how == "refused":
        monkeypatch.setattr(hub, "failure", ConnectionError("nobody there\nand more"))
    if how == "other weights":
        monkeypatch.setattr(hub, "files", ("model-00001-of-00002.safetensors", "model.safetensors"))
    with pytest.raises(OutputError, match=rf"finished and lies in .*made, .*{says}.*'hf upload me/model .*made'"):
        push_to_hub(checkpoint, "me/model")
    assert how in ("offline", "no token") or "uploaded" not in hub.last.asked


@pytest.mark.parametrize("name", ["model", "me/model/more", "../model", "me/mo del", ""])
def test_what_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="owner/name"):
        check_repository(name)


@pytest.mark.parametrize("name", ["owner/name.git", "owner/a--b", "owner/a..b", "owner/name.", "owner-/name"])
def test_a_name_that_the_hubs_client_refuses_is_refused_before_any_work(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is no name of a repository on the hub: .*[Rr]epo"):
        check_repository(name)


def test_the_command_pushes_what_it_exported_and_an_error_leaves_it_there(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["export", str(FOLDER / "gptqmodel-gptq"), "--format", "native", "--proof", "tensors"]
    wrong = CliRunner().invoke(main, [*command, "-o", str(tmp_path / "a"), "--push-to-hub", "nobody"])
    assert (wrong.exit_code, list(tmp_path.iterdir())) == (2, [])
    done = CliRunner().invoke(main, [*command, "-o", str(tmp_path / "a"), "--push-to-hub", "me/model"])
    assert done.exit_code == 0, done.output
    assert "pushed: https://hub.example/me/model" in done.stdout
    assert "goldstick.json" in hub.last.asked["uploaded"][1]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    failed = CliRunner().invoke(main, [*command, "-o", str(tmp_path / "b"), "--push-to-hub", "me/model", "--json"])
    assert failed.exit_code == 1
    assert "was not pushed to me/model. HF_HUB_OFFLINE is set" in failed.stderr
    assert json.loads(failed.stdout)["directory"] == str(tmp_path / "b")
    assert (tmp_path / "b" / "goldstick.json").is_file()


def test_no_file_of_a_checkpoint_tells_the_folders_of_the_machine(source_with_text: Path, tmp_path: Path) -> None:
    source, data = tmp_path / "secret" / "tiny", tmp_path / "secret" / "own.txt"
    shutil.copytree(source_with_text, source)
    data.write_text("The harbour lies on the north side of the island. " * 40)
    recipe = {
        "stages": [{"gptq": {"scheme": "w4a16-g32"}}],
        "calibration": {"dataset": str(data), "samples": 4, "seq_len": 16},
    }
    made = goldstick.quantize(source, recipe, output=tmp_path / "out")
    for path in made.directory.iterdir():
        assert b"secret" not in path.read_bytes(), path.name
    assert "Made from `tiny`" in (made.directory / "README.md").read_text()
    report, manifest = (json.loads((made.directory / name).read_bytes()) for name in ("report.json", "goldstick.json"))
    assert report["model"] == "tiny"
    assert report["recipe"]["calibration"]["dataset"] == manifest["recipe"]["calibration"]["dataset"] == "own.txt"


@pytest.mark.parametrize(
    ("given", "told"),
    [("/a/b:c.txt", "b:c.txt"), ("text:/a/b.txt", "text:b.txt"), ("./a/b", "./a/b"), ("owner/name", "owner/name")],
)
def test_of_absolute_paths_the_last_part_is_told(given: str, told: str) -> None:
    assert last_part(given) == told
