"""Language models of which a token sees those behind it are told from causal ones by trying, not by their name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    XLMConfig,
    XLMWithLMHeadModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

import goldstick
from goldstick.errors import UsageError
from goldstick.evaluation import looking_back
from goldstick.evaluation.looking_back import require_looking_back
from goldstick.jobs.load.runnable import load_language_model, load_with_inputs
from tests.support.commands import run
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer

SIZES: dict[str, Any] = {"vocab_size": 200, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
BERT: dict[str, Any] = {**SIZES, "intermediate_size": 64}
XLNET: dict[str, Any] = {"vocab_size": 200, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 64}
XLM: dict[str, Any] = {"vocab_size": 200, "emb_dim": 64, "n_layers": 2, "n_heads": 4}
BOTH_WAYS = {
    "bert": lambda one_way: BertLMHeadModel(BertConfig(**BERT, is_decoder=one_way)),
    "roberta": lambda one_way: RobertaForCausalLM(RobertaConfig(**BERT, is_decoder=one_way)),
    "xlnet": lambda one_way: XLNetLMHeadModel(XLNetConfig(**XLNET, attn_type="uni" if one_way else "bi")),
    "xlm": lambda one_way: XLMWithLMHeadModel(XLMConfig(**XLM, causal=one_way)),
}
both_ways = pytest.mark.parametrize("kind", BOTH_WAYS)
WHY = "a token of this .* sees those behind it, so it is no causal language model"


@both_ways
def test_a_config_decides_of_models_that_can_be_both(kind: str) -> None:
    require_looking_back(BOTH_WAYS[kind](True))
    with pytest.raises(UsageError, match=WHY):
        require_looking_back(BOTH_WAYS[kind](False))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("family", FAMILIES)
def test_causal_models_are_taken(family: str, device: str) -> None:
    model = FAMILIES[family]().to(device)
    sees_ahead = looking_back._sees_ahead(model)
    assert not (sees_ahead and getattr(model, "can_generate", bool)())


def test_a_model_whose_config_says_nothing_of_a_decoder_is_tried_as_well() -> None:
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, intermediate_size=64))
    assert model.config.is_decoder is False
    require_looking_back(model)


@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_in_memory_are_tried_themselves(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking_back, "_twin", None)
    require_looking_back(BOTH_WAYS[kind](True).to(dtype).train())  # with dropout
    with pytest.raises(UsageError, match=WHY):
        require_looking_back(BOTH_WAYS[kind](False).to(dtype).train())


class _RoundedByTensors(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        step = inputs.abs().max() / 7
        return super().forward((inputs / step).round() * step)


def test_inputs_rounded_by_whole_tensors_are_no_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking_back, "_twin", None)
    model = FAMILIES["llama_mha"]()
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _RoundedByTensors
    assert not looking_back._sees_ahead(model)


def test_of_weights_elsewhere_only_class_and_config_are_looked_at() -> None:
    with torch.device("meta"):
        model = BertLMHeadModel(BertConfig(**BERT))
    before = torch.get_rng_state()
    with pytest.raises(UsageError, match=WHY):
        require_looking_back(model)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore::goldstick.core.notices.UnrecognisedWarning")  # XLNet's attention is no layers
@pytest.mark.parametrize("kind", ["bert", "xlnet"])
def test_neither_tasks_nor_searches_nor_prompts_take_a_model_that_sees_both_ways(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    model = BOTH_WAYS[kind](False)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    (tmp_path / "text.txt").write_text("The harbour lies on the north side of the island. " * 20)
    task = f"text:{tmp_path / 'text.txt'}"
    with pytest.raises(UsageError, match=WHY):
        goldstick.evaluate(directory, [task])
    with pytest.raises(UsageError, match=WHY):
        goldstick.evaluate(model, [task], tokenizer=directory)
    with pytest.raises(UsageError, match=WHY):
        goldstick.search(directory, share=0.6, dataset=str(tmp_path / "text.txt"))
    with pytest.raises(UsageError, match=WHY):
        load_language_model(directory)
    with pytest.raises(UsageError, match=WHY):
        load_with_inputs(directory)
    for words in (("generate", "--prompt", "The harbour"), ("chat",), ("serve", "--port", "0")):
        result = run(words[0], str(directory), *words[1:])
        assert result.exit_code != 0 and re.search(WHY, result.output.replace("\n", " ")), result.output
