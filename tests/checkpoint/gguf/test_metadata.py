"""What a GGUF file says of a model, and the model that is read from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import goldstick
from goldstick.checkpoint.gguf.file import GgufFile, read_gguf
from goldstick.checkpoint.gguf.metadata import config_of_file, model_metadata
from goldstick.errors import FormatError
from goldstick.formats.gguf import GGUF_NAME
from tests.support.gguf_models import GGUF_MODELS
from tests.support.tiny_models import GROUPED, tiny

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW: dict[str, Any] = {**GROUPED, "sliding_window": 8}
GEMMA: dict[str, Any] = {**WINDOW, "head_dim": 16, "query_pre_attn_scalar": 16}
RECIPE = {"stages": [{"rtn": {"scheme": "q8_0"}}], "export": {"format": "gguf"}}


def written(model: Any, folder: Path) -> Path:
    model.to(torch.bfloat16).save_pretrained(folder / "float")
    goldstick.quantize(folder / "float", RECIPE, output=folder / "out", proof="tensors")
    return folder / "out" / GGUF_NAME


@pytest.mark.parametrize("missing", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_a_model_without_the_bounds_that_llama_cpp_always_has_is_refused(missing: str) -> None:
    config = Gemma2Config(**GEMMA).to_dict() | {"architectures": ["Gemma2ForCausalLM"]}
    assert model_metadata(config, "tiny", ["Q8_0"])["gemma2.final_logit_softcapping"] == 30.0
    with pytest.raises(FormatError, match=f"'gemma2' cannot say this: no {missing}"):
        model_metadata(config | {missing: None}, "tiny", ["Q8_0"])


@pytest.mark.parametrize(("config", "name"), [(Gemma2Config(**GEMMA), "Gemma2"), (GptOssConfig(**WINDOW), "GptOss")])
def test_windows_in_other_layers_than_llama_cpp_has_them_are_refused(config: Any, name: str) -> None:
    usual = config.to_dict() | {"architectures": [f"{name}ForCausalLM"], "rope_parameters": {"rope_type": "default"}}
    model_metadata(usual | {"layer_types": [SLIDING, FULL]}, "tiny", ["Q8_0"])
    for other in ([FULL, SLIDING], [FULL, FULL], [SLIDING, SLIDING]):
        with pytest.raises(FormatError, match="windows in other layers than in all but the layers 2, 4, 6"):
            model_metadata(usual | {"layer_types": other}, "tiny", ["Q8_0"])


def test_a_file_may_say_how_many_layers_apart_those_without_a_window_are(tmp_path: Path) -> None:
    config = Gemma3TextConfig(**GEMMA | {"num_hidden_layers": 4}, layer_types=[SLIDING] * 4)
    file = read_gguf(written(tiny(Gemma3ForCausalLM, config)(), tmp_path))

    def layers(pattern: int | list[bool]) -> list[str]:
        said = file.metadata | {"gemma3.attention.sliding_window_pattern": pattern}
        found: list[str] = config_of_file(dataclasses.replace(file, metadata=said))["layer_types"]
        return found

    assert config_of_file(file)["layer_types"] == [SLIDING] * 4
    assert layers(2) == [SLIDING, FULL] * 2 and layers(3) == [SLIDING, SLIDING, FULL, SLIDING]
    assert layers(0) == [SLIDING] * 4 and layers(1) == [FULL] * 4
    assert layers([True, False, False, True]) == [SLIDING, FULL, FULL, SLIDING]


def test_long_and_short_factors_change_where_the_file_says(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = Phi3Config(**GROUPED, rope_parameters=rope, original_max_position_embeddings=16)
    file = written(tiny(Phi3ForCausalLM, config)(), tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    file.rename(alone / GGUF_NAME)
    tokens = torch.arange(3, 35).unsqueeze(0)
    model: Any = goldstick.load(alone)
    with torch.inference_mode():
        expected = tiny(Phi3ForCausalLM, config)()(tokens).logits
        error = (model(tokens).logits - expected).norm() / expected.norm()
    assert error < 0.1


def test_a_file_that_does_not_say_it_has_factors_for_its_whole_context(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = Phi3Config(**GROUPED, rope_parameters=rope, original_max_position_embeddings=16)
    file: GgufFile = read_gguf(written(tiny(Phi3ForCausalLM, config)(), tmp_path))
    said = {key: value for key, value in file.metadata.items() if "original_context_length" not in key}
    assert config_of_file(file)["original_max_position_embeddings"] == 16
    assert config_of_file(dataclasses.replace(file, metadata=said))["original_max_position_embeddings"] == 128


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    model = tiny(Qwen3ForCausalLM, Qwen3Config(**GROUPED, head_dim=16))()
    return read_gguf(written(model, tmp_path_factory.mktemp("qwen")))


def says(file: GgufFile, **entries: Any) -> GgufFile:
    """A file that says more of its model."""
    arch = file.metadata["general.architecture"]
    more = {f"{arch}.{name.replace('__', '.')}": value for name, value in entries.items()}
    return dataclasses.replace(file, metadata=file.metadata | more)


@pytest.mark.parametrize("entry", ["rope__scaling__factor", "rope__scale_linear"])
def test_a_factor_without_a_word_scales_linearly(qwen: GgufFile, entry: str) -> None:
    found = config_of_file(says(qwen, **{entry: 4.0}))["rope_parameters"]
    assert found["rope_type"] == "linear" and found["factor"] == 4.0
    assert (
        config_of_file(says(qwen, **{entry: 1.0})) == config_of_file(qwen) == config_of_file(says(qwen, **{entry: 0.0}))
    )
    assert config_of_file(says(qwen, **{entry: 4.0}, rope__scaling__type="none")) == config_of_file(qwen)


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ({"rope__dimension_count": 8}, "rotates 8 of the 16 numbers of a head"),
        ({"rope__scaling__attn_factor": 0.5}, r"multiplies rotary embeddings by 0\.5 .* not with 'none'"),
    ],
)
def test_what_a_file_says_and_its_model_in_transformers_has_no_word_for_is_refused(
    qwen: GgufFile, entries: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(FormatError, match=complaint):
        config_of_file(says(qwen, **entries))


def test_experts_that_are_chosen_in_another_way_are_refused(tmp_path: Path) -> None:
    file = read_gguf(written(GGUF_MODELS["deepseek_v3"](), tmp_path))
    assert config_of_file(says(file, expert_gating_func=2)) == config_of_file(file)
    with pytest.raises(FormatError, match=r"says 1 as deepseek2\.expert_gating_func.*DeepseekV3ForCausalLM\) with 2"):
        config_of_file(says(file, expert_gating_func=1))


def test_weights_of_experts_are_said_to_be_what_transformers_makes_of_them() -> None:
    config = GGUF_MODELS["deepseek_v2"]().config.to_dict() | {"architectures": ["DeepseekV2ForCausalLM"]}
    for normalized in (False, True):  # which transformers does not look at
        said = model_metadata(config | {"norm_topk_prob": normalized}, "tiny", ["Q8_0"])
        assert said["deepseek2.expert_weights_norm"] is False
