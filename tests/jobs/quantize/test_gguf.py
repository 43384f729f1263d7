"""GGUF checkpoints: there and back byte for byte, read by transformers, read from other tools, refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import goldstick
from goldstick import api
from goldstick.checkpoint.gguf.architectures import architecture_of_config
from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.checkpoint.gguf.file import read_gguf
from goldstick.checkpoint.gguf.metadata import config_of_file, model_metadata
from goldstick.checkpoint.gguf.rope import rope_factors
from goldstick.cli import main
from goldstick.errors import FormatError, SourceError
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.checkpoint import open_quantized
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.crash_points import STAGES, tiny_checkpoint, write_text
from tests.support.proofs import answer
from tests.support.tiny_models import FAMILIES, GROUPED, sample_inputs, tiny

pytestmark = pytest.mark.usefixtures("all_proofs_here")

WEIGHTS = "model.safetensors"
#: Built with the head width that transformers assumes for a Qwen3 file, whose own it does not read.
BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": FAMILIES["llama_gqa"],
    "llama_biased": tiny(LlamaForCausalLM, LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True)),
    "llama_tied": tiny(LlamaForCausalLM, LlamaConfig(**GROUPED, tie_word_embeddings=True)),
    "mistral": FAMILIES["mistral"],
    "qwen2": FAMILIES["qwen2"],
    "qwen3": tiny(Qwen3ForCausalLM, Qwen3Config(**GROUPED, head_dim=128)),
    "opt": FAMILIES["opt"],
}
#: transformers reads the biases of these from no GGUF file.
READ_BY_TRANSFORMERS = ("llama", "llama_tied", "mistral", "qwen2", "qwen3")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("float")

    @cache
    def make(family: str) -> Path:
        BUILDERS[family]().to(torch.bfloat16).save_pretrained(folder / family)
        return folder / family

    return make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, source: Callable[[str], Path]) -> Callable[..., Path]:
    """A checkpoint by family, scheme and format, made once; never to be changed."""
    folder = tmp_path_factory.mktemp("made")

    def make(family: str = "llama", scheme: str = "w4a16-g32", format_: str = "compressed-tensors") -> Path:
        output = folder / f"{family}-{scheme}-{format_}"
        if output.exists():
            return output
        if format_ == "gguf":
            api.export(make(family, scheme), "gguf", output=output, proof="tensors")
        else:
            recipe = {"stages": [{"rtn": {"scheme": scheme}}], "export": {"format": format_}}
            goldstick.quantize(source(family), recipe, output=output, proof="tensors")
        return output

    return make


Made = Callable[..., Path]


def equal_files(one: Path, other: Path) -> bool:
    a, b = load_file(one / WEIGHTS), load_file(other / WEIGHTS)
    return a.keys() == b.keys() and all(x.dtype == b[name].dtype and x.equal(b[name]) for name, x in a.items())


def logits(model: nn.Module) -> Tensor:
    return answer(model, sample_inputs(model))  # type: ignore[arg-type]


def dequantized(directory: Path, family: str) -> nn.Module:
    """The float32 model with the weights that goldstick finds in a checkpoint."""
    stored = open_quantized(directory).stored
    model = BUILDERS[family]()
    state = model.state_dict()
    quantized = {layer.name: layer for layer in stored.layers}
    for name, info in stored.tensors.items():
        if name in state:
            state[name].copy_(info.read())
    for name, layer in quantized.items():
        state[name].copy_(
            stored.format.unpack(stored.read(layer), layer.scheme, layer.shape[-1]).dequantize(torch.float32)
        )
    return model


@pytest.mark.parametrize("family", [family for family in BUILDERS if family != "opt"])
def test_a_checkpoint_comes_back_from_gguf_byte_for_byte(family: str, made: Made, tmp_path: Path) -> None:
    there, back = made(family, format_="gguf"), tmp_path / "back"
    api.export(there, "compressed-tensors", output=back, proof="tensors")
    assert equal_files(back, made(family))
    assert json.loads((back / "config.json").read_text()) == json.loads((made(family) / "config.json").read_text())
    assert torch.equal(logits(goldstick.load(there)), logits(goldstick.load(made(family))))


@pytest.mark.parametrize("family", READ_BY_TRANSFORMERS)
def test_transformers_computes_the_same_logits(family: str, made: Made) -> None:
    directory = made(family, format_="gguf")
    mine = dequantized(directory, family)
    theirs = AutoModelForCausalLM.from_pretrained(directory, gguf_file=GGUF_NAME, dtype=torch.float32)
    state = theirs.state_dict()
    assert all(torch.equal(state[name], value) for name, value in mine.state_dict().items())
    assert (logits(theirs) - logits(mine)).abs().max() == 0.0


def test_an_export_is_proven_by_its_outputs_and_verified(made: Made, tmp_path: Path) -> None:
    done = api.export(made(scheme="w8a16-g32"), "gguf", output=tmp_path / "out")
    assert done.report.proof["max_abs_difference"] == 0.0
    assert verify_checkpoint(tmp_path / "out")["passed"] is True
    assert read_report(tmp_path / "out").format == "gguf"


@pytest.mark.parametrize(("scheme", "repeats"), [("w8a16-g64", 2), ("w4a16-g64", 2)])
def test_the_scale_of_a_larger_group_is_repeated(scheme: str, repeats: int, made: Made, tmp_path: Path) -> None:
    api.export(made(scheme=scheme, format_="gguf"), "compressed-tensors", output=tmp_path / "back", proof="tensors")
    before, after = load_file(made(scheme=scheme) / WEIGHTS), load_file(tmp_path / "back" / WEIGHTS)
    assert before.keys() == after.keys()
    assert verify_checkpoint(made(scheme=scheme, format_="gguf"))["passed"] is True
    for name, value in before.items():
        expected = value.repeat_interleave(repeats, dim=1) if name.endswith("_scale") else value
        assert after[name].equal(expected)


def test_the_file_says_what_llama_cpp_asks_for(made: Made) -> None:
    reader = gguf.GGUFReader(made("qwen2", format_="gguf") / GGUF_NAME)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    expected = {
        "general.architecture": "qwen2",
        "general.file_type": 2,
        "general.quantization_version": 2,
        "qwen2.block_count": 2,
        "qwen2.context_length": 128,
        "qwen2.embedding_length": 64,
        "qwen2.feed_forward_length": 128,
        "qwen2.attention.head_count": 4,
        "qwen2.attention.head_count_kv": 2,
        "qwen2.attention.key_length": 16,
        "qwen2.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "none",
    }
    assert {key: fields[key] for key in expected} == expected
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types["blk.1.attn_k.weight"] == types["blk.0.ffn_down.weight"] == "Q4_0"
    assert types["blk.1.attn_k.bias"] == types["blk.0.attn_norm.weight"] == types["output_norm.weight"] == "F32"
    assert types["token_embd.weight"] == types["output.weight"] == "BF16"


def test_quantizing_into_gguf_and_exporting_to_it_give_the_same_file(
    made: Made, source: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}], "export": {"format": "gguf"}}
    done = goldstick.quantize(source("llama"), recipe, output=tmp_path / "out")
    assert done.report.proof["passed"] is True
    one, other = tmp_path / "out" / GGUF_NAME, made(format_="gguf") / GGUF_NAME
    assert load_all(one) == load_all(other)


def test_a_file_says_what_the_card_of_its_source_says(source: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(source("llama"), tmp_path / "float")
    (tmp_path / "float" / "README.md").write_text("---\nlicense: mit\nlanguage: [en, fi]\n---\n# A model\n")
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}], "export": {"format": "gguf"}}
    goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "out", proof="tensors")
    found = read_gguf(tmp_path / "out" / GGUF_NAME).metadata
    assert (found["general.license"], found["general.languages"]) == ("mit", ["en", "fi"])


def load_all(file: Path) -> dict[str, bytes]:
    data = file.read_bytes()
    return {name: data[info.start : info.start + info.nbytes] for name, info in read_gguf(file).tensors.items()}


def test_a_file_alone_is_loaded_inspected_verified_and_exported(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDSTICK_BACKEND", "cpu")  # products of floats: no activation is rounded
    file = Path(shutil.copy(made(format_="gguf") / GGUF_NAME, tmp_path / "tiny.gguf"))
    exact = logits(dequantized(made(format_="gguf"), "llama"))
    found = goldstick.load(file)
    assert (logits(found) - exact).abs().max() <= 2e-6 * exact.abs().max()
    assert {layer.scheme for layer in read_report(file).layers} == {"w4a16-g32", None}
    assert "what the config declares is what is stored: 14 quantized layers" in verify_checkpoint(file)["proof"]
    shown = CliRunner().invoke(main, ["inspect", str(file)])
    assert "format: gguf; made elsewhere" in shown.stdout
    api.export(file, "compressed-tensors", output=tmp_path / "out")
    codes, again = load_file(made() / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    assert codes.keys() == again.keys()
    assert all(again[name].double().equal(value.double()) for name, value in codes.items())


def nvfp4_blocks(like: np.ndarray) -> np.ndarray:
    """Rows of as many NVFP4 numbers: of each 64 four scales, which are one here, and random codes."""
    codes = np.random.default_rng(0).integers(0, 256, (len(like), like.shape[1] // 64, 36), dtype=np.uint8)
    codes[..., :4] = 0x38
    return codes.reshape(len(like), -1)


def write_as_another_tool(folder: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A tied Llama whose every matrix, the embedding too, was quantized by the gguf package."""
    model = BUILDERS["llama_tied"]()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    writer = gguf.GGUFWriter(folder / "other.gguf", "llama")
    for key, value in {"head_count": 4, "head_count_kv": 2}.items():
        writer.add_uint32(f"llama.attention.{key}", value)
    for key, value in {"block_count": 2, "context_length": 128, "embedding_length": 64}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.feed_forward_length", 128)
    writer.add_uint32("llama.vocab_size", 128)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else None
        if heads:
            value = value.reshape(heads, 2, -1, 64).transpose(1, 2).reshape(value.shape)
        module, _, leaf = name.rpartition(".")
        data = value.contiguous().numpy()
        if value.ndim == 2:
            nvfp4 = kind is gguf.GGMLQuantizationType.NVFP4  # the package reads these and writes none
            blocks = nvfp4_blocks(data) if nvfp4 else gguf.quants.quantize(data, kind)
            writer.add_tensor(f"{names.get_name(module)}.{leaf}", blocks, raw_dtype=kind)
        else:
            writer.add_tensor(f"{names.get_name(module)}.{leaf}", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "other.gguf"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_file_of_another_tool_runs_on_its_quantized_embedding(kind: str, tmp_path: Path) -> None:
    file = write_as_another_tool(tmp_path, gguf.GGMLQuantizationType[kind])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    mine = goldstick.load(file)
    assert type(mine.get_submodule("model.embed_tokens")).__name__ == "QuantizedEmbedding"
    with checkpoint_directory(file) as directory:
        stored = open_quantized(directory).stored
    assert len(stored.layers) == 15
    for layer in stored.layers:
        weight = stored.format.unpack(stored.read(layer), layer.scheme, layer.shape[-1]).dequantize(torch.float32)
        exact = theirs.state_dict()[layer.name]
        assert torch.allclose(weight, exact, rtol=0, atol=1e-6) if kind == "Q4_1" else weight.equal(exact)
    expected = logits(theirs)
    # The kernels round inputs to 16 bits.
    assert (logits(mine) - expected).abs().max() <= 1e-3 * expected.abs().max()
    done = api.export(file, "native", output=tmp_path / "native")
    assert done.report.proof["passed"] is True
    api.export(tmp_path / "native", "gguf", output=tmp_path / "back", proof="tensors")
    before, after = load_all(file), load_all(tmp_path / "back" / GGUF_NAME)
    assert before == after


def test_what_holds_the_blocks_of_another_tool_is_said_where_a_format_does_not(tmp_path: Path) -> None:
    file = write_as_another_tool(tmp_path, gguf.GGMLQuantizationType.Q4_1)
    with pytest.raises(FormatError, match=r"gptq cannot hold this: .* It can be exported to native\."):
        api.export(file, "gptq", output=tmp_path / "out")


def test_the_doctor_finds_nothing_wrong_with_layers_that_a_file_holds_in_float(
    source: Callable[[str], Path], tmp_path: Path
) -> None:
    stage = {"rtn": {"scheme": "w4a16-g32", "targets": {"exclude": ["*down_proj"]}}}
    recipe = {"stages": [stage], "export": {"format": "gguf"}}
    goldstick.quantize(source("llama"), recipe, output=tmp_path / "out", proof="tensors")
    assert api.doctor(tmp_path / "out").findings == ()


def test_a_config_beside_the_file_of_another_tool_is_used(made: Made, tmp_path: Path) -> None:
    shutil.copy(made(format_="gguf") / GGUF_NAME, tmp_path / "some.gguf")
    config = json.loads((made(format_="gguf") / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert logits(goldstick.load(tmp_path)).equal(logits(goldstick.load(made())))
    shutil.copy(tmp_path / "some.gguf", tmp_path / "another.gguf")
    with pytest.raises(SourceError, match=r"several GGUF files \(another\.gguf, some\.gguf\)"):
        goldstick.load(tmp_path)


def test_a_type_that_goldstick_does_not_run_is_read_in_float(tmp_path: Path) -> None:
    model: Any = goldstick.load(write_as_another_tool(tmp_path, gguf.GGMLQuantizationType.NVFP4))
    up = model.model.layers[0].mlp.up_proj.weight
    assert type(up) is torch.nn.Parameter
    assert len(torch.unique(up[0, :32])) <= 15, "a block has 15 values"


@pytest.mark.parametrize(
    ("family", "scheme", "complaint"),
    [
        ("opt", "w4a16-g32", "of LlamaForCausalLM, MistralForCausalLM, .* not of OPTForCausalLM"),
        ("llama", "w4a16-g32-asym", r"Q5_1 store −zero · scale in float16, and \d+ of its \d+ zeros"),
        ("llama", "w3a16-g32", r"q8_0.*q4_0.*q4_1"),
        ("llama", "w4a16-g16", "in groups of 16 do not fill them"),
    ],
)
def test_what_gguf_does_not_hold_is_refused_and_leaves_nothing(
    family: str, scheme: str, complaint: str, made: Made, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=complaint):
        api.export(made(family, scheme), "gguf", output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_looks_at_data_writes_what_an_export_of_its_result_holds(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    recipe = {"stages": STAGES["gptq as gguf"], "calibration": {"dataset": str(text), "samples": 4, "seq_len": 16}}
    float_model = tiny_checkpoint(tmp_path / "source", 2, merges=True)
    for name, format_ in (("direct", "gguf"), ("first", "native")):
        goldstick.quantize(float_model, {**recipe, "export": {"format": format_}}, output=tmp_path / name)
    api.export(tmp_path / "first", "gguf", output=tmp_path / "later")
    files = [gguf.GGUFReader(tmp_path / name / GGUF_NAME) for name in ("direct", "later")]
    direct, later = (
        {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in file.tensors} for file in files
    )
    assert direct == later
    assert not list((tmp_path / "direct").glob("*.safetensors*"))


CONFIG: dict[str, Any] = {**LlamaConfig(**GROUPED).to_dict(), "architectures": ["LlamaForCausalLM"]}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_act": "gelu"}, "the activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0, "factor": 2.0}}, "scaled by 'yarn'"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "a part of each head"),
    ],
)
def test_a_model_that_llama_cpp_would_run_in_another_way_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        model_metadata({**CONFIG, **changes}, "tiny", ["Q4_0"])


def test_the_window_of_mistral_bounds_the_context() -> None:
    config = {**CONFIG, "architectures": ["MistralForCausalLM"], "sliding_window": 32}
    assert model_metadata(config, "tiny", ["Q4_0"])["llama.context_length"] == 32
    assert model_metadata(CONFIG, "tiny", ["Q4_0"])["llama.context_length"] == 128


def test_the_factors_of_llama_3_are_those_of_transformers() -> None:
    config = LlamaConfig(**{**GROUPED, "head_dim": 64}, rope_parameters=LLAMA3)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=torch.device("cpu"))
    plain = 1.0 / 500000.0 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)
    llama = architecture_of_config(CONFIG)
    factors = rope_factors(config.to_dict(), llama)
    assert factors is not None
    assert torch.allclose(plain / frequencies, factors, rtol=1e-5)
    assert len(factors.unique()) > 3
    assert rope_factors(CONFIG, llama) is None


def test_the_scaling_of_llama_3_is_recognised_in_a_file(tmp_path: Path) -> None:
    model = tiny(LlamaForCausalLM, LlamaConfig(**GROUPED, rope_parameters=LLAMA3))()
    model.to(torch.bfloat16).save_pretrained(tmp_path / "float")
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}], "export": {"format": "gguf"}}
    goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "out", proof="tensors")
    file = read_gguf(tmp_path / "out" / GGUF_NAME)
    assert "rope_freqs.weight" in file.tensors
    found = config_of_file(file)
    assert found["rope_parameters"] == LLAMA3
    assert {key: found[key] for key in ("hidden_size", "head_dim", "vocab_size", "tie_word_embeddings")} == {
        "hidden_size": 64,
        "head_dim": 16,
        "vocab_size": 128,
        "tie_word_embeddings": False,
    }


@pytest.mark.parametrize("scheme", ["q4_0", "q4_1"])
def test_what_goes_on_from_scales_of_blocks_keeps_them_in_float32_models_too(scheme: str, tmp_path: Path) -> None:
    source, text = tiny_checkpoint(tmp_path / "source", 1, merges=True), write_text(tmp_path / "text.txt")
    gptq = {"scheme": scheme, "range_search": "ggml-imatrix", "group_size_mismatch": "skip", "cycles": 1}
    recipe = {
        "stages": [{"gptq": gptq}, {"learn": {"steps": 4}}],
        "calibration": {"dataset": str(text), "samples": 4, "seq_len": 16},
        "export": {"format": "gguf"},
    }
    report = goldstick.quantize(source, recipe, output=tmp_path / "out").report
    assert report.proof["passed"] and any(layer.notes.get("held_out_batches") for layer in report.layers)
