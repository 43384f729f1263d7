"""The quantized KV cache on disk: to the bit through the sidecar, as near as others can say it beside that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import goldstick
from goldstick.algorithms.kv_cache import KVCache
from goldstick.checkpoint.kv_cache import (
    KV_SIDECAR,
    attention_modules,
    kv_config,
    kv_sidecar,
    kv_tensors,
    read_kv,
    stored_kv,
)
from goldstick.core.kv_cache import KVRanges, KVScheme, KVSettings
from goldstick.errors import CheckpointError, FormatError
from goldstick.formats import FORMATS
from goldstick.hf.cache import quantized_cache_of, use_quantized_cache
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs

STAGES = [
    KVCache(),
    KVCache(keys="head", values="channel", window=3, sinks=1),
    KVCache(keys="tensor", values="tensor"),
    KVCache(mode="dynamic", sinks=2),
    KVCache(dtype="fp8"),
    KVCache(dtype="fp8", keys="head", values="head"),
    KVCache(dtype="fp8", mode="dynamic"),
]


def settings(stage: KVCache) -> KVSettings:
    generator = torch.Generator().manual_seed(0)
    return stage.solve(
        {
            layer: KVRanges(keys=torch.rand(2, 16, generator=generator), values=torch.rand(2, 8, generator=generator))
            for layer in (0, 1, 11)
        }
    )


def same(one: KVSettings, other: KVSettings) -> bool:
    return (
        one.scheme == other.scheme
        and list(one.scales) == list(other.scales)
        and all(
            torch.equal(one.scales[layer].keys, other.scales[layer].keys)
            and torch.equal(one.scales[layer].values, other.scales[layer].values)
            for layer in one.scales
        )
    )


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.scheme.label)
def test_the_sidecar_gives_every_cache_back_to_the_bit(stage: KVCache, tmp_path: Path) -> None:
    made = settings(stage)
    (tmp_path / KV_SIDECAR).write_bytes(kv_sidecar(made))
    found = read_kv(tmp_path, {"kv_cache_scheme": {"strategy": "nonsense"}})  # the sidecar comes first
    assert found is not None
    assert same(found, made)


def test_a_checkpoint_without_either_has_a_float_cache(tmp_path: Path) -> None:
    assert read_kv(tmp_path, {"quant_method": "compressed-tensors"}) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales_for_other_readers_cover_every_range(dtype: torch.dtype) -> None:
    made = settings(KVCache())
    tensors = kv_tensors(made, {layer: f"model.layers.{layer}.self_attn" for layer in made.scales}, dtype)
    assert len(tensors) == 6
    for layer, scales in made.scales.items():
        for name, exact in (("k_scale", scales.keys), ("v_scale", scales.values)):
            stored = tensors[f"model.layers.{layer}.self_attn.{name}"]
            assert (stored.shape, stored.dtype) == ((1,), dtype)
            assert exact.max() <= stored.float() <= exact.max() * 1.01


@pytest.mark.parametrize("granularity, shape", [("tensor", (1,)), ("head", (2, 1, 1))])
def test_fp8_goes_through_the_tensors_of_other_readers(
    granularity: Any, shape: tuple[int, ...], tmp_path: Path
) -> None:
    ranges = KVRanges(keys=torch.rand(2, 4) + 1, values=torch.rand(2, 4) + 1)
    made = KVCache(dtype="fp8", keys=granularity, values=granularity).solve({0: ranges})
    stored = stored_kv(made, {0: "model.layers.0.self_attn"}, FORMATS["compressed-tensors"], torch.float32)
    assert stored.label == f"kvfp8-{granularity}-{granularity}"
    assert {tensor.shape for tensor in stored.tensors.values()} == {torch.Size(shape)}
    save_file(dict(stored.tensors), tmp_path / "model.safetensors")
    found = read_kv(tmp_path, stored.config)
    assert found is not None and same(found, made)


def test_the_scheme_is_one_that_compressed_tensors_understands() -> None:
    compressed_tensors = pytest.importorskip("compressed_tensors.quantization")
    for stage in STAGES:
        arguments = compressed_tensors.QuantizationArgs(**kv_config(stage.scheme))
        assert arguments.num_bits == 8
        assert bool(arguments.dynamic) == (stage.mode == "dynamic")


def test_other_formats_and_models_that_others_cannot_run_get_the_sidecar_alone() -> None:
    made, modules = settings(KVCache()), {0: "a", 1: "b", 11: "c"}
    for storage, known in (("native", modules), ("compressed-tensors", {}), ("compressed-tensors", {0: "a"})):
        stored = stored_kv(made, known, FORMATS[storage], torch.float32)
        assert not stored.config
        assert not stored.tensors
        assert stored.sidecar == kv_sidecar(made)
    assert set(stored_kv(made, modules, FORMATS["compressed-tensors"], torch.float32).config) == {"kv_cache_scheme"}


@pytest.mark.parametrize("family", ["llama_gqa", "phi3", "deepseek_v3", "gpt2", "falcon", "t5", "bert"])
def test_attention_modules_are_those_compressed_tensors_would_choose(family: str) -> None:
    lifecycle = pytest.importorskip("compressed_tensors.quantization.lifecycle.initialize")
    model = FAMILIES[family]()
    chosen = [path for path, module in model.named_modules() if lifecycle.is_cached_attention_module(module)]
    assert list(attention_modules(model).values()) == chosen


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("{", CheckpointError, "damaged"),
        ('{"version": 2}', FormatError, "newer goldstick"),
        ('{"version": 1, "scheme": {"mode": "static"}, "layers": {}}', CheckpointError, "damaged"),
        ('{"version": 1, "scheme": {"bits": 4}, "layers": {}}', CheckpointError, "damaged"),
        (
            '{"version": 1, "scheme": {}, "layers": {"0": {"keys": [[0.0]], "values": [[1.0]]}}}',
            CheckpointError,
            "dama",
        ),
    ],
)
def test_a_damaged_sidecar_is_an_error(text: str, error: type[Exception], words: str, tmp_path: Path) -> None:
    (tmp_path / KV_SIDECAR).write_text(text)
    with pytest.raises(error, match=words):
        read_kv(tmp_path, {})


@pytest.mark.parametrize(
    ("scheme", "shape", "granularity"),
    [({"strategy": "tensor"}, (1,), "tensor"), ({"strategy": "attn_head"}, (2, 1, 1), "head")],
)
def test_scales_of_other_tools_are_read(
    scheme: dict[str, Any], shape: tuple[int, ...], granularity: str, tmp_path: Path
) -> None:
    names = [f"model.layers.{layer}.self_attn.{name}" for layer in (10, 2) for name in ("k_scale", "v_scale")]
    save_file({name: torch.full(shape, 0.5) for name in names}, tmp_path / "model.safetensors")
    found = read_kv(tmp_path, {"kv_cache_scheme": {"num_bits": 8, "type": "int", "symmetric": True, **scheme}})
    assert found is not None
    assert found.scheme == KVScheme(keys=granularity, values=granularity)  # type: ignore[arg-type]
    assert list(found.scales) == [2, 10]
    assert found.scales[2].keys.shape == (shape[0], 1)


def test_caches_that_goldstick_does_not_run_are_refused(tmp_path: Path) -> None:
    eight: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}
    for change in ({"type": "nf"}, {"num_bits": 4}, {"strategy": "channel"}):
        with pytest.raises(FormatError, match="int8 and FP8 KV caches"):
            read_kv(tmp_path, {"kv_cache_scheme": eight | change})
    save_file({"model.layers.0.self_attn.k_scale": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="layer 0"):
        read_kv(tmp_path, {"kv_cache_scheme": {**eight, "type": "int"}})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model with int8 weights and a cache by tensor, and its checkpoint, which passed its proof."""
    model = FAMILIES["llama_gqa"]()
    inputs = sample_inputs(model)
    with torch.no_grad():
        layers = model(**inputs).past_key_values.layers
    ranges = {
        i: KVRanges(keys=x.keys.abs().amax((0, 2)), values=x.values.abs().amax((0, 2))) for i, x in enumerate(layers)
    }
    use_quantized_cache(model, KVCache(keys="tensor", values="tensor").solve(ranges))
    result = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w8a16"}}]})
    directory = result.save(tmp_path_factory.mktemp("kv") / "checkpoint")
    return result.model, directory


def test_a_saved_model_comes_back_with_its_cache(saved: tuple[Any, Path]) -> None:
    model, directory = saved
    loaded: Any = goldstick.load(directory)
    loaded.set_attn_implementation("eager")
    inputs = sample_inputs(model)
    assert torch.equal(output_tensor(loaded, inputs), output_tensor(model, inputs))
    written, read = quantized_cache_of(model), quantized_cache_of(loaded)
    assert written is not None
    assert read is not None
    assert same(read, written)
    out = loaded.generate(**inputs, max_new_tokens=3, do_sample=False, return_dict_in_generate=True)
    assert type(out.past_key_values.layers[0]).__name__ == "QuantizedLayer"
    manifest = json.loads((directory / "goldstick.json").read_text())
    assert manifest["kv_cache"] == "kv8-tensor-tensor"
    assert KV_SIDECAR in manifest["files"]


def test_plain_transformers_loads_it_and_quantizes_its_cache_alike(saved: tuple[Any, Path]) -> None:
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    model, directory = saved
    plain, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, attn_implementation="eager")
    assert not any(info.values())
    caches = [path for path, module in plain.named_modules() if type(module).__name__ == "QuantizedKVCache"]
    assert len(caches) == 2
    inputs = sample_inputs(model)
    expected = output_tensor(model, inputs)
    torch.testing.assert_close(output_tensor(plain, inputs), expected, rtol=0, atol=0.02 * float(expected.abs().max()))


def test_transformers_reads_the_cache_of_a_native_checkpoint(saved: tuple[Any, Path], tmp_path: Path) -> None:
    """The checkpoint is made by hand, from the pieces that jobs/save/finish.py puts together."""
    from transformers import AutoModelForCausalLM

    model, directory = saved
    written = quantized_cache_of(model)
    assert written is not None
    config = json.loads((directory / "config.json").read_text())
    table = {"quant_method": "goldstick", "version": 1, "schemes": {}, "sites": {}, "ties": {}}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": table}))
    save_file(FAMILIES["llama_gqa"]().state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / KV_SIDECAR).write_bytes(kv_sidecar(written))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    found = quantized_cache_of(plain)
    assert found is not None
    assert same(found, written)


def test_without_the_sidecar_the_scales_of_the_files_are_used(saved: tuple[Any, Path], tmp_path: Path) -> None:
    model, directory = saved
    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    save_file(load_file(directory / "model.safetensors"), tmp_path / "model.safetensors")
    found, written = read_kv(tmp_path, config), quantized_cache_of(model)
    assert found is not None
    assert written is not None
    assert same(found, written)
