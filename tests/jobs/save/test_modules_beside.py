"""An encoder of sentence-transformers keeps its pooling and its other modules, whatever goldstick makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

import goldstick
from goldstick.errors import CheckpointError, OutputError
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.tiny_tokenizer import write_tokenizer, write_words

pytestmark = pytest.mark.usefixtures("proof_here")

BESIDE = {
    "modules.json": json.dumps(
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
    ),
    "1_Pooling/config.json": '{"pooling_mode_cls_token": true}',
    "2_Normalize/config.json": "{}",
    "config_sentence_transformers.json": "{}",
    "sentence_bert_config.json": '{"max_seq_length": 64}',
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("encoder") / "encoder"
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=512, **sizes)).half().eval().save_pretrained(directory)
    write_tokenizer(directory)
    for name, text in BESIDE.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory


@pytest.fixture(scope="module")
def quantized(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("quantized") / "w4"
    goldstick.quantize(encoder, "rtn-w4a16-g32", output=output, proof="tensors")
    return output


def carried(directory: Path) -> dict[str, str]:
    return {name: (directory / name).read_text() for name in BESIDE if (directory / name).is_file()}


def test_quantize_carries_them_on_and_verify_and_overwrite_know_them(encoder: Path, quantized: Path) -> None:
    assert carried(quantized) == BESIDE
    assert {*BESIDE} <= {*json.loads((quantized / "goldstick.json").read_text())["files"]}
    assert verify_checkpoint(quantized)["passed"]
    goldstick.quantize(encoder, "rtn-w4a16-g32", output=quantized, proof="tensors", overwrite=True)
    assert carried(quantized) == BESIDE


def test_a_run_that_is_calibrated_or_goes_by_blocks_carries_them_on(encoder: Path, tmp_path: Path) -> None:
    write_words(tmp_path / "text.txt")
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g32"}}], "export": {"format": "compressed-tensors"}}
    recipe["calibration"] = {"dataset": str(tmp_path / "text.txt"), "samples": 2, "seq_len": 16}
    goldstick.quantize(encoder, recipe, output=tmp_path / "out")
    assert carried(tmp_path / "out") == BESIDE


@pytest.mark.parametrize("form", ["gptq", "native"])
def test_export_carries_them_on(form: str, quantized: Path, tmp_path: Path) -> None:
    goldstick.export(quantized, form, output=tmp_path / "out", proof="tensors")
    assert carried(tmp_path / "out") == BESIDE


def test_apply_and_save_carries_them_on(encoder: Path, tmp_path: Path) -> None:
    goldstick.apply(AutoModel.from_pretrained(encoder).eval(), "rtn-w8a16").save(tmp_path / "out")
    assert carried(tmp_path / "out") == BESIDE


def test_a_changed_file_of_a_module_fails_and_a_strangers_keeps_the_output(
    encoder: Path, quantized: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(quantized, tmp_path / "copy")
    (copy / "1_Pooling" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="did not write there: 1_Pooling"):
        goldstick.quantize(encoder, "rtn-w4a16-g32", output=copy, proof="tensors", overwrite=True)
    (copy / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": false}')
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json"):
        verify_checkpoint(copy)
