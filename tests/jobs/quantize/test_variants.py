"""Schemes, dtypes, ties, shards and formats, each on one small model: streamed, reloaded, equal to in memory."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.checkpoint.source import INDEX_NAME, open_tensors
from goldstick.errors import CheckpointError, FormatError, RecipeError
from goldstick.nn import PackedWeight, QuantizedEmbedding, QuantizedLinear, TiedQuantizedLinear
from tests.support.proofs import answer
from tests.support.tiny_models import FAMILIES, sample_inputs

pytestmark = pytest.mark.usefixtures("proof_here")

Stage = dict[str, Any]


def stream_and_compare(
    family: str, stage: Stage, folder: Path, dtype: torch.dtype = torch.float32, export: dict[str, Any] | None = None
) -> Path:
    """Quantize a family from disk and in memory; both must answer alike. Returns the checkpoint."""
    model: Any = FAMILIES[family]()
    model.to(dtype).save_pretrained(folder / "source")
    model = type(model).from_pretrained(folder / "source", attn_implementation="eager")  # buffers stay float32
    recipe = {"stages": [{"rtn": stage}], "export": export or {}}
    directory = goldstick.quantize(folder / "source", recipe, output=folder / "output").directory
    inputs = sample_inputs(model)
    in_memory = goldstick.apply(model, recipe)
    expected = answer(in_memory.model, inputs)
    assert torch.isfinite(expected).all()
    assert torch.equal(answer(goldstick.load(directory), inputs), expected)
    saved = in_memory.save(folder / "saved")
    assert torch.equal(answer(goldstick.load(saved), inputs), expected)
    return directory


def test_a_model_cast_in_memory_is_proven_with_its_own_buffers(tmp_path: Path) -> None:
    # .to(dtype) also rounds the rotary frequencies, which no checkpoint holds: transformers computes them anew.
    model = FAMILIES["llama_gqa"]().to(torch.bfloat16)
    directory = goldstick.apply(model, "rtn-w8a16").save(tmp_path / "saved")
    proof = json.loads((directory / "goldstick.json").read_text())["proof"]
    assert proof["buffers"] == {
        "model.rotary_emb.inv_freq": "bfloat16",
        "model.rotary_emb.original_inv_freq": "bfloat16",
    }
    assert proof["max_abs_difference"] == 0.0


def config_of(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


@pytest.mark.parametrize("family", ["llama_gqa", "qwen3_moe"])
def test_a_bfloat16_model_keeps_its_dtype_in_scales_and_outputs(family: str, tmp_path: Path) -> None:
    directory = stream_and_compare(
        family, {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}, tmp_path, dtype=torch.bfloat16
    )
    scales = [info.dtype for name, info in open_tensors(directory).items() if name.endswith("_scale")]
    assert set(scales) == {torch.bfloat16}
    assert goldstick.load(directory).dtype == torch.bfloat16


@pytest.mark.parametrize("scheme", ["w8a16", "w8a8-dynamic", "w4a16-g32-asym", "w3a16-g32", "w2a16-g64-asym"])
def test_every_kind_of_scheme_reloads_as_compressed_tensors(scheme: str, tmp_path: Path) -> None:
    directory = stream_and_compare("llama_gqa", {"scheme": scheme}, tmp_path)
    table = config_of(directory)["quantization_config"]
    assert table["quant_method"] == "compressed-tensors"
    (group,) = table["config_groups"].values()
    assert group["format"] == ("int-quantized" if scheme == "w8a8-dynamic" else "pack-quantized")
    assert group["weights"]["num_bits"] == int(scheme[1])
    assert bool(table.get("dequantize")) == scheme.endswith("asym")


def test_overrides_give_some_layers_another_scheme(tmp_path: Path) -> None:
    stage = {"scheme": "w4a16-g32", "overrides": {"*down_proj": "w8a16", "model.layers.0.*.q_proj": "w2a16-g32"}}
    directory = stream_and_compare("llama_gqa", stage, tmp_path)
    model = goldstick.load(directory)
    schemes = {name: m.scheme.label for name, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    assert schemes["model.layers.0.mlp.down_proj"] == "w8a16-channel"
    assert schemes["model.layers.0.self_attn.q_proj"] == "w2a16-g32"
    assert schemes["model.layers.1.self_attn.q_proj"] == "w4a16-g32"
    assert len(schemes) == 14


def test_an_asymmetric_mixture_falls_back_to_the_native_format_and_says_so(tmp_path: Path) -> None:
    directory = stream_and_compare("mixtral", {"scheme": "w4a16-g32-asym"}, tmp_path)
    assert config_of(directory)["quantization_config"]["quant_method"] == "goldstick"


def test_untying_quantizes_the_head_and_keeps_the_embedding(tmp_path: Path) -> None:
    stage = {"scheme": "w4a16-g32", "targets": {"include": ["lm_head", "*proj"]}, "tie": "untie"}
    directory = stream_and_compare("gemma2", stage, tmp_path)
    tensors = open_tensors(directory)
    assert "lm_head.weight_packed" in tensors
    assert tensors["model.embed_tokens.weight"].dtype == torch.float32
    assert config_of(directory)["tie_word_embeddings"] is False
    model: Any = goldstick.load(directory)
    assert isinstance(model.lm_head, QuantizedLinear)
    assert isinstance(model.model.embed_tokens, nn.Embedding)


def test_keeping_the_tie_runs_both_ends_on_one_quantized_weight(tmp_path: Path) -> None:
    stage = {"scheme": "w8a16", "targets": {"include": ["lm_head", "*proj"]}, "tie": "keep"}
    directory = stream_and_compare("gemma2", stage, tmp_path)
    assert sum("embed_tokens" in name or "lm_head" in name for name in open_tensors(directory)) == 2
    model: Any = goldstick.load(directory)
    assert isinstance(model.model.embed_tokens, QuantizedEmbedding)
    assert isinstance(model.lm_head, TiedQuantizedLinear)


def test_an_undecided_tie_is_refused(tmp_path: Path) -> None:
    recipe = {"stages": [{"rtn": {"scheme": "w8a16", "targets": {"include": ["lm_head"]}}}]}
    with pytest.raises(RecipeError, match="tie: keep"):
        goldstick.apply(FAMILIES["gemma2"](), recipe)


def test_a_targeted_embedding_is_quantized_in_the_native_format(tmp_path: Path) -> None:
    stage = {"scheme": "w8a16", "targets": {"include": ["embed_tokens", "*proj", "lm_head"]}}
    directory = stream_and_compare("llama_gqa", stage, tmp_path)
    assert config_of(directory)["quantization_config"]["quant_method"] == "goldstick"
    model: Any = goldstick.load(directory)
    assert isinstance(model.model.embed_tokens, QuantizedEmbedding)
    assert isinstance(model.lm_head, QuantizedLinear)


def test_a_targeted_head_is_quantized_in_compressed_tensors(tmp_path: Path) -> None:
    stage = {"scheme": "w8a16", "targets": {"include": ["*proj", "lm_head"]}}
    directory = stream_and_compare("llama_gqa", stage, tmp_path)
    assert "lm_head" not in config_of(directory)["quantization_config"]["ignore"]
    assert "lm_head.weight_packed" in open_tensors(directory)


def test_fractional_zeros_are_stored_natively_and_never_rounded(tmp_path: Path) -> None:
    stage = {"scheme": "w4a16-g32-asym", "range_search": "hqq"}
    directory = stream_and_compare("llama_gqa", stage, tmp_path)
    zero = open_tensors(directory)["model.layers.0.self_attn.q_proj.weight_zero_point"].read()
    assert zero.dtype == torch.float32
    assert not torch.equal(zero, zero.round())


def test_a_format_that_cannot_hold_the_result_is_refused_when_asked_for(tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "source")
    stage = {"scheme": "w4a16-g32-asym", "range_search": "hqq"}
    recipe = {"stages": [{"rtn": stage}], "export": {"format": "compressed-tensors"}}
    with pytest.raises(FormatError, match="--format native"):
        goldstick.quantize(tmp_path / "source", recipe, output=tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_shards_come_with_an_index_that_covers_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["llama_gqa"]()
    model.config.vocab_size = 8192
    model.resize_token_embeddings(8192)
    model.save_pretrained(tmp_path / "source", max_shard_size="1MB")
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}], "export": {"max_shard_size": 3_000_000}}
    directory = goldstick.quantize(tmp_path / "source", recipe, output=tmp_path / "output").directory
    index = json.loads((directory / INDEX_NAME).read_text())
    tensors = open_tensors(directory)
    assert set(index["weight_map"]) == set(tensors)
    files = {info.file.name for info in tensors.values()}
    assert files == {f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    assert index["metadata"]["total_size"] == sum(info.nbytes for info in tensors.values())
    assert all((directory / name).stat().st_size < 3_100_000 for name in files)
    inputs = sample_inputs(model)
    in_memory = goldstick.apply(model, recipe).model
    assert torch.equal(answer(goldstick.load(directory), inputs), answer(in_memory, inputs))


def test_the_proof_by_tensors_passes_and_counts_every_tensor(tmp_path: Path) -> None:
    for family in ("llama_gqa", "mixtral", "gpt2"):
        FAMILIES[family]().save_pretrained(tmp_path / family)
        recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}
        made = goldstick.quantize(tmp_path / family, recipe, output=tmp_path / f"{family}-out", proof="tensors")
        assert made.report.proof["method"] == "tensors"
        assert made.report.proof["tensors_quantized"] == sum(bool(layer.scheme) for layer in made.report.layers)
        assert made.report.proof["tensors_copied"] > 0


def test_the_proof_by_tensors_notices_a_wrong_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from goldstick.formats.compressed_tensors import CompressedTensors

    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "source")
    pack = CompressedTensors.pack

    def pack_wrongly(self: CompressedTensors, *arguments: Any) -> dict[str, Tensor]:
        parts = pack(self, *arguments)
        return {**parts, "_scale": parts["_scale"] * 1.001}

    monkeypatch.setattr(CompressedTensors, "pack", pack_wrongly)
    for proof in ("tensors", "outputs"):
        with pytest.raises(CheckpointError, match="read back"):
            goldstick.quantize(tmp_path / "source", "rtn-w4a16-g32", output=tmp_path / "out", proof=proof)  # type: ignore[arg-type]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


class Pictures(nn.Module):
    """A plain module: two convolutions, a normalisation, two linears, a buffer, no config."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect")
        self.norm = nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 32, 3, stride=2, groups=4, bias=False)
        self.hidden = nn.Linear(32, 64)
        self.head = nn.Linear(64, 10, bias=False)
        self.register_buffer("offset", torch.randn(10))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.grouped(torch.relu(self.norm(self.stem(x)))))
        return self.head(torch.relu(self.hidden(x.mean((2, 3))))) + self.offset


@pytest.mark.parametrize("scheme", ["w8a16", "w4a16-channel-asym"])
def test_a_plain_module_is_applied_saved_and_loaded_into_a_fresh_one(scheme: str, tmp_path: Path) -> None:
    module = Pictures().eval()
    images = torch.randn(4, 3, 12, 12)
    with torch.no_grad():
        float_output = module(images)
        result = goldstick.apply(module, {"stages": [{"rtn": {"scheme": scheme}}]})
        expected = result.model(images)
        assert torch.equal(module(images), float_output), "the original was touched"
        assert not torch.equal(expected, float_output)
        directory = result.save(tmp_path / "saved")
        fresh = Pictures()
        loaded = goldstick.load(directory, model=fresh)
        assert loaded is fresh
        assert torch.equal(loaded(images), expected)
    assert isinstance(loaded.get_submodule("grouped"), PackedWeight)
    assert not (directory / "config.json").exists()
    report = result.report
    assert report.size.bytes_after == sum(info.nbytes for info in open_tensors(directory).values())
    assert report.size.bytes_before == sum(value.nbytes for value in module.state_dict().values())


class Repeated(nn.Module):
    """A layer and a norm that are each registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.second, self.second_norm = self.first, self.norm
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second_norm(self.second(self.norm(self.first(x)).relu()))
        scores: Tensor = self.last(x)
        return scores


def test_a_plain_module_whose_layers_are_shared_is_read_back_equal_and_shares_them(tmp_path: Path) -> None:
    result = goldstick.apply(Repeated(), {"stages": [{"rtn": {"scheme": "w8a16"}}]})
    directory = result.save(tmp_path / "saved")
    assert not any(
        "_packed" in name or name.startswith("second") for name in open_tensors(directory) if "weight" not in name
    )
    loaded = goldstick.load(directory, model=Repeated())
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(loaded(x), result.model(x))
    assert isinstance(loaded.get_submodule("first"), QuantizedLinear)
    assert loaded.get_submodule("second") is loaded.get_submodule("first")
    assert loaded.get_submodule("second_norm") is loaded.get_submodule("norm")


def test_a_plain_checkpoint_says_when_it_is_of_another_module(tmp_path: Path) -> None:
    directory = goldstick.apply(Pictures(), {"stages": [{"rtn": {"scheme": "w8a16"}}]}).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="model=module"):
        goldstick.load(directory)
    with pytest.raises(CheckpointError, match="stem"):
        goldstick.load(directory, model=nn.Sequential(nn.Linear(4, 4)))
    other = Pictures()
    other.register_buffer("another", torch.zeros(3))
    with pytest.raises(CheckpointError, match="another"):
        goldstick.load(directory, model=other)


def test_a_model_may_be_rewritten_in_place(tmp_path: Path) -> None:
    module = Pictures().eval()
    result = goldstick.apply(module, {"stages": [{"rtn": {"scheme": "w8a16"}}]}, inplace=True)
    assert result.model is module
    assert isinstance(module.hidden, QuantizedLinear)


def test_a_model_quantized_twice_is_refused() -> None:
    model = goldstick.apply(FAMILIES["llama_gqa"](), "rtn-w8a16").model
    with pytest.raises(goldstick.GoldstickError, match=r"q_proj|quantized already|no layer"):
        goldstick.apply(
            copy.deepcopy(model), {"stages": [{"rtn": {"scheme": "w8a16", "targets": {"include": ["*proj"]}}}]}
        )
