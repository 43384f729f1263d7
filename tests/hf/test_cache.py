"""The quantized cache inside transformers: against models whose keys and values are rounded by a hook of the test."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from goldstick.algorithms.kv_cache import KVCache
from goldstick.core.kv_cache import KVRanges, KVSettings
from goldstick.errors import QuantizationError, StructureError
from goldstick.hf.cache import QuantizedCache, quantized_cache_of, use_quantized_cache
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs

DECODERS = sorted(set(FAMILIES) - {"bert", "vit", "resnet"})
STAGES = {"static": KVCache(), "tensor": KVCache(keys="tensor", values="tensor"), "dynamic": KVCache(mode="dynamic")}
STAGES["int4"] = KVCache(dtype="int4")
every_stage = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)

SLIDING: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
}


def own_cache(cache: Any) -> Any:
    return getattr(cache, "self_attention_cache", cache)


def ranges_of(model: Any, inputs: dict[str, Tensor]) -> dict[int, KVRanges]:
    with torch.no_grad():
        cache = own_cache(model(**inputs).past_key_values)
    found = {}
    for index, layer in enumerate(cache.layers):
        found[index] = KVRanges(keys=layer.keys.abs().amax((0, 2)), values=layer.values.abs().amax((0, 2)))
    return found


def settings_for(model: Any, stage: KVCache = STAGES["static"]) -> KVSettings:
    return stage.solve(ranges_of(model, sample_inputs(model)))


def quantized(model: Any, stage: KVCache = STAGES["static"]) -> Any:
    twin = copy.deepcopy(model)
    use_quantized_cache(twin, settings_for(model, stage))
    return twin


class RoundingCache(DynamicCache):
    """Reference: a float cache that rounds what comes in, head by head and layer by layer."""

    def __init__(self, config: Any, settings: KVSettings) -> None:
        super().__init__(config=config)
        self.settings = settings

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        scales = self.settings.scales.get(layer_idx)
        keys = self.rounded(keys, scales.keys if scales else None)
        values = self.rounded(values, scales.values if scales else None)
        return super().update(keys, values, layer_idx, *args, **kwargs)  # type: ignore[no-any-return]

    def rounded(self, states: Tensor, scale: Tensor | None) -> Tensor:
        heads = []
        for head in range(states.shape[1]):
            x = states[:, head]  # [batch, tokens, channels]
            if self.settings.scheme.dtype == "int4":
                low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
                s = (high - low) / 15
                heads.append(((x - low) / s).round().clamp(0, 15) * s + low)
                continue
            s = x.abs().amax(-1, keepdim=True) / 127 if scale is None else scale.expand(states.shape[1], -1)[head]
            heads.append((x / s).round().clamp(-127, 127) * s)
        return torch.stack(heads, dim=1)


@pytest.mark.parametrize("switch", ["argument", "config"])
@pytest.mark.parametrize("family", ["llama_gqa", "gemma3", "t5"])
def test_a_cache_that_nobody_asked_for_is_not_handed_back(family: str, switch: str) -> None:
    """``generate`` hands what comes back in again, and without a cache all tokens with it."""
    model = quantized(FAMILIES[family]())
    inputs = sample_inputs(model)
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(inputs["input_ids"], **options)
    if switch == "config":
        for one in (model, model.get_decoder()):
            one.config.use_cache = False
        model.generation_config.use_cache = False
    off = {"use_cache": False} if switch == "argument" else {}
    assert torch.equal(model.generate(inputs["input_ids"], **options, **off), expected)
    assert model(**inputs, **off).past_key_values is None
    assert not any(isinstance(one, Cache) for one in model(**inputs, **off, return_dict=False))
    assert own_cache(model(**inputs, use_cache=True).past_key_values).get_seq_length()


@every_stage
@pytest.mark.parametrize("family", ["llama_gqa", "gemma3", "gpt2", "deepseek_v3"])
def test_a_forward_equals_one_whose_float_cache_is_rounded(family: str, stage: KVCache) -> None:
    model = FAMILIES[family]()
    inputs, settings = sample_inputs(model), settings_for(model, stage)
    with torch.no_grad():
        expected = model(**inputs, past_key_values=RoundingCache(model.config, settings)).logits
        found = model(**inputs, past_key_values=QuantizedCache(model.config, settings)).logits
    assert torch.equal(found, expected)
    assert not torch.equal(found, output_tensor(model, inputs))


@pytest.mark.parametrize("family", DECODERS)
def test_every_way_to_run_a_model_shows_the_same_quantized_cache(family: str) -> None:
    model = FAMILIES[family]()
    inputs, twin = sample_inputs(model), quantized(model)
    with torch.no_grad():
        plain = twin(**inputs).logits
        assert torch.equal(twin(**inputs, use_cache=False).logits, plain)
        float_logits = output_tensor(model, inputs)
    assert not torch.equal(plain, float_logits)
    assert float((plain - float_logits).abs().max()) < 0.15 * float(float_logits.abs().max())


@every_stage
@pytest.mark.parametrize("family", ["llama_gqa", "gemma2", "t5"])
def test_generate_goes_on_as_full_forwards_would(family: str, stage: KVCache) -> None:
    """Each token is rounded once, so decoding step by step equals reading the whole text again at each step."""
    model = FAMILIES[family]()
    inputs, twin = sample_inputs(model, tokens=6), quantized(model, stage)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    options = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    with torch.no_grad():
        out = twin.generate(**inputs, **options, pad_token_id=0, eos_token_id=[])
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    start = out.sequences.shape[1] - 5
    assert type(own_cache(out.past_key_values).layers[0]).__name__ == "QuantizedLayer"
    for step, logits in enumerate(out.logits):
        read = {**inputs, name: out.sequences[:, : start + step]}
        read["attention_mask"] = torch.ones_like(read["input_ids"])
        with torch.no_grad():
            whole = twin(**read).logits[:, -1]
        # The last bits of keys differ with the shapes of the products, which now and then moves a code.
        torch.testing.assert_close(logits, whole, rtol=0, atol=0.02 * float(whole.abs().max()))


@pytest.mark.parametrize("family", ["llama_gqa", "gemma2", "t5"])
def test_beam_search_equals_one_on_a_rounded_float_cache(family: str) -> None:
    model = FAMILIES[family]()
    inputs = sample_inputs(model, tokens=6)
    options: dict[str, Any] = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        hooked = quantized(model).generate(**inputs, **options)
        if family == "t5":
            assert hooked.shape[0] == 2
            return
        handed = model.generate(**inputs, **options, past_key_values=RoundingCache(model.config, settings_for(model)))
    assert torch.equal(hooked, handed)


def sliding_model(family: str) -> Any:
    torch.manual_seed(0)
    kind: Any = {"mistral": (MistralForCausalLM, MistralConfig), "gemma2": (Gemma2ForCausalLM, Gemma2Config)}[family]
    config = kind[1](**SLIDING)
    config._attn_implementation = "eager"
    return kind[0](config).eval()


@every_stage
@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_sliding_window_sees_what_a_rounded_float_cache_sees(family: str, stage: KVCache) -> None:
    model = sliding_model(family)
    ids = torch.randint(3, 128, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        full = model(ids, use_cache=True, past_key_values=(seen := DynamicCache(config=model.config))).logits
        ranges = {
            index: KVRanges(keys=torch.full((2, 16), 3.0), values=torch.full((2, 16), 3.0))
            for index in range(len(seen.layers))
        }
        settings = stage.solve(ranges)
        expected, found = RoundingCache(model.config, settings), QuantizedCache(model.config, settings)
        for piece in ids.split([3, 2, 1, 1, 1, 5, 1, 16], dim=1):  # into, at and past the window of 8
            left = model(piece, past_key_values=expected).logits
            right = model(piece, past_key_values=found).logits
            assert torch.equal(left, right)
    assert found.get_seq_length() == expected.get_seq_length() == 30
    assert found.layers[0].keys.shape == (2, 2, 7, 16)
    most = 0.5 if stage.dtype == "int4" else 0.1
    assert float((right - full[:, -16:]).abs().max()) < most * float(full.abs().max())


def test_a_float_window_larger_than_the_text_changes_nothing() -> None:
    model = FAMILIES["llama_gqa"]()
    inputs = sample_inputs(model)
    for stage in (KVCache(window=24), KVCache(mode="dynamic", sinks=24)):
        assert torch.equal(output_tensor(quantized(model, stage), inputs), output_tensor(model, inputs))


def test_crop_reset_and_lengths_are_those_of_a_float_cache() -> None:
    model = FAMILIES["llama_gqa"]()
    ids, settings = sample_inputs(model)["input_ids"], settings_for(model)
    cache, other = QuantizedCache(model.config, settings), QuantizedCache(model.config, settings)
    with torch.no_grad():
        model(ids, past_key_values=cache)
        assert cache.get_seq_length() == 24
        assert cache.get_mask_sizes(3, 0) == (27, 0)
        cache.crop(-10)
        assert cache.get_seq_length() == 14
        again = model(ids[:, 14:], past_key_values=cache).logits
        model(ids[:, :14], past_key_values=other)
        assert torch.equal(model(ids[:, 14:], past_key_values=other).logits, again)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.layers[0].keys is None


def test_the_cache_takes_a_quarter_of_a_float_one() -> None:
    model = FAMILIES["llama_gqa"]()
    cache = QuantizedCache(model.config, settings_for(model))
    with torch.no_grad():
        model(**sample_inputs(model, tokens=100), past_key_values=cache)
        plain = model(**sample_inputs(model, tokens=100)).past_key_values
    floats = sum(layer.keys.nbytes + layer.values.nbytes for layer in plain.layers)
    scales = 2 * 4 * 2 * (2 * 16)  # two layers, float32, keys and values: for each channel of two heads
    assert cache.nbytes == floats / 4 + scales


def test_a_filled_cache_of_the_caller_is_left_alone() -> None:
    model = FAMILIES["llama_gqa"]()
    ids, twin = sample_inputs(model)["input_ids"], quantized(model)
    with torch.no_grad():
        filled = model(ids[:, :20]).past_key_values
        expected = model(ids[:, 20:], past_key_values=copy.deepcopy(filled)).logits
        assert torch.equal(twin(ids[:, 20:], past_key_values=filled).logits, expected)
        empty = DynamicCache()
        assert twin(ids, past_key_values=empty).past_key_values is empty
        assert type(empty.layers[0]).__name__ == "QuantizedLayer"


def test_settings_can_be_read_back_and_replaced() -> None:
    model = FAMILIES["llama_gqa"]()
    assert quantized_cache_of(model) is None
    first, second = settings_for(model), settings_for(model, STAGES["dynamic"])
    use_quantized_cache(model, first)
    assert quantized_cache_of(model) is first
    use_quantized_cache(model, second)
    assert quantized_cache_of(model) is second
    assert len(model.get_decoder()._forward_pre_hooks) == 1


def test_training_is_left_in_float() -> None:
    model = FAMILIES["llama_gqa"]()
    inputs = sample_inputs(model)
    twin = quantized(model).train()
    assert torch.equal(output_tensor(twin, inputs), output_tensor(model, inputs))


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_models_without_a_cache_are_refused(family: str) -> None:
    with pytest.raises(StructureError, match="no decoder"):
        use_quantized_cache(FAMILIES[family](), STAGES["dynamic"].solve({}))


def test_a_layer_without_scales_is_refused() -> None:
    model = FAMILIES["llama_gqa"]()
    ranges = ranges_of(model, sample_inputs(model))
    del ranges[1]
    with pytest.raises(QuantizationError, match="layer 1"):
        use_quantized_cache(model, STAGES["static"].solve(ranges))
