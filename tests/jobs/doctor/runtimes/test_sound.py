"""Sound checkpoints over formats, schemes and architectures: no runtime that reads them has a word to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goldstick import api
from tests.support.runtime_checkpoints import Workshop
from tests.support.small_checkpoints import small_checkpoints

CT = "compressed-tensors"
SERVERS = ("vllm", "sglang")
ALL = (*SERVERS, "transformers")
#: Name → model, scheme, format, and the runtimes that take it.
SOUND: dict[str, tuple[str, str | dict[str, Any], str, tuple[str, ...]]] = {
    "four_bits": ("llama", "w4a16-g128", CT, ALL),
    "four_bits_asymmetric": ("llama", "w4a16-g128-asym", CT, ALL),
    "three_bits": ("llama", "w3a16-g128", CT, ("vllm", "transformers")),
    "eight_bits": ("llama", "w8a16", CT, ALL),
    "eight_bit_inputs": ("llama", "w8a8-dynamic", CT, ALL),
    "four_bits_with_eight_bit_inputs": ("llama", "w4a8-dynamic-g128", CT, ("vllm", "transformers")),
    "four_bits_with_four_bit_inputs": ("llama", "w4a4-dynamic-g128", CT, ("vllm", "transformers")),
    "fp8": ("llama", "fp8-dynamic", CT, ALL),
    "fp8_blocks": ("llama", "fp8-block", CT, ALL),
    "fp8_weights": ("llama", "fp8a16", CT, ALL),
    "nvfp4_weights": ("llama", "nvfp4a16", CT, ALL),
    "mxfp4_weights": ("llama", "mxfp4a16", CT, ("vllm", "transformers")),
    "mxfp8": ("llama", "mxfp8", CT, ("vllm", "transformers")),
    "gptq_of_four_bits": ("llama", "w4a16-g128", "gptq", ALL),
    "gptq_of_eight_bits": ("qwen2", "w8a16-g64", "gptq", ALL),
    "gptq_with_a_tied_head": ("tied", "w4a16-channel", "gptq", ALL),
    "awq": ("llama", "w4a16-g64-asym", "awq", ALL),
    "fine_grained_fp8": ("llama", "fp8-block", "fp8", ALL),
    "model_optimizer": ("llama", "nvfp4a16", "modelopt", SERVERS),
    "small_groups": ("qwen2", "w4a16-g32", CT, ALL),
    "by_channel": ("qwen3", "w4a16-channel", CT, ALL),
    "experts": ("mixtral", "w4a16-g128", CT, ALL),
    "experts_with_float_routers": ("qwen3_moe", "w4a16-g64", CT, ALL),
    "latent_attention": ("deepseek", "w4a16-g128", CT, ALL),
    "fused_experts": ("gpt_oss", {"scheme": "mxfp4a16", "targets": {"include": ["*experts*"]}}, "mxfp4", ALL),
    "images_and_texts": ("llava", {"scheme": "w4a16-g128", "targets": {"exclude": ["*vision*"]}}, CT, ALL),
    "mixture": (
        "llama",
        {"scheme": "w4a16-g128", "overrides": {"*self_attn*": "w8a16-g128"}},
        CT,
        ALL,
    ),
    "a_quantized_head": ("llama", {"scheme": "w4a16-g128", "targets": {"include": ["*_proj", "lm_head"]}}, CT, ALL),
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_checkpoint(name: str, workshop: Workshop) -> None:
    model, stage, form, runtimes = SOUND[name]
    directory = workshop.with_stage(model, {"scheme": stage} if isinstance(stage, str) else stage, form)
    for runtime in runtimes:
        found = api.doctor(directory, runtime=runtime)
        assert found.verdict is not None
        assert found.findings == (), (runtime, found.findings)
        assert found.verdict.loads
        assert "NVIDIA GPU" in found.verdict.hardware


def test_nothing_is_said_of_a_sound_gguf_file(tmp_path: Path) -> None:
    directory = small_checkpoints(tmp_path)["gguf"]
    for runtime in ("llama.cpp", "transformers"):
        found = api.doctor(directory, runtime=runtime)
        assert found.findings == ()
        assert found.verdict is not None and found.verdict.loads


def test_twenty_and_more_are_looked_at() -> None:
    assert len(SOUND) >= 20
    assert len({form for _, _, form, _ in SOUND.values()}) >= 6
