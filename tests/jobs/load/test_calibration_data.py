"""From a recipe's ``calibration`` to token ids: the checkpoint's own tokenizer, the audit, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

import goldstick
from goldstick.calibration.data.samples import CalibrationData
from goldstick.errors import DataError
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.recipes.calibration import Calibration
from tests.support.tiny_models import FAMILIES, VOCABULARY
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, write_tokenizer

ROWS = [
    {"text": "a cat sat on a mat"},
    {"text": ""},
    {"messages": [{"role": "user", "content": "sing"}, {"role": "assistant", "content": "la la la"}]},
    {"text": "§ is unknown"},
    {"conversations": [{"from": "human", "value": "why?"}]},
]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama_gqa"]()


@pytest.fixture(scope="module")
def source(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a tokenizer for chat."""
    directory = tmp_path_factory.mktemp("llama")
    model.save_pretrained(directory)
    write_tokenizer(directory, chat_template=CHAT_TEMPLATE)
    return directory


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def read(model: PreTrainedModel, source: Path, dataset: Path, **settings: Any) -> CalibrationData:
    return calibration_data(Calibration(dataset=str(dataset), **settings), source, None)(model)


def test_texts_and_conversations_become_rows_of_the_checkpoints_own_tokens(
    model: PreTrainedModel, source: Path, rows: Path
) -> None:
    data = read(model, source, rows, samples=4, seq_len=100, packing=False)
    tokenizer = AutoTokenizer.from_pretrained(source)
    written = ["a cat sat on a mat", "[user]sing[assistant]la la la", "§ is unknown", "[user]why?"]
    expected = [tokenizer(text)["input_ids"] for text in written]
    assert data.mask is not None
    assert [ids[mask].tolist() for ids, mask in zip(data.ids, data.mask, strict=True)] == expected
    packed = read(model, source, rows, samples=3, seq_len=20)
    assert packed.ids.flatten().tolist() == [token for row in expected for token in row][:60]
    assert data.blank_rows == packed.blank_rows == 1


def test_unknown_tokens_are_counted(model: PreTrainedModel, source: Path, rows: Path) -> None:
    audit = read(model, source, rows, samples=4, seq_len=100, packing=False).audit()
    assert audit["unknown_tokens"] == 2  # the two bytes of §
    assert audit["unknown_rate"] == 2 / audit["tokens"]


def test_an_unknown_token_that_also_ends_texts_is_not_counted(
    model: PreTrainedModel, rows: Path, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, chat_template=CHAT_TEMPLATE)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token": "<unk>"}))
    assert read(model, tmp_path, rows, samples=4, seq_len=100, packing=False).audit()["unknown_tokens"] == 0


def test_a_tokenizer_of_another_model_is_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, too_many=3)
    text = tmp_path / "a.txt"
    text.write_text(f"a cat <{VOCABULARY - 1}>")
    assert read(model, tmp_path, text, samples=1, seq_len=7).tokens.max() == VOCABULARY - 1
    text.write_text(f"a cat <{VOCABULARY}>")
    said = rf"tokenizer in .*{tmp_path.name} .* token id {VOCABULARY} for .*a\.txt, .*Llama.* has {VOCABULARY} rows"
    with pytest.raises(DataError, match=said):
        read(model, tmp_path, text, samples=1, seq_len=7)


def test_a_conversation_needs_a_chat_template(model: PreTrainedModel, rows: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(
        DataError, match=rf"line 3 is a conversation, and the tokenizer in .*{tmp_path.name} has no chat"
    ):
        read(model, tmp_path, rows, samples=1, seq_len=4)


@pytest.mark.usefixtures("proof_here")
def test_padded_rows_and_a_shortfall_that_is_allowed_are_in_the_report(
    source: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    calibration = {"dataset": str(rows), "samples": 9, "seq_len": 16, "packing": False}
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g32"}}], "calibration": calibration}
    with pytest.raises(DataError, match="gives 4 rows with tokens, and 9 are asked for"):
        goldstick.quantize(source, recipe, output=tmp_path / "out")
    recipe["calibration"] = {**calibration, "allow_short": True}
    report = goldstick.quantize(source, recipe, output=tmp_path / "out").report
    assert [report.calibration[name] for name in ("samples", "blank_rows", "cut_rows")] == [4, 1, 2]
    assert report.calibration["tokens"] == 16 + 16 + 13 + 10
    assert any("gives 4 of the 9 calibration samples" in warning for warning in report.warnings)


def test_data_given_in_memory_is_counted_in_the_report(model: PreTrainedModel) -> None:
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g32"}}]}
    ids = torch.randint(90, (6, 16))
    report = goldstick.apply(model, recipe, data=[ids[:4], {"input_ids": ids[4:]}]).report
    assert report.calibration == {"batches": 2, "samples": 6, "tokens": 96}
    assert goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}).report.calibration == {}


def test_the_set_called_reference_is_bundled_for_every_model(
    model: PreTrainedModel, source: Path, tmp_path: Path
) -> None:
    settings = Calibration(dataset="reference", samples=2, seq_len=8)
    bundled = calibration_data(settings, source, None)(model)
    assert torch.equal(calibration_data(settings, source, tmp_path)(model).ids, bundled.ids)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "calibration.txt").write_text("la la la la " * 50)
    assert not torch.equal(calibration_data(settings, source, tmp_path)(model).ids, bundled.ids)
