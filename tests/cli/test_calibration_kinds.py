"""The commands that docs/calibration.md shows for images, speech, conversations and tensors, as they are shown."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from goldstick.cli import main
from goldstick.jobs.save import finish
from tests.support import tiny_processors
from tests.support.proofs import prove_here
from tests.support.tiny_processors import SIDE, write_image, write_rows, write_sound

DOCUMENT = Path(__file__).parents[2] / "docs" / "calibration.md"
COMMANDS = re.findall(r"^goldstick (quantize .* --data .*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models and data that the document names."""
    tiny_processors.vit(tmp_path / "vit")
    tiny_processors.llava(tmp_path / "llava")
    tiny_processors.whisper(tmp_path / "whisper")
    for number in range(4):
        write_sound(tmp_path / f"{number}.wav", seed=number)
    rows = "".join(f"{number}.wav,some words\n" for number in range(4))
    (tmp_path / "speech.csv").write_text("audio,transcript\n" + rows)
    for number in range(4):
        write_image(tmp_path / "photos" / f"{number}.png", seed=number)
    asked = ({"image": f"photos/{number}.png", "text": "what?"} for number in range(4))
    write_rows(tmp_path / "asked.jsonl", *asked)
    save_file({"pixel_values": torch.randn(4, 3, SIDE, SIDE)}, tmp_path / "pixels.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finish, "prove", prove_here)
    return tmp_path


def test_the_document_shows_a_command_for_each_kind() -> None:
    assert [shlex.split(line)[1] for line in COMMANDS] == ["./vit", "./vit", "./llava", "./whisper"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_that_are_shown_work(line: str) -> None:
    words = shlex.split(line)
    result = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((Path(words[-1]) / "report.json").read_text())
    assert report["calibration"]["samples"] == 4
    assert report["proof"]["passed"] is True
    notes = [layer["notes"] for layer in report["layers"] if layer["algorithm"] == "gptq"]
    assert any(note.get("tokens", 0) for note in notes)


@pytest.mark.usefixtures("here")
def test_a_folder_without_images_ends_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    words = ["quantize", "vit", "-r", "gptq-w4a16-g32", "--data", "empty", "-o", "out"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "empty: a folder with no image and no audio file" in result.output
    assert not (tmp_path / "out").exists()
