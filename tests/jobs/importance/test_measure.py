"""The importance matrix of a float model: what hooks on its layers see, whichever way it is measured."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM
from transformers.pytorch_utils import Conv1D

from goldstick import api
from goldstick.checkpoint.gguf.architectures import architecture_of_config
from goldstick.checkpoint.gguf.importance import read_importance
from goldstick.checkpoint.gguf.names import place_of
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.errors import FormatError, OutputError
from goldstick.jobs.importance import measure
from goldstick.recipes.calibration import Calibration
from tests.support.gguf_models import GGUF_MODELS

SAMPLES, TOKENS = 3, 24


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    file = tmp_path_factory.mktemp("data") / "ids.safetensors"
    rows = torch.randint(0, 120, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(3))
    save_file({"input_ids": rows}, file)
    return Calibration(dataset=str(file), samples=SAMPLES, seq_len=TOKENS)


def _seen_by_hooks(model: Any, text: Calibration) -> dict[str, torch.Tensor]:
    """Name of a layer's weight in the checkpoint → Σ x² of its inputs, float64."""
    found: dict[str, torch.Tensor] = {}

    def noting(name: str) -> Any:
        def note(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            squares = inputs[0].reshape(-1, inputs[0].shape[-1]).double().square().sum(0)
            found[name] = found.get(name, torch.zeros(())) + squares

        return note

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not model.get_output_embeddings():
            module.register_forward_pre_hook(noting(f"{name}.weight"))
    with torch.no_grad():
        for row in load_file(text.dataset)["input_ids"]:
            model(input_ids=row.unsqueeze(0))
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_layer_has_what_hooks_on_the_float_model_see(name: str, text: Calibration, tmp_path: Path) -> None:
    GGUF_MODELS[name]().save_pretrained(tmp_path / "model")
    made = measure.measure_importance(tmp_path / "model", text, tmp_path / "i.gguf")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    architecture = architecture_of_config(model.config.to_dict())
    seen = _seen_by_hooks(model, text)
    expected = {place: sums for tensor, sums in seen.items() for place in place_of(tensor, architecture).names}
    found = read_importance(tmp_path / "i.gguf")
    assert found.keys() == expected.keys()
    assert made.layers == len(seen)
    for place, sums in expected.items():
        torch.testing.assert_close(found[place].sums[0].double(), sums, rtol=1e-3, atol=1e-6)
        assert found[place].counts.tolist() == [SAMPLES * TOKENS]


def test_in_memory_and_by_blocks_it_is_the_same_file_and_a_recipe_takes_it(
    text: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GGUF_MODELS["mixtral"]().to(torch.bfloat16).save_pretrained(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    measure.measure_importance(tmp_path / "model", text, tmp_path / "i.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "i.gguf"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    with monkeypatch.context() as patch:
        patch.setattr(measure, "_streamed", lambda plan: None)
        measure.measure_importance(tmp_path / "model", text, tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "i.gguf").read_bytes()
    found = read_importance(tmp_path / "i.gguf")
    experts = found["blk.0.ffn_down_exps.weight"]
    assert int(experts.counts.sum()) == 2 * SAMPLES * TOKENS  # each token goes to two of them
    stage = {"scheme": "q5_0", "range_search": "ggml-imatrix", "importance": str(tmp_path / "i.gguf")}
    plan = api.plan(tmp_path / "model", {"stages": [{"rtn": stage}], "export": {"format": "gguf"}})
    assert not plan.calibrated


def test_a_file_that_came_meanwhile_is_left_alone_and_a_failed_write_leaves_nothing(
    text: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GGUF_MODELS["llama"]().save_pretrained(tmp_path / "model")
    file = tmp_path / "i.gguf"

    def come(what: str, done: int, total: int) -> None:
        file.write_bytes(b"another's")

    with pytest.raises(OutputError, match="came to exist in the meantime"):
        measure.measure_importance(tmp_path / "model", text, file, progress=come)
    assert file.read_bytes() == b"another's"
    measure.measure_importance(tmp_path / "model", text, file, overwrite=True, progress=come)
    whole = file.read_bytes()
    assert read_importance(file)

    def break_off(self: GgufWriter, name: str, tensor: torch.Tensor, at: int = 0) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GgufWriter, "write", break_off)
    with pytest.raises(OutputError, match=r"i\.gguf cannot be written: No space left"):
        measure.measure_importance(tmp_path / "model", text, file, overwrite=True)
    assert file.read_bytes() == whole
    assert {path.name for path in tmp_path.iterdir()} == {"model", "i.gguf"}


def test_hidden_states_of_a_process_that_was_killed_go_with_the_next(text: Calibration, tmp_path: Path) -> None:
    GGUF_MODELS["llama"]().save_pretrained(tmp_path / "model")
    file, killed = tmp_path / "i.gguf", os.fork()
    if not killed:
        measure.measure_importance(
            tmp_path / "model", text, file, progress=lambda what, done, total: os.kill(os.getpid(), 9) if done else None
        )
    os.waitpid(killed, 0)
    (left,) = {path.name for path in tmp_path.iterdir()} - {"model"}
    assert "hidden-00001.safetensors" in {path.name for path in (tmp_path / left).iterdir()}
    measure.measure_importance(tmp_path / "model", text, file)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "i.gguf"}


def test_what_cannot_be_is_said_before_anything_is_measured(text: Calibration, tmp_path: Path) -> None:
    GGUF_MODELS["llama"]().save_pretrained(tmp_path / "model")
    (tmp_path / "there.gguf").write_bytes(b"kept")
    with pytest.raises(OutputError, match="exists"):
        measure.measure_importance(tmp_path / "model", text, tmp_path / "there.gguf")
    assert (tmp_path / "there.gguf").read_bytes() == b"kept"
    with pytest.raises(OutputError, match="cannot be written"):
        measure.measure_importance(tmp_path / "model", text, tmp_path / "none" / "i.gguf")
    config = OPTConfig(
        vocab_size=64, hidden_size=32, ffn_dim=64, num_hidden_layers=1, num_attention_heads=4, word_embed_proj_dim=32
    )
    OPTForCausalLM(config).save_pretrained(tmp_path / "opt")
    with pytest.raises(FormatError, match="GGUF"):
        measure.measure_importance(tmp_path / "opt", text, tmp_path / "i.gguf")
