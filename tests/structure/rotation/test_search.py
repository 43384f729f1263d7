"""Rotation on every family of tests/tiny_models.py: what is found, proven and refused; and that it helps."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import goldstick
from goldstick import surgery
from goldstick.algorithms.rotation import RandomRotation
from goldstick.errors import RecipeError, StructureError
from goldstick.structure import Network
from goldstick.structure.probe.double import double_precision
from goldstick.structure.rotation import proof
from goldstick.structure.rotation.plan import RotationPlan
from goldstick.structure.rotation.proof import prove_rotation
from goldstick.structure.rotation.search import find_rotation
from tests.support.tiny_models import FAMILIES, meta_model, output_tensor, sample_inputs
from tools.planted_outliers import plant

#: Family → the heads (R2) found in its last block: "values[first channel] > output projection".
ACCEPTED = {
    "llama_mha": "self_attn.v_proj[0] > self_attn.o_proj",
    "llama_gqa": "self_attn.v_proj[0] > self_attn.o_proj",
    "mistral": "self_attn.v_proj[0] > self_attn.o_proj",
    "qwen2": "self_attn.v_proj[0] > self_attn.o_proj",
    "qwen3": "self_attn.v_proj[0] > self_attn.o_proj",
    "phi3": "self_attn.qkv_proj[96] > self_attn.o_proj",
    "opt": "self_attn.v_proj[0] > self_attn.out_proj",
    "gpt2": "attn.c_attn[128] > attn.c_proj",
    "gpt_neox": "",
    "falcon": "self_attention.query_key_value[80] > self_attention.dense",
    "mixtral": "self_attn.v_proj[0] > self_attn.o_proj",
    "qwen3_moe": "self_attn.v_proj[0] > self_attn.o_proj",
    "deepseek_v3": "",
}
#: Family → what the error says: the place where the proof failed.
REFUSED = {
    "gemma2": "Block model.layers.0 cannot be rotated.*Writing to it: nothing.*norm after a layer",
    "gemma3": "Block model.layers.0 cannot be rotated.*Writing to it: nothing.*norm after a layer",
    "bert": "Block bert.encoder.layer.0 cannot be rotated.*Writing to it: nothing",
    "resnet": "Block resnet.encoder.stages.0 cannot be rotated.*Norms that receive the residual: none",
    "bloom": "its blocks can.*norm after the embedding",
    "t5": "its blocks can.*outside the blocks",
    "vit": "its blocks can.*Embeddings: none",
}
#: Refused families whose heads can be turned all the same.
HEADS_ONLY = ["gemma2", "gemma3", "bert", "bloom", "vit"]
TIED = ["opt", "gpt2", "falcon"]
SUBTRACTS_MEAN = ["opt", "gpt2", "gpt_neox", "falcon"]


@functools.cache
def plan_of(family: str) -> RotationPlan:
    model = FAMILIES[family]()
    return find_rotation(Network(model), sample_inputs(model))


def exact_output(model: PreTrainedModel) -> Tensor:
    surgery.index_experts_one_by_one(model)  # grouped products of experts know no float64
    with double_precision():
        return output_tensor(model.double(), sample_inputs(model))


def relative(output: Tensor, reference: Tensor) -> float:
    return float((output.detach() - reference.detach()).norm() / reference.detach().norm())


def test_every_family_is_accepted_or_refused() -> None:
    assert sorted([*ACCEPTED, *REFUSED]) == sorted(FAMILIES)


@pytest.mark.parametrize("family", ACCEPTED)
def test_rotated_models_give_the_same_output_in_float64(family: str) -> None:
    model, turned, plan = FAMILIES[family](), FAMILIES[family]().double(), plan_of(family)
    surgery.apply(Network(turned), plan.edits(0))
    assert relative(exact_output(turned), exact_output(model)) < 1e-9
    assert plan.error is not None and plan.error < 1e-9
    assert all(block.error is not None and block.error < 1e-9 for block in plan.blocks)
    assert (family in SUBTRACTS_MEAN) == plan.keeps_ones


@pytest.mark.parametrize("family", ACCEPTED)
def test_every_matrix_that_touches_the_residual_changes_and_every_gain_is_one(family: str) -> None:
    model, turned = FAMILIES[family](), FAMILIES[family]()
    surgery.apply(Network(turned), plan_of(family).edits(0))
    plan, after = plan_of(family), dict(turned.named_parameters(remove_duplicate=False))
    moved = {
        name for name, value in model.named_parameters(remove_duplicate=False) if relative(after[name], value) > 0.1
    }
    norms = [norm for block in plan.blocks for norm in block.norms] + list(plan.norms)
    assert {reader for norm in norms for reader in norm.readers} <= moved
    assert {writer for block in plan.blocks for writer in block.writers} | set(plan.embeddings) <= moved
    for norm in norms:
        assert bool((after[f"{norm.norm}.weight"] == 1).all())


@pytest.mark.parametrize("family", ACCEPTED)
def test_heads_are_found_where_values_meet_the_output_projection(family: str) -> None:
    block = plan_of(family).blocks[-1]
    heads = [
        f"{head.value}[{head.first_channel}] > {head.output}".replace(f"{block.block}.", "").replace(".weight", "")
        for head in block.heads
    ]
    assert heads == ([ACCEPTED[family]] if ACCEPTED[family] else [])
    assert all(head.size == 16 for head in block.heads)


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_rotated_is_refused_with_the_reason(family: str) -> None:
    model = FAMILIES[family]()
    with pytest.raises(StructureError, match=REFUSED[family]):
        find_rotation(Network(model), sample_inputs(model), heads=False)


class Indexing(nn.Module):
    """Reaches by number for layers that are as alike as blocks, as Gemma 3n does behind its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(2))
        self.behind, self.norm = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        x = self.norm(x)
        y: Tensor = self.behind[0](x) + self.behind[1](x) + self.behind[2](x)
        return y


def test_a_network_that_does_not_run_with_one_block_of_each_kind_is_refused_with_the_reason() -> None:
    with pytest.raises(StructureError, match=r"cannot be rotated: it does not run on the copy.*\(IndexError: index"):
        find_rotation(Network(Indexing()), {"x": torch.randn(4, 16)})


@pytest.mark.parametrize("family", HEADS_ONLY)
def test_heads_alone_can_be_turned_where_the_residual_cannot(family: str) -> None:
    model, turned = FAMILIES[family](), FAMILIES[family]().double()
    plan = find_rotation(Network(model), sample_inputs(model), residual=False)
    surgery.apply(Network(turned), plan.edits(0))
    assert relative(exact_output(turned), exact_output(model)) < 1e-9
    assert not plan.norms and not plan.embeddings and all(block.heads for block in plan.blocks)


def test_heads_alone_are_refused_where_there_are_none() -> None:
    model = FAMILIES["gpt_neox"]()
    with pytest.raises(StructureError, match="nothing would be rotated"):
        find_rotation(Network(model), sample_inputs(model), residual=False)


@pytest.mark.parametrize("family", TIED)
def test_a_tied_head_is_cut_loose(family: str) -> None:
    turned = FAMILIES[family]()
    assert plan_of(family).unties == ("lm_head.weight",)
    surgery.apply(Network(turned), plan_of(family).edits(0))
    assert turned.get_output_embeddings().weight is not turned.get_input_embeddings().weight
    assert turned.config.tie_word_embeddings is False
    turned.tie_weights()
    assert turned.get_output_embeddings().weight is not turned.get_input_embeddings().weight


@pytest.mark.parametrize("family", ["llama_gqa", "opt", "mixtral"])
def test_a_plan_made_on_the_meta_device_is_the_same(family: str) -> None:
    def without_errors(plan: RotationPlan) -> RotationPlan:
        return replace(plan, error=None, blocks=tuple(replace(block, error=None) for block in plan.blocks))

    inputs = sample_inputs(FAMILIES[family]())
    network = Network(meta_model(family))
    plan = find_rotation(network, inputs)
    assert without_errors(plan) == without_errors(plan_of(family))
    assert prove_rotation(network, plan, inputs) is None


def test_a_block_rotated_by_itself_equals_the_block_of_the_rotated_model() -> None:
    plan, turned = plan_of("qwen2"), FAMILIES["qwen2"]().to(torch.bfloat16)
    model, alone = meta_model("qwen2"), FAMILIES["qwen2"]().to(torch.bfloat16).model.layers[1]
    model.model.layers[1] = alone
    surgery.apply(Network(turned), plan.edits(4))
    surgery.apply(Network(model), [plan.block_edit("model.layers.1", 4)])
    expected = turned.get_submodule("model.layers.1").state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in alone.state_dict().items())


def test_the_whole_model_is_proven_on_its_own_weights_and_a_wrong_plan_is_caught() -> None:
    model, plan = FAMILIES["llama_gqa"](), plan_of("llama_gqa")
    network, inputs = Network(model), sample_inputs(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    error = prove_rotation(network, plan, inputs)
    assert error is not None and error < 1e-9
    wrong = replace(plan, blocks=(plan.blocks[0], replace(plan.blocks[1], writers=plan.blocks[1].writers[:1])))
    with pytest.raises(StructureError, match="some block is not like"):
        prove_rotation(network, wrong, inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2", "mixtral"])
def test_of_a_large_model_every_block_is_proven_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LARGEST_PROVEN", 0)
    model, plan = FAMILIES[family](), plan_of(family)
    network, inputs = Network(model), sample_inputs(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert prove_rotation(network, plan, inputs) is None
    wrong = replace(plan, blocks=(plan.blocks[0], replace(plan.blocks[1], writers=plan.blocks[1].writers[:1])))
    with pytest.raises(StructureError, match=rf"Block {plan.blocks[1].block} cannot be rotated"):
        prove_rotation(network, wrong, inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_looking_for_a_rotation_leaves_the_model_as_it_was() -> None:
    model = FAMILIES["gpt2"]().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert find_rotation(Network(model), sample_inputs(model)) == plan_of("gpt2")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and model.config.use_cache and model.config.tie_word_embeddings
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_weights_shared_between_blocks_are_refused() -> None:
    model = FAMILIES["llama_mha"]()
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    with pytest.raises(StructureError, match=r"mlp\.up_proj\.weight is shared"):
        find_rotation(Network(model), sample_inputs(model))


def test_a_norm_of_several_blocks_is_refused() -> None:
    model = FAMILIES["llama_mha"]()
    first, second = model.model.layers
    for block in (first, second):
        block.post_attention_layernorm = block.input_layernorm  # its gain goes into all in the block that read it
    find_rotation(Network(model), sample_inputs(model))
    second.input_layernorm = second.post_attention_layernorm = first.input_layernorm
    with pytest.raises(StructureError, match=r"layers\.1\.input_layernorm\.weight is shared between layers"):
        find_rotation(Network(model), sample_inputs(model))


def test_a_plan_is_plain_data_and_a_stage_that_does_nothing_is_refused() -> None:
    told = json.loads(json.dumps(plan_of("mixtral").to_dict()))
    assert "model.layers.0.mlp.gate.weight" in told["blocks"][0]["norms"][1]["readers"]
    with pytest.raises(RecipeError, match="turns nothing"):
        RandomRotation(residual=False, heads=False)


@functools.cache
def with_outliers(*, rotated: bool) -> PreTrainedModel:
    model = FAMILIES["llama_gqa"]()
    plant(model, 0.03, (30.0, 100.0), seed=0)
    if rotated:
        stage, network = RandomRotation(seed=1), Network(model)
        surgery.apply(network, stage.edits(stage.find(network, sample_inputs(model))))
    return model


def kurtosis_of_inputs(model: PreTrainedModel) -> list[float]:
    found = []

    def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0].flatten(0, -2).double()
        found.append(float((x.pow(4).mean(-1) / x.pow(2).mean(-1).square()).mean()))

    readers = [reader for block in model.model.layers for reader in (block.self_attn.q_proj, block.mlp.gate_proj)]
    handles = [reader.register_forward_pre_hook(hook) for reader in readers]
    output_tensor(model, sample_inputs(model))
    for handle in handles:
        handle.remove()
    return found


def test_outlier_channels_vanish() -> None:
    outlying, turned = (kurtosis_of_inputs(with_outliers(rotated=rotated)) for rotated in (False, True))
    assert min(outlying) > 15 and max(turned) < 6  # 3 for normal numbers, 64 for one channel of 64


@pytest.mark.parametrize("scheme", ["w4a16-channel", "w4a16-g32", "w8a8-dynamic"])
def test_rounding_costs_less_after_rotation(scheme: str) -> None:
    errors = []
    for model in (with_outliers(rotated=False), with_outliers(rotated=True)):
        reference = output_tensor(model, sample_inputs(model))
        quantized = goldstick.apply(model, {"stages": [{"rtn": {"scheme": scheme}}]}).model
        errors.append(relative(output_tensor(quantized, sample_inputs(model)), reference))
    assert errors[1] < 0.8 * errors[0]
