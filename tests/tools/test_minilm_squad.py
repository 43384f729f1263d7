"""The windows and batches that the span head is trained on."""

from __future__ import annotations

import argparse
import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForQuestionAnswering, BertModel, PreTrainedTokenizerFast

from tools.minilm_squad.data import Window, batches, collate, make_windows, read_questions
from tools.minilm_squad.train import Training, rate

CONTEXT = " ".join(f"c{number}" for number in range(40))


@pytest.fixture
def tokenizer() -> Any:
    words = [f"c{number}" for number in range(40)] + ["who", "what"]
    vocabulary = {token: index for index, token in enumerate(["[PAD]", "[CLS]", "[SEP]", *words])}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[PAD]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=names, pad_token="[PAD]")


def question(text: str) -> dict[str, Any]:
    return {"question": "who what", "context": CONTEXT, "start": CONTEXT.index(text), "text": text}


def test_each_window_marks_the_answer_or_the_first_token(tokenizer: Any) -> None:
    windows = make_windows(tokenizer, [question("c12 c13 c14")], length=20, overlap=5)
    assert len(windows) == 4  # 15 words each, from the words 0, 10, 20 and 30 on
    for window in windows:
        words = tokenizer.convert_ids_to_tokens(window.ids)
        if {"c12", "c13", "c14"} <= set(words):
            assert words[window.start : window.end + 1] == ["c12", "c13", "c14"]
        else:
            assert (window.start, window.end) == (0, 0)
    assert sum(window.start > 0 for window in windows) == 2


def test_a_part_of_a_word_is_marked_by_the_whole_word(tokenizer: Any) -> None:
    (window,) = make_windows(tokenizer, [{**question("c12"), "start": CONTEXT.index("c12") + 1, "text": "12"}], 60, 5)
    assert tokenizer.convert_ids_to_tokens(window.ids)[window.start : window.end + 1] == ["c12"]


def test_an_epoch_is_every_window_once_in_the_same_order_again() -> None:
    windows = [Window(ids=[1] * (1 + n % 50), types=[0] * (1 + n % 50), start=n, end=n) for n in range(1003)]
    epoch = list(batches(windows, 8, seed=3))
    assert sorted(window.start for batch in epoch for window in batch) == list(range(1003))
    assert epoch == list(batches(windows, 8, seed=3))
    assert epoch != list(batches(windows, 8, seed=4))
    padded = sum(len(batch) * max(len(window.ids) for window in batch) for batch in epoch)
    assert padded < 1.1 * sum(len(window.ids) for window in windows)


def test_rows_are_padded_behind_a_mask() -> None:
    rows = [
        Window(ids=[1, 5, 2], types=[0, 1, 1], start=1, end=1),
        Window(ids=[1, 2], types=[0, 1], start=0, end=0),
    ]
    batch = collate(rows, pad_id=9)
    assert batch["input_ids"].tolist() == [[1, 5, 2], [1, 2, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [0, 1, 0]]
    assert torch.equal(batch["start_positions"], torch.tensor([1, 0]))


@pytest.mark.parametrize("packed", [True, False])
def test_questions_are_read_plain_or_packed(tmp_path: Path, packed: bool) -> None:
    asked = {"id": "1", "question": " who? ", "answers": [{"text": "c3", "answer_start": 9}, {"text": "no"}]}
    text = json.dumps({"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [asked]}]}]}).encode()
    path = tmp_path / ("train.json.gz" if packed else "train.json")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert read_questions(path) == [{"question": "who?", "context": CONTEXT, "start": 9, "text": "c3"}]


def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero() -> None:
    shares = [rate(step / 1000) for step in range(1001)]
    assert 0 < shares[0] < 0.1
    assert max(shares) > 0.99
    assert shares[-1] == 0
    peak = shares.index(max(shares))
    assert shares[:peak] == sorted(shares[:peak]) and shares[peak:] == sorted(shares[peak:], reverse=True)


@pytest.mark.filterwarnings("ignore")  # of transformers, on the parts of the encoder that a span head lacks
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(tokenizer: Any, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=45, **sizes)).save_pretrained(encoder)
    tokenizer.save_pretrained(encoder)
    asked = [question(f"c{number}") for number in range(10, 22)]
    rows = [{"question": "who what", "answers": [{"text": q["text"], "answer_start": q["start"]}]} for q in asked]
    data = tmp_path / "train.json"
    data.write_text(json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": rows}]}]}))

    def training(name: str, resume: bool = False) -> Training:
        options = {"encoder": encoder, "data": data, "out": tmp_path / name, "steps": 7, "minutes": None}
        fixed = {"batch": 4, "length": 90, "rate": 1e-2, "seed": 1}
        return Training(argparse.Namespace(**options, **fixed, resume=resume))

    whole = training("whole")
    whole.run()
    stopped = training("stopped")
    for batch in islice(stopped._endless(), 4):
        stopped._learn(batch)
    stopped.save()
    training("stopped", resume=True).run()
    models = [BertForQuestionAnswering.from_pretrained(tmp_path / name / "model") for name in ("whole", "stopped")]
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    record = json.loads((tmp_path / "whole" / "model" / "training.json").read_text())
    assert (record["steps"], record["epochs"]) == (7, 2.333)
