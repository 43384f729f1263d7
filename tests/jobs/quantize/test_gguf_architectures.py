"""Every architecture that GGUF files are written of: there and back, alone, and as transformers reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

import goldstick
from goldstick import api
from goldstick.checkpoint.gguf.architectures import ARCHITECTURES
from goldstick.checkpoint.gguf.file import read_gguf
from goldstick.errors import FormatError
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.source import open_source
from tests.support.gguf_models import GGUF_MODELS
from tests.support.tiny_models import output_tensor, sample_inputs

pytestmark = pytest.mark.usefixtures("all_proofs_here")

#: Whose weights transformers' own reader finds in GGUF files, given the config: not all that it names.
READ_BY_TRANSFORMERS = (
    *("llama", "qwen2", "qwen3", "starcoder2", "phi3", "gemma2", "gemma3"),
    *("qwen2_moe", "qwen3_moe", "gpt2", "falcon"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A model rounded to 8 bits, stored in the native format (``native``) and as GGUF (``gguf``), from ``float``."""
    folder = tmp_path_factory.mktemp("gguf")

    def make(name: str) -> Path:
        here = folder / name
        if not here.exists():
            GGUF_MODELS[name]().to(torch.bfloat16).save_pretrained(here / "float")
            for format_ in ("native", "gguf"):
                recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}], "export": {"format": format_}}
                goldstick.quantize(here / "float", recipe, output=here / format_, proof="tensors")
        return here

    return make


def answer(model: Any) -> Tensor:
    return output_tensor(model, sample_inputs(model))


def loaded(path: Path) -> nn.Module:
    return goldstick.load(path, dtype=torch.float32)


def test_every_record_has_a_model() -> None:
    built = {type(build()).__name__ for build in GGUF_MODELS.values()}
    assert built == {name for architecture in ARCHITECTURES for name in architecture.classes}


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_a_model_comes_back_from_gguf_tensor_by_tensor(name: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    here = made(name)
    api.export(here / "gguf", "native", output=tmp_path / "back", proof="tensors")
    before, after = (load_file(path / "model.safetensors") for path in (here / "native", tmp_path / "back"))
    assert before.keys() == after.keys()
    for tensor, value in before.items():
        assert after[tensor].dtype == value.dtype or tensor.endswith("_scale"), tensor
        assert after[tensor].double().equal(value.double()), tensor


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_a_file_alone_is_the_same_model(name: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    file = Path(shutil.copy(made(name) / "gguf" / GGUF_NAME, tmp_path / "tiny.gguf"))
    expected = answer(loaded(made(name) / "gguf"))
    # Falcon 7B's one key and value are read as the one group that they are.
    assert (answer(loaded(file)) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_a_model_in_gguf_answers_as_in_the_native_format(name: str, made: Callable[[str], Path]) -> None:
    assert answer(loaded(made(name) / "gguf")).equal(answer(loaded(made(name) / "native")))


def test_norms_that_are_stored_with_one_more_keep_what_is_lost_beside_it(tmp_path: Path) -> None:
    model: Any = GGUF_MODELS["gemma2"]()
    with torch.no_grad():
        model.model.norm.weight[:4] = torch.tensor([1e-9, -1e-12, 3e-6, 0.0])  # 1 + 1e-9 is 1 in float32
    model.to(torch.bfloat16).save_pretrained(tmp_path / "float")
    for proof in ("tensors", "outputs"):
        recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}], "export": {"format": "gguf"}}
        done = goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / proof, proof=proof)
        assert done.report.proof["passed"] is True
    api.export(tmp_path / "tensors", "native", output=tmp_path / "native", proof="tensors")
    back = load_file(tmp_path / "native" / "model.safetensors")["model.norm.weight"][:4]
    assert back.tolist() == [0.0, 0.0, pytest.approx(3e-6, rel=0.02), 0.0]


@pytest.mark.parametrize(("mode", "number"), [("mean_tokens", 1), ("cls_token", 2)])
def test_an_encoder_says_how_its_states_become_one(mode: str, number: int, tmp_path: Path) -> None:
    GGUF_MODELS["bert"]().to(torch.bfloat16).save_pretrained(tmp_path / "float")
    (tmp_path / "float" / "1_Pooling").mkdir()
    (tmp_path / "float" / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}], "export": {"format": "gguf"}}
    goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "out", proof="tensors")
    assert read_gguf(tmp_path / "out" / GGUF_NAME).metadata["bert.pooling_type"] == number
    (tmp_path / "float" / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(FormatError, match="pools states as llama"):
        goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "other", proof="tensors")


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_finds_the_same_weights(name: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    there = made(name) / "gguf"
    config = AutoConfig.from_pretrained(made(name) / "float")
    theirs = AutoModelForCausalLM.from_pretrained(there, gguf_file=GGUF_NAME, config=config, dtype=torch.float32)
    shutil.copytree(there, tmp_path / "gguf")
    settings = json.loads((there / "config.json").read_text()) | {"dtype": "float32"}
    (tmp_path / "gguf" / "config.json").write_text(json.dumps(settings))
    shutil.copytree(made(name) / "float", tmp_path / "float")
    numbers = {key: info.read().contiguous() for key, info in open_source(tmp_path / "gguf").tensors.items()}
    save_file(numbers, tmp_path / "float" / "model.safetensors", metadata={"format": "pt"})
    mine = type(theirs).from_pretrained(tmp_path / "float", dtype=torch.float32).state_dict()
    state = theirs.state_dict()
    assert state.keys() == mine.keys()
    for tensor, value in mine.items():
        assert state[tensor].equal(value), tensor
