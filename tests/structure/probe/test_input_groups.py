"""The structure probe on every family of tests/tiny_models.py: exact groups, exact folds, and the margin."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from goldstick.structure import Network
from goldstick.structure.probe.findings import BlockStructure
from goldstick.structure.probe.fold import apply_fold, find_producer
from goldstick.structure.probe.input_groups import _channels, probe_block, probe_network
from tests.support.tiny_models import FAMILIES, meta_model, output_tensor, sample_inputs

every_family = pytest.mark.parametrize("family", FAMILIES)

Expected = tuple[list[str], list[str]]

_ATTENTION = ["self_attn.q_proj self_attn.k_proj self_attn.v_proj", "self_attn.o_proj"]
_GATED = ["mlp.gate_proj mlp.up_proj", "mlp.down_proj"]
_NORM_TO_QKV = "input_layernorm > " + _ATTENTION[0]
_NORM_TO_GATED = "post_attention_layernorm > mlp.gate_proj mlp.up_proj"
_V_TO_O = "self_attn.v_proj > self_attn.o_proj"
_UP_TO_DOWN = "mlp.up_proj > mlp.down_proj"

_GROUPED_QUERY: Expected = (_ATTENTION + _GATED, [_NORM_TO_QKV, _NORM_TO_GATED, _UP_TO_DOWN])
_GEMMA: Expected = (
    _ATTENTION + _GATED,
    [
        "input_layernorm(1+w) > " + _ATTENTION[0],
        "pre_feedforward_layernorm(1+w) > mlp.gate_proj mlp.up_proj",
        _UP_TO_DOWN,
    ],
)
_LATENT_ATTENTION = [
    "self_attn.q_a_proj self_attn.kv_a_proj_with_mqa",
    "self_attn.q_b_proj",
    "self_attn.kv_b_proj",
    "self_attn.o_proj",
]
_LATENT_FOLDS = [
    "input_layernorm > self_attn.q_a_proj self_attn.kv_a_proj_with_mqa",
    "self_attn.q_a_layernorm > self_attn.q_b_proj",
    "self_attn.kv_a_layernorm > self_attn.kv_b_proj",
]


def _t5_attention(layer: int, name: str) -> tuple[str, str, str]:
    path = f"layer.{layer}.{name}"
    return f"{path}.q", f"{path}.k {path}.v", f"{path}.o"


_Q, _KV, _O = _t5_attention(0, "SelfAttention")
_CROSS_Q, _CROSS_KV, _CROSS_O = _t5_attention(1, "EncDecAttention")


def _t5(layers: int) -> Expected:
    """The encoder's block has 2 sub-layers, the decoder's 3: attention to the encoder between the others."""
    wi, wo = (f"layer.{layers - 1}.DenseReluDense.{name}" for name in ("wi", "wo"))
    norm = "layer.{}.layer_norm > {}".format
    cross = layers == 3
    return (
        [f"{_Q} {_KV}", _O, *([_CROSS_Q, _CROSS_KV, _CROSS_O] if cross else []), wi, wo],
        [
            norm(0, f"{_Q} {_KV}"),
            f"{_KV.split()[1]} > {_O}",
            *([norm(1, _CROSS_Q), f"{_CROSS_KV.split()[1]} > {_CROSS_O}"] if cross else []),
            norm(layers - 1, wi),
            f"{wi} > {wo}",
        ],
    )


_GELU_MLP = ["mlp.dense_h_to_4h", "mlp.dense_4h_to_h"]
_RESNET = [f"layers.{layer}.layer.{index}.convolution" for layer in (0, 1) for index in (0, 1)]
_RESNET_FOLDS = [f"layers.{layer}.layer.0.normalization > layers.{layer}.layer.1.convolution" for layer in (0, 1)]

#: Family → block → (input groups, accepted folds), names relative to the block, in order of execution.
#: A fold reads "producer[first channel](1+w) > consumers".
EXPECTED: dict[str, dict[str, Expected]] = {
    "llama_mha": {"model.layers.0": (_ATTENTION + _GATED, [_NORM_TO_QKV, _V_TO_O, _NORM_TO_GATED, _UP_TO_DOWN])},
    "llama_gqa": {"model.layers.0": _GROUPED_QUERY},
    "mistral": {"model.layers.0": _GROUPED_QUERY},
    "qwen2": {"model.layers.0": _GROUPED_QUERY},
    "qwen3": {"model.layers.0": _GROUPED_QUERY},
    "gemma2": {"model.layers.0": _GEMMA},
    "gemma3": {"model.layers.0": _GEMMA},
    "phi3": {
        "model.layers.0": (
            ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"],
            [
                "input_layernorm > self_attn.qkv_proj",
                "post_attention_layernorm > mlp.gate_up_proj",
                "mlp.gate_up_proj[128] > mlp.down_proj",
            ],
        )
    },
    "opt": {
        "model.decoder.layers.0": (
            [_ATTENTION[0], "self_attn.out_proj", "fc1", "fc2"],
            [
                "self_attn_layer_norm > " + _ATTENTION[0],
                "self_attn.v_proj > self_attn.out_proj",
                "final_layer_norm > fc1",
                "fc1 > fc2",
            ],
        )
    },
    "gpt2": {
        "transformer.h.0": (
            ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"],
            ["ln_1 > attn.c_attn", "attn.c_attn[128] > attn.c_proj", "ln_2 > mlp.c_fc"],
        )
    },
    "gpt_neox": {
        "gpt_neox.layers.0": (
            ["attention.query_key_value", "attention.dense", *_GELU_MLP],
            [
                "input_layernorm > attention.query_key_value",
                "post_attention_layernorm > mlp.dense_h_to_4h",
            ],
        )
    },
    "falcon": {
        "transformer.h.0": (
            [
                "self_attention.query_key_value mlp.dense_h_to_4h",
                "self_attention.dense",
                "mlp.dense_4h_to_h",
            ],
            ["input_layernorm > self_attention.query_key_value mlp.dense_h_to_4h"],
        )
    },
    "bloom": {
        "transformer.h.0": (
            ["self_attention.query_key_value", "self_attention.dense", *_GELU_MLP],
            [
                "input_layernorm > self_attention.query_key_value",
                "post_attention_layernorm > mlp.dense_h_to_4h",
            ],
        )
    },
    "mixtral": {
        "model.layers.0": (
            [*_ATTENTION, "mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            [_NORM_TO_QKV, "mlp.experts.gate_up_proj[128] > mlp.experts.down_proj"],
        )
    },
    "qwen3_moe": {
        "model.layers.0": (
            [*_ATTENTION, "mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            [_NORM_TO_QKV, "mlp.experts.gate_up_proj[32] > mlp.experts.down_proj"],
        )
    },
    "deepseek_v3": {
        "model.layers.0": (
            _LATENT_ATTENTION + _GATED,
            [*_LATENT_FOLDS, _NORM_TO_GATED, _UP_TO_DOWN],
        ),
        "model.layers.1": (
            [
                *_LATENT_ATTENTION,
                "mlp.experts.gate_up_proj mlp.shared_experts.gate_proj mlp.shared_experts.up_proj",
                "mlp.experts.down_proj",
                "mlp.shared_experts.down_proj",
            ],
            [
                *_LATENT_FOLDS,
                "mlp.experts.gate_up_proj[32] > mlp.experts.down_proj",
                "mlp.shared_experts.up_proj > mlp.shared_experts.down_proj",
            ],
        ),
    },
    "bert": {
        "bert.encoder.layer.0": (
            [
                "attention.self.query attention.self.key attention.self.value",
                "attention.output.dense",
                "intermediate.dense",
                "output.dense",
            ],
            ["attention.self.value > attention.output.dense"],
        )
    },
    "t5": {
        # Relative positions live in the first block only, so each half has blocks of two kinds.
        "encoder.block.0": _t5(2),
        "encoder.block.1": _t5(2),
        "decoder.block.0": _t5(3),
        "decoder.block.1": _t5(3),
    },
    "vit": {
        "vit.layers.0": (
            [
                "attention.q_proj attention.k_proj attention.v_proj",
                "attention.o_proj",
                "mlp.fc1",
                "mlp.fc2",
            ],
            [
                "layernorm_before > attention.q_proj attention.k_proj attention.v_proj",
                "attention.v_proj > attention.o_proj",
                "layernorm_after > mlp.fc1",
            ],
        )
    },
    "resnet": {
        "resnet.encoder.stages.0": (_RESNET, _RESNET_FOLDS),
        "resnet.encoder.stages.1": (
            [f"{_RESNET[0]} layers.0.shortcut.convolution", *_RESNET[1:]],
            _RESNET_FOLDS,
        ),
    },
}


@dataclass(frozen=True)
class Probed:
    network: Network
    inputs: dict[str, Tensor]
    found: dict[str, BlockStructure]
    unchanged: bool


@functools.cache
def probed(family: str) -> Probed:
    model = FAMILIES[family]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network, inputs = Network(model), sample_inputs(model)
    found = probe_network(network, inputs)
    after = model.state_dict()
    unchanged = list(before) == list(after) and all(torch.equal(before[name], after[name]) for name in before)
    return Probed(network, inputs, found, unchanged)


def described(structure: BlockStructure) -> Expected:
    def short(names: tuple[str, ...]) -> str:
        return " ".join(name.removeprefix(structure.block + ".") for name in names)

    folds = [
        short((pair.producer,))
        + (f"[{pair.first_channel}]" if pair.first_channel else "")
        + ("(1+w)" if pair.unit_offset else "")
        + f" > {short(pair.consumers)}"
        for pair in structure.folds
    ]
    return [short(group.sites) for group in structure.groups], folds


@every_family
def test_the_probe_finds_exactly_these_groups_and_folds(family: str) -> None:
    tried = {block: structure for block, structure in probed(family).found.items() if structure.like is None}
    assert {block: structure.problem for block, structure in tried.items()} == dict.fromkeys(EXPECTED[family])
    assert {block: described(structure) for block, structure in tried.items()} == EXPECTED[family]


@every_family
def test_accepted_and_rejected_folds_are_far_apart(family: str) -> None:
    for structure in probed(family).found.values():
        assert structure.worst_accepted == max(pair.error for pair in structure.folds)
        assert structure.worst_accepted <= 2e-6
        assert structure.best_rejected is not None
        assert structure.best_rejected >= 1e-3
        assert structure.best_rejected >= 1000 * structure.worst_accepted


@every_family
def test_probing_leaves_the_model_as_it_was_bit_for_bit(family: str) -> None:
    assert probed(family).unchanged
    modules = list(probed(family).network.model.modules())
    assert not any(module._forward_pre_hooks or module.training for module in modules)


@every_family
def test_a_model_on_the_meta_device_shows_the_same_structure(family: str) -> None:
    model = meta_model(family)
    found = probe_network(Network(model), sample_inputs(model))
    assert {block: described(structure) for block, structure in found.items()} == {
        block: described(structure) for block, structure in probed(family).found.items()
    }
    for structure in found.values():
        assert structure.problem is None
        assert structure.best_rejected is not None
        assert structure.best_rejected >= 1e-3


@every_family
def test_every_accepted_fold_leaves_the_whole_models_output_unchanged(family: str) -> None:
    model = FAMILIES[family]()
    sites = Network(model).by_name
    before = output_tensor(model, probed(family).inputs)
    generator = torch.Generator().manual_seed(3)
    count = 0
    for structure in probed(family).found.values():
        widths = {group.sites: group.in_features for group in structure.groups}
        for pair in structure.folds:
            scale = torch.exp2(torch.rand(widths[pair.consumers], generator=generator) * 2 - 1)
            apply_fold(model, pair.fold(scale), [sites[name] for name in pair.consumers])
            count += 1
    after = output_tensor(model, probed(family).inputs)
    assert count > 0
    assert float((after - before).norm() / before.norm()) < 1e-5


@every_family
def test_findings_are_plain_json_and_cover_every_block(family: str) -> None:
    found = probed(family).found
    assert tuple(found) == probed(family).network.blocks
    for block, structure in found.items():
        plain = structure.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert plain["block"] == block
        assert structure.idle == ()


def test_probing_all_blocks_agrees_with_probing_the_first_of_each_kind() -> None:
    case = probed("llama_mha")
    every = probe_network(case.network, case.inputs, blocks="all")
    assert every["model.layers.1"].like is None
    assert case.found["model.layers.1"].like == "model.layers.0"
    for block in case.network.blocks:
        assert described(every[block]) == described(case.found[block])
        assert all(pair.producer.startswith(block + ".") for pair in case.found[block].folds)


def test_a_meta_block_behind_a_router_is_probed_on_its_siblings_inputs_and_says_so() -> None:
    model = meta_model("mixtral")
    found = probe_network(Network(model), sample_inputs(model), blocks="all")
    second = found["model.layers.1"]
    assert second.problem is None
    assert second.inputs_of == "model.layers.0"
    assert described(second) == EXPECTED["mixtral"]["model.layers.0"]


class Toy(nn.Module):
    """A network of one hand-made block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([block])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers[0](x)
        return result


def toy(block: nn.Module) -> BlockStructure:
    return probe_network(Network(Toy(block)), {"x": torch.randn(4, 8)})["layers.0"]


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)
        self.sometimes = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.a(y) + torch.tanh(self.b(y))


def test_a_layer_that_did_not_run_forbids_folds_of_its_width() -> None:
    structure = toy(Chain())
    assert structure.idle == ("layers.0.sometimes",)
    assert structure.folds == ()
    assert structure.groups[0].sites == ("layers.0.a", "layers.0.b")


def test_a_large_residual_does_not_hide_a_wrong_fold() -> None:
    class Wrong(Chain):
        def __init__(self) -> None:
            super().__init__()
            del self.sometimes
            del self.norm

        def forward(self, x: Tensor) -> Tensor:
            return x * 1e6 + self.b(torch.tanh(self.a(x)))

    structure = toy(Wrong())
    assert structure.best_rejected is not None
    assert structure.best_rejected < 1e-5  # the bare tolerance would have let it pass
    assert structure.folds == ()


def test_a_block_that_fails_to_run_gives_a_problem() -> None:
    class Failing(Chain):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("wants a moon phase")

    structure = toy(Failing())
    assert structure.problem is not None
    assert "wants a moon phase" in structure.problem
    assert structure.groups == ()
    assert structure.to_dict()["problem"] == structure.problem


def test_a_block_that_answers_at_random_gives_a_problem() -> None:
    class Noisy(Chain):
        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + torch.rand_like(x)

    structure = toy(Noisy())
    assert structure.problem is not None
    assert "two runs" in structure.problem


def test_inputs_that_the_model_does_not_take_give_a_problem_for_every_block() -> None:
    network = Network(FAMILIES["llama_mha"]())
    found = probe_network(network, {"pixels": torch.zeros(1)})
    assert all(structure.problem and "model.layers" in structure.problem for structure in found.values())


def test_a_bfloat16_block_is_probed_in_float32() -> None:
    model = FAMILIES["llama_mha"]().to(torch.bfloat16)
    structure = probe_network(Network(model), sample_inputs(model))["model.layers.0"]
    assert described(structure) == EXPECTED["llama_mha"]["model.layers.0"]
    assert structure.worst_accepted is not None
    assert structure.worst_accepted <= 2e-6


def test_a_block_without_sites_has_no_groups_and_no_problem() -> None:
    structure = probe_block(nn.ReLU(), [], (torch.randn(2, 8),), {})
    assert structure.groups == ()
    assert structure.problem is None


def test_after_as_many_trials_as_are_allowed_the_other_groups_are_listed() -> None:
    network = Network(FAMILIES["llama_gqa"]())
    inputs = sample_inputs(network.model)
    found = probe_network(network, inputs, most_trials=4)
    first, second = (found[block] for block in network.blocks[:2])
    assert first.folds and f"{network.blocks[0]}.mlp.down_proj" in first.untried
    assert f"{network.blocks[1]}.mlp.down_proj" in second.untried
    assert not probe_network(network, inputs, most_trials=256)[network.blocks[0]].untried


def test_of_very_many_parts_of_a_layer_the_last_alone_is_tried() -> None:
    block = nn.Sequential(nn.Linear(8, 4 * 200, bias=False), nn.Linear(4 * 200, 4, bias=False), nn.Linear(4, 8))
    narrow = nn.Sequential(nn.Linear(8, 4 * 20, bias=False), nn.Linear(4 * 20, 4, bias=False), nn.Linear(4, 8))
    tried = []
    for model in (narrow, block):
        producer = find_producer(model.get_submodule, "0")
        tried.append(len(_channels(producer, 4)))
    assert tried == [20, 1]
