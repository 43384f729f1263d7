"""Calibration data that are no text, from the command line; those that docs/calibration.md shows run with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from goldstick.cli import main
from tests.support import tiny_processors


def test_a_folder_without_images_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_processors.vit(tmp_path / "vit")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["quantize", "vit", "-r", "gptq-w4a16-g32", "--data", "empty", "-o", "out"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "empty: a folder with no image and no audio file" in result.output
    assert not (tmp_path / "out").exists()
