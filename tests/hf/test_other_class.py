"""from_pretrained of a checkpoint in a model of another class than it was saved from: without its head, or with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
)
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING

import goldstick
from goldstick import registration
from goldstick.errors import CheckpointError
from goldstick.nn import QuantizedLinear
from tests.support.tiny_models import FAMILIES, GROUPED, tiny

pytestmark = pytest.mark.usefixtures("proof_here")

HEAD = [{"rtn": {"scheme": "w4a16-g32"}}, {"rtn": {"scheme": "w8a16", "targets": {"include": ["lm_head"]}}}]
EMBEDDING: dict[str, Any] = {"scheme": "w8a16", "targets": {"include": ["*embed_tokens"]}, "tie": "keep"}
TIED = LlamaConfig(**GROUPED, tie_word_embeddings=True)


@pytest.fixture(autouse=True)
def transformers_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING):
        monkeypatch.setitem(table, "compressed-tensors", table["compressed-tensors"])
    monkeypatch.setattr(registration, "_asked_for", set())


def saved(model: Any, folder: Path, stages: list[Any], form: str = "native") -> tuple[Path, Any]:
    result = goldstick.apply(model, {"stages": stages, "export": {"format": form}})
    return result.save(folder), result.model


def loaded(auto: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    model, info = auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    return model.eval(), {kind: sorted(names) for kind, names in info.items() if names}


def states(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.arange(16)[None], output_hidden_states=True).hidden_states[-1]
    return found


@pytest.mark.parametrize("form", ["native", "compressed-tensors"])
def test_a_model_without_the_head_that_was_quantized_computes_the_same_states(form: str, tmp_path: Path) -> None:
    goldstick.register("compressed-tensors")
    folder, before = saved(FAMILIES["llama_gqa"](), tmp_path / "out", HEAD, form)
    shape = {"lm_head.weight_shape"} if form == "compressed-tensors" else set()
    head = sorted({"lm_head.weight_packed", "lm_head.weight_scale"} | shape)
    model, info = loaded(AutoModel, folder)
    assert info == {"unexpected_keys": head}
    assert isinstance(model.layers[0].mlp.down_proj, QuantizedLinear)
    assert torch.equal(states(model), states(before))
    model, info = loaded(AutoModelForSequenceClassification, folder)
    assert info == {"unexpected_keys": head, "missing_keys": ["score.weight"]}
    assert torch.equal(states(model), states(before))


def test_experts_too(tmp_path: Path) -> None:
    folder, before = saved(FAMILIES["mixtral"](), tmp_path / "out", [{"rtn": {"scheme": "w4a16-g32"}}])
    model, info = loaded(AutoModel, folder)
    assert set(info) <= {"unexpected_keys"}
    assert torch.equal(states(model), states(before))


def test_a_quantized_embedding_and_the_head_on_it_are_one_in_each_class(tmp_path: Path) -> None:
    stages = [{"rtn": {"scheme": "w4a16-g32"}}, {"rtn": EMBEDDING}]
    with_head, before = saved(tiny(LlamaForCausalLM, TIED)(), tmp_path / "with", stages)
    model, info = loaded(AutoModel, with_head)
    assert info == {}
    assert torch.equal(states(model), states(before))
    headless, before = saved(tiny(LlamaModel, TIED)(), tmp_path / "without", stages)
    model, info = loaded(AutoModelForCausalLM, headless)
    assert info == {}
    with torch.inference_mode():
        logits = model(input_ids=torch.arange(16)[None]).logits
    embedding = before.embed_tokens(torch.arange(GROUPED["vocab_size"]))
    torch.testing.assert_close(logits, states(before) @ embedding.T, rtol=0, atol=0.01)


def test_a_head_that_the_checkpoint_lacks_is_initialised_and_named(tmp_path: Path) -> None:
    bert = tiny(BertModel, BertConfig(**{key: value for key, value in GROUPED.items() if "key_value" not in key}))
    folder, before = saved(bert(), tmp_path / "out", [{"rtn": {"scheme": "w4a16-g32"}}])
    model, info = loaded(AutoModelForMaskedLM, folder)
    assert "cls.predictions.transform.dense.weight" in info["missing_keys"]
    assert [name for name in info["unexpected_keys"] if "pooler" not in name] == []
    assert torch.equal(states(model), states(before))


def test_a_layer_that_the_models_own_class_does_not_have_is_refused(tmp_path: Path) -> None:
    folder, _ = saved(FAMILIES["llama_gqa"](), tmp_path / "out", [{"rtn": {"scheme": "w4a16-g32"}}])
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("layers.1.mlp.down_proj", "layers.7.mlp.down_proj"))
    with pytest.raises(CheckpointError, match=r"quantizes 'model\.layers\.7\.mlp\.down_proj', which the model does"):
        LlamaForCausalLM.from_pretrained(folder)


def test_a_quantized_head_for_other_labels_is_refused_and_not_left_to_chance(tmp_path: Path) -> None:
    bert = {key: value for key, value in GROUPED.items() if "key_value" not in key}
    model = tiny(BertForSequenceClassification, BertConfig(**bert, num_labels=3))()
    folder, _ = saved(model, tmp_path / "out", [{"rtn": {"scheme": "w8a16"}}])
    with pytest.raises(CheckpointError, match=r"classifier\.weight_\w+ is missing, or of another shape"):
        BertForSequenceClassification.from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True)
    without, _ = saved(
        model, tmp_path / "float", [{"rtn": {"scheme": "w8a16", "targets": {"exclude": ["classifier"]}}}]
    )
    found = BertForSequenceClassification.from_pretrained(without, num_labels=5, ignore_mismatched_sizes=True)
    assert found.classifier.weight.shape == (5, 64)


def test_a_quantized_layer_whose_codes_are_missing_is_refused(tmp_path: Path) -> None:
    folder, _ = saved(FAMILIES["llama_gqa"](), tmp_path / "out", [{"rtn": {"scheme": "w4a16-g32"}}])
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight_packed"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight_packed is missing"):
        AutoModelForCausalLM.from_pretrained(folder)
