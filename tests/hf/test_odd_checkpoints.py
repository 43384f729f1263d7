"""Checkpoints of networks that are no plain list of layers: looped, renamed, tied, initialised by shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import (
    HrmTextConfig,
    HrmTextForCausalLM,
    Mamba2Config,
    NeoMMEConfig,
    PreTrainedTokenizerFast,
    ViTMAEConfig,
    ViTMAEModel,
)
from transformers.core_model_loading import MergeModulelist, Transpose, WeightConverter, WeightRenaming

import goldstick
from goldstick.formats.native import NATIVE
from goldstick.hf.names import load_config
from goldstick.hf.packed_conversions import _renamed_with_suffixes
from goldstick.hf.quantizer import GoldstickQuantizer
from goldstick.hf.stored_weight import StoredWeight
from goldstick.jobs.proof.observation import first_output, observe
from goldstick.jobs.proof.observe_streamed import observe_checkpoint
from goldstick.jobs.save import finish
from tests.support.crash_points import tiny_checkpoint
from tests.support.proofs import prove_here
from tools.zoo.build import Built, build
from tools.zoo.catalogue import architectures
from tools.zoo.outputs import outputs_of


def test_infinite_settings_of_a_config_are_read_as_numbers(tmp_path: Path) -> None:
    Mamba2Config(time_step_limit=(0.0, float("inf"))).save_pretrained(tmp_path)
    assert '"__float__"' in (tmp_path / "config.json").read_text()
    assert list(load_config(tmp_path).time_step_limit) == [0.0, float("inf")]


def test_initialisers_find_the_shape_of_a_weight_that_is_not_there() -> None:
    layer = nn.Linear(4, 8)
    place = StoredWeight.in_place_of(layer, {"_packed": torch.empty(8, 1, dtype=torch.int32)})
    weight: Any = place.weight
    assert weight.shape == (8, 4) and weight.is_meta and weight._is_hf_initialized
    assert place.restored() is layer


def test_a_network_that_comes_back_to_its_blocks_is_proven_with_all_of_them_in_memory(tmp_path: Path) -> None:
    config = HrmTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        num_layers_per_stack=1, H_cycles=2, L_cycles=2,
    )  # fmt: skip
    model = HrmTextForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    seen = observe_checkpoint(tmp_path)
    assert torch.equal(seen.outputs, observe(model, None).outputs)


@pytest.mark.parametrize(
    ("source", "target", "packed"),
    [
        (r"(convolution|sconv)\.weight(?!_)", r"\1.conv1d.weight", "a.sconv.conv1d.weight_packed"),
        (r"sconv\.weight", "sconv.inner.weight", "a.sconv.inner.weight_packed"),
        (r"sconv\.weight$", "sconv_kernel", "a.sconv_kernel_packed"),
    ],
)
def test_a_renamed_weight_takes_its_packed_tensors_along(source: str, target: str, packed: str) -> None:
    renamings = _renamed_with_suffixes(WeightRenaming(source, target))
    names = {one.rename_source_key("a.sconv.weight_packed")[0] for one in renamings}
    assert packed in names


def test_conversions_that_do_more_than_move_rows_leave_packed_tensors_alone() -> None:
    quantizer: Any = object.__new__(GoldstickQuantizer)
    quantizer.format = NATIVE
    turned = WeightConverter("experts.down_proj", "experts.down_proj", operations=[Transpose(1, 2)])
    stacked = WeightConverter("experts.*.w2.weight", "experts.down_proj", operations=[MergeModulelist(0)])
    assert quantizer.update_weight_conversions([turned], None) == [turned]
    extended = quantizer.update_weight_conversions([stacked], None)
    assert "experts.*.w2.weight_packed" in [one.source_patterns[0] for one in extended]


def test_outputs_are_found_at_any_depth() -> None:
    assert first_output({"ids": torch.tensor(1), "logits": ((torch.tensor(2.0),),)}) == 2


def test_a_network_that_draws_numbers_is_observed_on_the_same_ones() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    decoder = {f"decoder_{name}": value for name, value in sizes.items()}
    model = ViTMAEModel(ViTMAEConfig(image_size=32, patch_size=8, **sizes, **decoder)).eval()
    before = torch.get_rng_state()
    assert torch.equal(observe(model, None).outputs, observe(model, None).outputs)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(scope="module")
def tied() -> Built:
    """A network in which two linear layers share a weight, and a head that of an embedding."""
    (architecture,) = architectures(["NeoMMEForMaskedLM"])
    return build(architecture)


@pytest.mark.parametrize("tie", ["error", "untie"])
def test_layers_that_share_a_weight_are_stored(
    tied: Built, tie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    result = goldstick.apply(tied.model, {"stages": [{"rtn": {"scheme": "w8a16", "tie": tie}}]})
    inputs = tied.inputs or {}
    loaded = goldstick.load(result.save(tmp_path / "saved"))
    expected, found = outputs_of(result.model, inputs), outputs_of(loaded, inputs)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    one, other = loaded.model.embed_tokens.embedding_projection, loaded.unembedding_projection
    assert (one.weight_packed is other.weight_packed) == (tie == "error")
    assert isinstance(NeoMMEConfig(), type(loaded.config))


def test_a_tokenizer_to_which_any_text_is_one_word_leaves_the_proof_without_a_perplexity(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "model", 1)
    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path / "model")
    proof = goldstick.quantize(tmp_path / "model", "rtn-w4a16-g32", output=tmp_path / "made").report.proof
    assert proof["passed"] and proof["perplexity_expected"] is None
