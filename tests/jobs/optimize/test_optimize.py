"""goldstick.optimize: what is found in networks, that nothing they compute changes, and what is said of it."""

from __future__ import annotations

import copy
import itertools
import logging
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
import torch
from torch import Tensor, nn
from transformers import Mamba2Config, Mamba2ForCausalLM

import goldstick
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import UsageError
from goldstick.jobs.optimize import faster_layers
from goldstick.jobs.optimize.optimization import Optimization
from goldstick.kernels.cpu import _C
from goldstick.kernels.prepared import PreparedLinear
from goldstick.kernels.rotary import attend_token
from goldstick.nn import FusedLinears, QuantizedLinear, kv_buffer
from goldstick.nn.fused import token_attention
from goldstick.nn.fused.decode_block import FusedDecodeBlock
from goldstick.nn.fused.feed_forward import NormForward
from goldstick.nn.kv_cache import QuantizedStates
from tests.support.tiny_models import FAMILIES, tiny

pytestmark = pytest.mark.skipif(
    _C is None, reason="the other backends multiply in float, where stacking may round anew"
)

IDS = torch.arange(24).reshape(2, 12)
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj")
INTERLEAVED = "interleaved weight"
WHOLE = {
    "one multiplication": 4,
    "one norm": 5,
    "one gated activation": 2,
    "one token's attention": 2,
    "one block of one token": 2,
}


def quantized(family: str, recipe: Any = "rtn-w4a16-g32") -> Any:
    """A tiny model; widths are multiples of 32."""
    return goldstick.apply(FAMILIES[family](), recipe, inplace=True).model.eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS).logits
    return found


def merged(found: Optimization) -> list[tuple[str, ...]]:
    """The layers of each group that was stacked, by their names in a block."""
    groups = [change.modules for change in found.done if change.what == "one multiplication"]
    return [tuple(path.split(".", 3)[-1] for path in group) for group in groups]


def counts(found: Optimization) -> dict[str, int]:
    """How often each change was made, but for copies of weights, which every linear layer gets with AVX2."""
    return dict(Counter(change.what for change in found.done if change.what != INTERLEAVED))


def left(found: Optimization) -> set[str | None]:
    """Why changes were not made, but for copies of weights."""
    return {change.reason for change in found.left if change.what != INTERLEAVED}


def distance(after: Tensor, before: Tensor) -> float:
    """Σ(y′ − y)² / Σy²."""
    return float((after.double() - before.double()).square().sum() / before.double().square().sum())


@pytest.mark.parametrize("family", ["llama_gqa", "llama_mha", "mistral", "qwen2", "qwen3", "gemma3"])
def test_layers_with_the_same_input_become_one_multiplication(family: str) -> None:
    model = quantized(family)
    before = logits(model)
    found = goldstick.optimize(model)
    assert merged(found) == [ATTENTION, FEED_FORWARD] * 2
    assert distance(logits(model), before) < 1e-8


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama_gqa", WHOLE),
        ("qwen2", WHOLE),
        ("qwen3", {"one multiplication": 4, "one norm": 9, "one gated activation": 2}),
        ("gemma3", {"one multiplication": 4}),
        ("mixtral", {"one multiplication": 2, "one norm": 5, "one token's attention": 2}),
        ("phi3", {"one norm": 5}),
    ],
)
def test_faster_forwards_are_found_by_what_modules_compute(family: str, expected: dict[str, int]) -> None:
    found = goldstick.optimize(quantized(family))
    assert counts(found) == expected
    assert all(change.reason for change in found.left)


@pytest.mark.parametrize("family", ["llama_gqa", "mixtral", "gpt2"])
def test_a_second_call_changes_nothing_and_says_no_more_than_the_first(family: str) -> None:
    model = quantized(family)
    first, before = goldstick.optimize(model), logits(model)
    second = goldstick.optimize(model)
    assert first.done and not second.done and set(second.left) <= set(first.left)
    assert torch.equal(logits(model), before)


def decoded(model: Any, ids: Tensor, steps: int) -> Tensor:
    """Logits of single tokens one after the other, on a cache."""
    with torch.no_grad():
        output = model(input_ids=ids[:, :2])
        found = []
        for step in range(steps):
            output = model(input_ids=ids[:, step : step + 1], past_key_values=output.past_key_values)
            found.append(output.logits)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("family", ["llama_gqa", "llama_mha", "qwen2", "mistral"])
def test_decoding_token_by_token_gives_the_same_logits(family: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_buffer, "_LEAST_ROOM", 2)
    plain, faster = quantized(family), quantized(family)
    goldstick.optimize(faster)
    ids = torch.randint(
        0, 128, (rows, 70), generator=torch.Generator().manual_seed(1)
    )  # more than a buffer's first room
    assert distance(decoded(faster, ids, 16), decoded(plain, ids, 16)) < 1e-8


CACHES = [
    {"mode": "dynamic", "keys": "head"},
    {"mode": "dynamic", "keys": "head", "window": 4, "sinks": 3},
    {"keys": "channel", "values": "head"},
    {"keys": "tensor", "values": "channel", "window": 2},
    {"dtype": "fp8", "mode": "dynamic", "sinks": 2},
    {"dtype": "fp8"},
    {"dtype": "int4"},
    {"dtype": "int4", "rotate": True, "window": 4, "sinks": 3},
]


@pytest.mark.parametrize("scheme", CACHES, ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_quantized_cache_is_read_as_codes(scheme: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_buffer, "_LEAST_ROOM", 2)
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}, {"kv_cache": scheme}]}
    data = None if scheme.get("mode") == "dynamic" or scheme.get("dtype") == "int4" else [IDS]
    plain = goldstick.apply(FAMILIES["llama_gqa"](), recipe, data=data).model.eval()
    faster = goldstick.apply(FAMILIES["llama_gqa"](), recipe, data=data).model.eval()
    found = goldstick.optimize(faster)
    assert counts(found)["one token's attention"] == 2
    ids = torch.randint(0, 128, (rows, 16), generator=torch.Generator().manual_seed(1))
    expected = decoded(plain, ids, 16)
    made = []
    honest = QuantizedStates.dequantized
    monkeypatch.setattr(QuantizedStates, "dequantized", lambda self: (made.append(self), honest(self))[1])
    assert distance(decoded(faster, ids, 16), expected) < 1e-6
    assert len(made) == 4  # keys and values of the prompt, in two layers


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}, {}])
def test_generated_tokens_stay_the_same(options: dict[str, int]) -> None:
    model = quantized("llama_gqa")
    before = model.generate(IDS, max_new_tokens=8, do_sample=False, **options)
    goldstick.optimize(model)
    assert torch.equal(model.generate(IDS, max_new_tokens=8, do_sample=False, **options), before)


def test_padded_rows_are_attended_to_as_before() -> None:
    plain, faster = quantized("llama_gqa"), quantized("llama_gqa")
    goldstick.optimize(faster)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    tokens = [
        model.generate(IDS, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
        for model in (plain, faster)
    ]
    assert torch.equal(*tokens)


def test_a_cache_that_was_cropped_or_copied_goes_on_by_itself() -> None:
    model = quantized("llama_gqa")
    goldstick.optimize(model)
    with torch.no_grad():
        cache = model(input_ids=IDS[:1]).past_key_values
        model(input_ids=IDS[:1, :1], past_key_values=cache)
        copied = copy.deepcopy(cache)
        one = model(input_ids=IDS[:1, 1:2], past_key_values=cache).logits
        model(input_ids=IDS[:1, 5:6], past_key_values=cache)
        cache.crop(-2)  # both tokens are forgotten, and one of them comes again
        again = model(input_ids=IDS[:1, 1:2], past_key_values=cache).logits
        other = model(input_ids=IDS[:1, 1:2], past_key_values=copied).logits
    assert torch.equal(one, again)
    assert torch.equal(one, other)


def test_an_optimized_model_is_copied_saved_and_cast() -> None:
    model = quantized("llama_gqa")
    names = list(model.state_dict())
    goldstick.optimize(model)
    assert list(model.state_dict()) == names
    copied = copy.deepcopy(model)
    assert torch.equal(logits(copied), logits(model))
    assert decoded(copied.to(torch.bfloat16), IDS, 3).dtype == torch.bfloat16


def by_parts(model: Any) -> Any:
    """The same with the forwards of blocks taken out; the other faster ones stay."""
    for layer in model.model.layers:
        assert isinstance(layer.__dict__.pop("forward"), FusedDecodeBlock)
    return model


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one number for each block that runs in one call."""
    made: list[int] = []
    honest = FusedDecodeBlock._prepared

    def counted(self: FusedDecodeBlock, dtype: torch.dtype) -> Any:
        found = honest(self, dtype)
        made.extend([1] if found is not None else [])
        return found

    monkeypatch.setattr(FusedDecodeBlock, "_prepared", counted)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", ["rtn-w4a16-g32", "rtn-w8a8"])
@pytest.mark.parametrize("family", ["llama_gqa", "qwen2"])
def test_a_block_in_one_call_gives_the_bits_of_its_parts(
    family: str, recipe: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = goldstick.apply(FAMILIES[family]().to(dtype), recipe, inplace=True).model.eval()
    assert counts(goldstick.optimize(model)) == WHOLE
    made = calls_of(monkeypatch)
    found = decoded(model, IDS, 8)
    assert len(made) == 16
    assert torch.equal(decoded(by_parts(model), IDS, 8), found)


def test_a_block_sees_weights_that_were_changed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    goldstick.optimize(model)
    made, before = calls_of(monkeypatch), decoded(model, IDS, 2)
    layer = model.model.layers[1]
    layers = []
    with torch.no_grad():
        layer.input_layernorm.weight.mul_(2)
        layers.append(decoded(model, IDS, 2))
        layer.mlp.down_proj.weight_scale = layer.mlp.down_proj.weight_scale * 2
        layers.append(decoded(model, IDS, 2))
        layer.self_attn.k_proj.weight_scale = layer.self_attn.k_proj.weight_scale * 2
        layers.append(decoded(model, IDS, 2))
        layer.post_attention_layernorm.weight.data = layer.post_attention_layernorm.weight.data * 2
        layers.append(decoded(model, IDS, 2))
        layer.mlp.gate_proj.weight_packed[0].bitwise_not_()
        layers.append(decoded(model, IDS, 2))
        layer.self_attn.o_proj.weight_scale.mul_(2)
        layers.append(decoded(model, IDS, 2))
    assert len(made) == 4 * 7
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise([before, *layers]))
    assert torch.equal(decoded(by_parts(model), IDS, 2), layers[-1])


def test_a_block_lets_hooks_and_other_forwards_see_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    goldstick.optimize(model)
    before, made, seen = decoded(model, IDS, 2), calls_of(monkeypatch), list[Any]()
    handle = model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *_: seen.append(1))
    assert torch.equal(decoded(model, IDS, 2), before)
    assert len(seen) == 3 and len(made) == 2, "the other block runs as one"
    handle.remove()
    attention = model.model.layers[0].self_attn
    honest = attention.__dict__["forward"]
    attention.__dict__["forward"] = lambda **given: (seen.append(1), honest(**given))[1]
    decoded(model, IDS, 2)
    assert len(seen) == 6 and len(made) == 4


def test_a_block_is_not_run_as_one_where_gradients_are_wanted() -> None:
    model = quantized("llama_gqa").requires_grad_(False)
    goldstick.optimize(model)
    cache = model(input_ids=IDS[:, :4]).past_key_values
    assert not model(input_ids=IDS[:, 4:5], past_key_values=cache).logits.requires_grad
    model.model.layers[1].post_attention_layernorm.weight.requires_grad_()
    assert model(input_ids=IDS[:, 5:6], past_key_values=cache).logits.requires_grad


def test_a_block_of_another_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    model = quantized("llama_gqa")
    honest = LlamaDecoderLayer.forward
    monkeypatch.setattr(LlamaDecoderLayer, "forward", lambda self, *args, **given: honest(self, *args, **given) * 0.5)
    found = goldstick.optimize(model)
    assert left(found) == {"it computes something else than an attention and a feed-forward, each behind a norm"}
    assert counts(found) == {name: count for name, count in WHOLE.items() if name != "one block of one token"}


def test_layers_that_do_not_fit_each_other_make_no_block() -> None:
    def layer(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Any:
        packed = torch.zeros(rows, columns // 8, dtype=torch.int32)
        scale = torch.ones(rows, 1, dtype=dtype)
        stored = scale.view(torch.int16) if dtype == torch.bfloat16 else scale
        return _C.prepare_linear(packed, stored, None, None, None, None, 4, columns, columns, "")

    def block(*layers: Any, heads: tuple[int, int, int] = (2, 1, 8)) -> Any:
        return _C.PreparedBlock(list(layers[:-3]), *layers[-3:], 0, 0, 1e-6, 1e-6, *heads, 1.0)

    good = layer(32, 24), layer(24, 16), layer(64, 24), layer(24, 32)
    made = block(*good)
    side = (0, 0, 0, 0, 4, 0, 0, 0, 0)
    for keys, values, filled, before in (
        (side, side, 4, 0),
        (side, side, -1, 0),
        (side, side, 0, 1),  # floats before it that are nowhere
        ((4, *side[1:]), side, 0, 0),
        ((1, *side[1:]), side, 0, 0),  # codes without scales
        ((3, 0, 8, 0, 4, 2, 0, 0, 0), side, 2, 0),
    ):
        with pytest.raises(ValueError, match="no room"):
            _C.run_blocks([made], 0, 0, 1, 0, 0, 0, [[(keys, values, filled, before, 0)]], 1)
    with pytest.raises(ValueError, match="stored alike"):
        _C.run_blocks([made], 0, 0, 1, 0, 0, 0, [[((1, 0, 8, 0, 4, 4, 0, 0, 0), side, 0, 0, 0)]], 1)
    for place, wrong in enumerate((layer(40, 24), layer(24, 24), layer(48, 24), layer(32, 32))):
        with pytest.raises(ValueError, match="do not fit"):
            block(*[wrong if place == other else one for other, one in enumerate(good)])
    with pytest.raises(ValueError, match="different types"):
        block(*good[:3], layer(24, 32, torch.bfloat16))
    block(layer(24, 24), layer(8, 24), *good[1:])
    with pytest.raises(ValueError, match="do not fit"):
        block(layer(24, 24), layer(16, 24), *good[1:])
    with pytest.raises(ValueError, match="different types"):
        block(layer(24, 24), layer(8, 24, torch.bfloat16), *good[1:])
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        block(*good, heads=(3, 2, 8))


def test_gradients_still_reach_the_norms() -> None:
    model = quantized("llama_gqa")
    goldstick.optimize(model)
    norm = model.model.norm
    x = torch.randn(2, 64, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None
    assert norm.weight.grad is not None


def test_a_norm_that_is_given_a_gate_uses_it() -> None:
    config = Mamba2Config(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, state_size=8, num_heads=8, head_dim=16, n_groups=1
    )
    model = goldstick.apply(tiny(Mamba2ForCausalLM, config)(), "rtn-w8a16-channel", inplace=True).model.eval()
    before = logits(model)
    assert counts(goldstick.optimize(model))["one norm"]
    assert distance(logits(model), before) < 1e-7
    norm = model.backbone.norm_f
    assert torch.equal(norm(hidden_states=torch.ones(2, 64)), norm(torch.ones(2, 64)))


def test_fused_layers_need_nothing() -> None:
    assert goldstick.optimize(quantized("gpt2"), interleave=False).done == ()
    assert str(goldstick.optimize(FAMILIES["llama_gqa"]())) == "nothing to optimize"


@pytest.mark.skipif(_C is None or _C.isa() == "scalar", reason="weights are copied for vectors")
@pytest.mark.parametrize("recipe", ["rtn-w4a16-g32", "rtn-w8a8"])
def test_linear_layers_read_interleaved_copies_of_their_weights(recipe: str) -> None:
    model = quantized("llama_gqa", recipe)
    found = goldstick.optimize(model)
    paths = [change.modules for change in found.done if change.what == INTERLEAVED]
    block = "model.layers.0"
    assert paths[:2] == [tuple(f"{block}.{name}" for name in ATTENTION), (f"{block}.self_attn.o_proj",)]
    assert len(paths) == 8 and not left(found)
    faster = logits(model)
    plain = quantized("llama_gqa", recipe)
    goldstick.optimize(plain, interleave=False)
    assert torch.equal(logits(plain), faster)
    for copied in (copy.deepcopy(model), model.float()):
        attention = copied.model.layers[0].self_attn
        assert attention.o_proj.ready().interleaved and all(
            whole.ready().interleaved for whole in attention.q_proj.shared.wholes()
        )
        assert torch.equal(logits(copied), faster)


@pytest.mark.skipif(_C is None or _C.isa() == "scalar", reason="weights are copied for vectors")
def test_layers_that_multiply_or_reorder_their_inputs_read_copies_too() -> None:
    def layer(**options: Any) -> QuantizedLinear:
        codes = torch.randint(0, 16, (48, 64), dtype=torch.uint8)
        order = torch.randperm(64) if options.pop("reorder", False) else None
        grid = Scheme.parse("w4a16-g32").weight
        tensor = QuantizedTensor(codes=codes, scale=torch.rand(48, 2), zero=None, grid=grid, input_order=order)
        return QuantizedLinear(tensor, Scheme.parse("w4a16-g32"), **options)

    for one in (layer(input_multiplier=torch.rand(64)), layer(reorder=True)):
        model, x = nn.Sequential(one), torch.randn(3, 64)
        before = model(x)
        found = goldstick.optimize(model, inputs={"input": x})
        assert [change.what for change in found.done] == [INTERLEAVED]
        assert one.prepared.reads_copy and torch.equal(model(x), before)


def test_weights_are_not_copied_where_memory_is_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    codes = sum(layer.out_features * layer.in_features for layer in layers) // 2
    scales = sum(layer.weight_scale.numel() for layer in layers) * 4
    monkeypatch.setattr(faster_layers, "used_memory", lambda: 1000)
    monkeypatch.setattr(faster_layers, "default_budget", lambda: 999 + codes + scales)
    found = goldstick.optimize(model)
    (reason,) = {change.reason for change in found.left if change.what == INTERLEAVED}
    assert reason is not None and "most of the memory that is left" in reason
    assert counts(found) == WHOLE and not any(layer.prepared.interleaved for layer in layers)
    monkeypatch.setattr(faster_layers, "default_budget", lambda: 1000 + codes + scales)
    assert not any("memory" in str(change.reason) for change in goldstick.optimize(quantized("llama_gqa")).changes)


def test_a_copy_that_gives_other_bits_is_undone_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    honest = PreparedLinear.__call__

    def wrong(self: PreparedLinear, x: Tensor, weight: Any) -> Tensor | None:
        found = honest(self, x, weight)
        return found * 2 if self.interleaved and found is not None else found

    monkeypatch.setattr(PreparedLinear, "__call__", wrong)
    found = goldstick.optimize(model)
    reasons = {change.reason for change in found.left if change.what == INTERLEAVED}
    assert reasons in ({"the copy does not give the same bits"}, {"no kernel here reads it so"})
    assert not any(module.prepared.interleaved for module in model.modules() if isinstance(module, QuantizedLinear))


def test_layers_of_other_schemes_are_left_with_the_reason() -> None:
    stages = [
        {"rtn": {"scheme": "w4a16-g32", "targets": {"exclude": ["*.k_proj"]}}},
        {"rtn": {"scheme": "w8a16", "targets": {"include": ["*.k_proj"]}}},
    ]
    found = goldstick.optimize(quantized("llama_gqa", {"stages": stages}))
    left = [change for change in found.left if change.what == "one multiplication"]
    assert [change.modules[0].rpartition(".")[2] for change in left] == ["q_proj", "q_proj"]
    assert all("schemes differ" in (change.reason or "") for change in left)
    assert "2 times not done, their schemes differ" in str(found)


@pytest.mark.parametrize("batch", [1, 3])
def test_values_of_more_bits_run_in_the_same_block(batch: int) -> None:
    """As llama.cpp's mixtures have them: queries and keys are stacked, values are not, and the block takes both."""
    stages = [
        {"rtn": {"scheme": "w4a16-g32", "targets": {"exclude": ["*.v_proj"]}}},
        {"rtn": {"scheme": "w8a16", "targets": {"include": ["*.v_proj"]}}},
    ]
    model = quantized("llama_gqa", {"stages": stages})
    plain = copy.deepcopy(model)
    found = goldstick.optimize(model)
    assert counts(found) == WHOLE
    ids = torch.randint(0, 60, (batch, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected, optimized = (one.generate(ids, max_new_tokens=8, do_sample=False) for one in (plain, model))
    assert torch.equal(expected, optimized)


def test_a_change_that_moves_the_output_is_undone_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    before = logits(model)
    honest = FusedLinears.output

    def wrong(self: FusedLinears, part: Any, x: Tensor) -> Tensor:
        return honest(self, part, x) + (x.ndim == 3)  # right for layers alone, wrong in the model

    monkeypatch.setattr(FusedLinears, "output", wrong)
    found = goldstick.optimize(model)
    assert merged(found) == []
    assert {change.reason for change in found.left} == {"the model's outputs were no longer the same"}
    assert distance(logits(model), before) < 1e-8


def test_a_forward_that_moves_the_output_is_undone_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    before = logits(model)
    honest = NormForward.__call__
    monkeypatch.setattr(NormForward, "__call__", lambda self, x: honest(self, x) * (1 + 1e-3 * (x.ndim == 3)))
    found = goldstick.optimize(model)
    assert counts(found) == {"one multiplication": 4}
    assert left(found) == {"the model's outputs were no longer the same"}
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert torch.equal(logits(model), before)


def test_a_wrong_attention_is_seen_before_it_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        token_attention, "attend_token", lambda *arguments: attend_token(*arguments[:-1], arguments[-1] * 1.01)
    )
    found = goldstick.optimize(quantized("llama_gqa"))
    assert left(found) == {"it computes something else than rotary softmax attention"}
    assert "one token's attention" not in counts(found)


def test_a_group_that_rounds_otherwise_is_undone_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    honest = FusedLinears.output

    def wrong(self: FusedLinears, part: Any, x: Tensor) -> Tensor:
        return honest(self, part, x) * (1 + 1e-6 * (len(self.parts) == 2))

    monkeypatch.setattr(FusedLinears, "output", wrong)
    found = goldstick.optimize(model)
    assert merged(found) == [ATTENTION] * 2
    assert {change.reason for change in found.left if change.what == "one multiplication"} == {
        "together they do not give the same bits"
    }


def test_other_modules_say_what_their_forward_takes() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8))
    goldstick.apply(model, "rtn-w4a16-g32", inplace=True)
    with pytest.raises(UsageError, match="inputs="):
        goldstick.optimize(model)
    for wrong in ({"images": torch.randn(3, 64)}, {"input": torch.randn(3, 64), "more": torch.ones(1)}):
        with pytest.raises(UsageError, match=r"Sequential does not run on the inputs \(.*\): .*unexpected keyword"):
            goldstick.optimize(model, inputs=wrong)
    inputs = {"input": torch.randn(3, 64)}
    assert goldstick.optimize(model, inputs=inputs, interleave=False).changes == ()
    assert {change.modules for change in goldstick.optimize(model, inputs=inputs).changes} == {("0",), ("1",)}


def test_a_checkpoint_is_loaded_optimized(tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "float")
    goldstick.quantize(tmp_path / "float", "rtn-w4a16-g32", output=tmp_path / "out", proof="tensors")
    with TestCase().assertLogs("goldstick", logging.INFO) as said:
        model = goldstick.load(tmp_path / "out", optimize=True)
    assert "one multiplication: 4 times" in "\n".join(said.output)
    assert model.get_submodule("model.layers.0.mlp.up_proj").shared is not None
    assert distance(logits(model), logits(goldstick.load(tmp_path / "out"))) < 1e-8


def runs_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of blocks of each call in C++."""
    made: list[int] = []
    honest = _C.run_blocks
    monkeypatch.setattr(_C, "run_blocks", lambda blocks, *args: (made.append(len(blocks)), honest(blocks, *args))[1])
    return made


def test_blocks_that_follow_each_other_run_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized("llama_gqa")
    goldstick.optimize(model)
    made = runs_of(monkeypatch)
    found = decoded(model, IDS, 3)
    assert made == [2] * 3
    assert torch.equal(decoded(by_parts(model), IDS, 3), found)


def test_a_block_whose_input_was_changed_between_runs_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def steered(model: Any) -> Any:
        model.model.layers[0].register_forward_hook(lambda module, args, output: output * 0.5)
        return model

    model = quantized("llama_gqa")
    goldstick.optimize(model)
    made = runs_of(monkeypatch)
    found = decoded(steered(model), IDS, 3)
    assert made == [2, 1, 1, 1, 1, 1], "they are no longer run together"
    assert torch.equal(decoded(by_parts(model), IDS, 3), found)


def test_a_change_in_place_between_two_blocks_is_seen() -> None:
    model = quantized("llama_gqa")
    goldstick.optimize(model)
    hook: Any = lambda module, args, output: output.mul_(0.5)  # noqa: E731
    model.model.layers[0].register_forward_hook(hook)
    found = decoded(model, IDS, 3)
    assert torch.equal(decoded(by_parts(model), IDS, 3), found)
