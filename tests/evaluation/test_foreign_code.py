"""Files that name a class which would look for code in the directory: nobody is asked whether to run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import dynamic_module_utils

from goldstick.errors import SourceError
from goldstick.evaluation.processors import read_processor
from goldstick.evaluation.tokenizer import read_tokenizer

READERS: dict[str, Callable[[Path], Any]] = {
    "tokenizer": read_tokenizer,
    "image": lambda directory: read_processor(directory, "image"),
    "audio": lambda directory: read_processor(directory, "audio"),
    "several": lambda directory: read_processor(directory, "several"),
}


@pytest.mark.parametrize("named", ["AutoConfig", "AutoTokenizer", "AutoImageProcessor", "AutoProcessor", "AutoModel"])
@pytest.mark.parametrize("kind", READERS)
def test_code_of_the_directory_is_neither_run_nor_asked_for(
    kind: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def say_yes(prompt: str = "") -> str:
        asked.append(prompt)
        return "y"

    monkeypatch.setattr("builtins.input", say_yes)
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    own = {"auto_map": {f"Auto{part}": "own.Class" for part in ("Config", "Model", "ImageProcessor", "Processor")}}
    own["auto_map"]["AutoTokenizer"] = ["own.Class", None]  # type: ignore[assignment]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none_such", **own}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": named} | (own if kind != "tokenizer" else {}))
    )
    settings = {"image_processor_type": named, "feature_extractor_type": named, "processor_class": named}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    with pytest.raises(SourceError):
        READERS[kind](tmp_path)
    assert not asked
    assert not (tmp_path / "ran").exists()
    assert seconds == dynamic_module_utils.TIME_OUT_REMOTE_CODE
