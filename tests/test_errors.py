"""A message is a paragraph, whatever a file wrote into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goldstick.checkpoint.source import open_tensors
from goldstick.errors import GoldstickError, RecipeError, SourceError


@pytest.mark.parametrize("kind", [GoldstickError, RecipeError, SourceError])
def test_a_message_that_a_file_made_long_keeps_its_beginning_and_its_end(kind: type[GoldstickError]) -> None:
    message = str(kind("The key " + "x" * 1_000_000 + " is unknown. Remove it."))
    assert len(message) < 10_000
    assert message.startswith("The key xxx")
    assert message.endswith("xxx is unknown. Remove it.")
    assert str(kind("short")) == "short"


def test_a_shard_whose_name_no_file_can_have_is_refused(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x" * 300 + ".safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"the weight file name 'xxx.* is refused"):
        open_tensors(tmp_path)
