"""A head that runs on its embedding's quantized weight, and what else the model ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM

import goldstick
from goldstick.api import plan
from goldstick.checkpoint.source import open_tensors
from goldstick.nn import TiedQuantizedLinear


def test_a_bias_that_is_tied_too_is_stored_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model: Any = BertForMaskedLM(BertConfig(vocab_size=64, max_position_embeddings=16, **sizes)).eval()
    model.cls.predictions.bias.data.normal_()
    model.save_pretrained(tmp_path / "source")
    stage = {"scheme": "w8a16", "targets": {"include": ["cls.predictions.decoder"]}, "tie": "keep"}
    recipe, ids = {"stages": [{"rtn": stage}]}, torch.arange(8)[None]
    made = goldstick.apply(model, recipe)
    streamed = [tensor.name for tensor in plan(tmp_path / "source", recipe).tensors]
    saved = made.save(tmp_path / "saved")
    assert {"cls.predictions.bias", "cls.predictions.decoder.bias"} <= {*streamed} & {*open_tensors(saved)}
    assert "cls.predictions.decoder.weight" not in streamed
    with torch.no_grad():
        expected = made.model(input_ids=ids).logits
        assert 0 < float((expected - model(input_ids=ids).logits).abs().max()) < 0.01
        loaded: Any = goldstick.load(saved)
        head = loaded.cls.predictions.decoder
        assert isinstance(head, TiedQuantizedLinear) and isinstance(head, torch.nn.Linear)
        assert torch.equal(loaded(input_ids=ids).logits, expected)
