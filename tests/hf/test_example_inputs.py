"""Inputs to try a model with: known for models of every kind, given for others, and carried by the checkpoint."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    MobileNetV1Config,
    MobileNetV1ForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    PoolFormerConfig,
    PoolFormerForImageClassification,
    PreTrainedModel,
    PvtConfig,
    PvtForImageClassification,
    SpeechT5Config,
    SpeechT5ForSpeechToText,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import goldstick
from goldstick.cli import main
from goldstick.core.notices import NotRunWarning
from goldstick.errors import CheckpointError, DataError, SourceError
from goldstick.hf.example_inputs import (
    INPUTS_NAME,
    fixed_inputs,
    give_inputs,
    inputs_beside,
    inputs_for,
    packed_inputs,
    read_inputs,
    shapes_of_inputs,
)
from goldstick.jobs.save import finish
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore:.*pos_conv_embed.conv.parametrizations")
SPEECH = {
    "hidden_size": 32,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
SIDES = {
    f"{side}_{what}": value
    for side in ("encoder", "decoder")
    for what, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 64}.items()
}


def whisper() -> PreTrainedModel:
    config = WhisperConfig(
        vocab_size=100, d_model=32, num_mel_bins=16, max_source_positions=50, max_target_positions=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **SIDES,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config).eval()


def clip() -> PreTrainedModel:
    side = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**side, "vocab_size": 100, "bos_token_id": 98, "eos_token_id": 99}
    vision = {**side, "image_size": 48, "patch_size": 16}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)).eval()


def moonshine() -> PreTrainedModel:
    sides = {
        f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("num_hidden_layers", "num_attention_heads")
    }
    return MoonshineForConditionalGeneration(
        MoonshineConfig(vocab_size=100, hidden_size=32, intermediate_size=64, **sides)
    ).eval()


def pyramid(config: type[Any], model: type[PreTrainedModel], **more: Any) -> PreTrainedModel:
    return model(config(hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], **more)).eval()


MODELS: dict[str, tuple[Callable[[], PreTrainedModel], set[str]]] = {
    "whisper": (whisper, {"input_features", "decoder_input_ids"}),
    "clip": (clip, {"input_ids", "pixel_values"}),
    "moonshine": (moonshine, {"input_values", "decoder_input_ids"}),
    "speecht5": (
        lambda: SpeechT5ForSpeechToText(SpeechT5Config(vocab_size=60, **SPEECH, **SIDES)).eval(),
        {"input_values", "decoder_input_ids"},
    ),
    "wav2vec2": (
        lambda: Wav2Vec2ForCTC(
            Wav2Vec2Config(vocab_size=40, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, **SPEECH)
        ).eval(),
        {"input_values"},
    ),
    "poolformer": (lambda: pyramid(PoolFormerConfig, PoolFormerForImageClassification), {"pixel_values"}),
    "pvt": (
        lambda: pyramid(PvtConfig, PvtForImageClassification, image_size=64, num_attention_heads=[1, 1, 2, 2]),
        {"pixel_values"},
    ),
    "mobilenet_v1": (
        lambda: MobileNetV1ForImageClassification(MobileNetV1Config(depth_multiplier=0.25, image_size=64)).eval(),
        {"pixel_values"},
    ),
    "mobilenet_v2": (
        lambda: MobileNetV2ForImageClassification(MobileNetV2Config(depth_multiplier=0.25, image_size=64)).eval(),
        {"pixel_values"},
    ),
    "falcon_mamba": (
        lambda: FalconMambaForCausalLM(
            FalconMambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=8)
        ).eval(),
        {"input_ids"},
    ),
    "videomae": (
        lambda: VideoMAEForVideoClassification(
            VideoMAEConfig(
                hidden_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=64,
                image_size=32,
                num_frames=4,
                patch_size=16,
            )
        ).eval(),
        {"pixel_values"},
    ),
}
EVERYTHING_ROUNDED = {"stages": [{"rtn": {"scheme": "w4a16-g16", "group_size_mismatch": "channel"}}]}


@pytest.mark.usefixtures("proof_here")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_any_kind_is_quantized_saved_and_proven(name: str, tmp_path: Path) -> None:
    build, arguments = MODELS[name]
    model = build()
    inputs = fixed_inputs(model)
    assert set(inputs) == arguments
    with torch.device("meta"):
        twin = type(model)(model.config)
    assert all(torch.equal(value, inputs[name]) for name, value in fixed_inputs(twin).items())
    result = goldstick.apply(model, EVERYTHING_ROUNDED)
    result.save(tmp_path / "out")
    proof = json.loads((tmp_path / "out" / "goldstick.json").read_text())["proof"]
    assert proof["method"] == "outputs" and proof["passed"]
    assert proof["observed"]["inputs"] == shapes_of_inputs(inputs)


@pytest.mark.usefixtures("proof_here")
def test_a_directory_is_quantized_and_verified(tmp_path: Path) -> None:
    MODELS["pvt"][0]().save_pretrained(tmp_path / "in")
    goldstick.quantize(tmp_path / "in", EVERYTHING_ROUNDED, output=tmp_path / "out")
    assert "equal" in verify_checkpoint(tmp_path / "out")["proof"]


def test_text_is_what_it_was_before_other_kinds_were_known() -> None:
    """Proofs that are on disk were made with it."""
    model = FAMILIES["llama_gqa"]()
    ids = torch.randint(0, model.config.vocab_size, (4, 16), generator=torch.Generator().manual_seed(0))
    assert torch.equal(fixed_inputs(model)["input_ids"], ids)
    old = fixed_inputs(clip_and_text := clip(), {})
    assert set(old) == {"input_ids"} and "pixel_values" in fixed_inputs(clip_and_text)


class Odd(nn.Module):
    """A model of which nobody knows what it takes."""

    def forward(self, harmonics: Tensor) -> Tensor:
        return harmonics


def test_where_nothing_is_known_the_error_says_what_to_give() -> None:
    model = Odd()
    model.config = None  # type: ignore[assignment]
    with pytest.raises(DataError, match=r"run a Odd, which takes harmonics\..*--inputs FILE"):
        fixed_inputs(model)
    assert inputs_for(model) is None
    with pytest.raises(DataError, match=r"hold 'overtones', which Odd does not take\. It takes harmonics"):
        give_inputs(model, {"overtones": torch.zeros(1)})


def test_inputs_that_are_given_are_those_of_the_proof_and_stay_with_the_checkpoint(tmp_path: Path) -> None:
    whisper().save_pretrained(tmp_path / "in")
    features = torch.randn(3, 16, 100)
    save_file(
        {"input_features": features, "decoder_input_ids": torch.ones(3, 5, dtype=torch.long)},
        tmp_path / "mine.safetensors",
    )
    runner = CliRunner()
    words = [
        "quantize",
        str(tmp_path / "in"),
        "-r",
        "rtn-w8a16",
        "-o",
        str(tmp_path / "out"),
        "--inputs",
        str(tmp_path / "mine.safetensors"),
    ]
    found = runner.invoke(main, words)
    assert found.exit_code == 0, found.output
    manifest = json.loads((tmp_path / "out" / "goldstick.json").read_text())
    assert manifest["proof"]["observed"]["inputs"] == {"input_features": [3, 16, 100], "decoder_input_ids": [3, 5]}
    assert INPUTS_NAME in manifest["files"]
    assert torch.equal(read_inputs(tmp_path / "out" / INPUTS_NAME)["input_features"], features)
    assert verify_checkpoint(tmp_path / "out")["passed"]
    compared = runner.invoke(
        main,
        [
            "compare",
            str(tmp_path / "in"),
            str(tmp_path / "out"),
            "--json",
            "--inputs",
            str(tmp_path / "mine.safetensors"),
        ],
    )
    assert compared.exit_code == 0 and "[3, 16, 100]" in compared.output


def test_an_export_carries_the_inputs_that_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    model = whisper().half()
    features = {"input_features": torch.randn(3, 16, 100), "decoder_input_ids": torch.ones(3, 5, dtype=torch.long)}
    recipe = goldstick.Recipe.load("rtn-w8a16").excluding("*conv*", "*embed*")
    goldstick.apply(model, recipe, inputs=features).save(tmp_path / "out")
    goldstick.export(tmp_path / "out", "gptq", output=tmp_path / "exported")
    manifest = json.loads((tmp_path / "exported" / "goldstick.json").read_text())
    assert manifest["proof"]["observed"]["inputs"] == {"input_features": [3, 16, 100], "decoder_input_ids": [3, 5]}
    assert torch.equal(
        read_inputs(tmp_path / "exported" / INPUTS_NAME)["input_features"], features["input_features"].half()
    )


def test_bytes_of_given_inputs_are_the_same_every_time() -> None:
    inputs = {"b": torch.ones(2, dtype=torch.bfloat16), "a": torch.arange(3)}
    assert packed_inputs(inputs) == packed_inputs(dict(reversed(inputs.items())))


def test_inputs_of_a_stranger_s_checkpoint_take_little_memory(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / INPUTS_NAME, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("input_ids.npy", bytes(2**28 + 1))
    assert (tmp_path / INPUTS_NAME).stat().st_size < 2**20
    with pytest.raises(DataError, match=r"unpack to 268,435,457 bytes"):
        inputs_beside(tmp_path)
    (tmp_path / INPUTS_NAME).write_text("no archive")
    with pytest.raises(DataError, match="cannot be read"):
        inputs_beside(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    np.savez(tmp_path / "mine.npz", input_ids=np.zeros(3))
    (tmp_path / "elsewhere" / INPUTS_NAME).symlink_to(tmp_path / "mine.npz")
    with pytest.raises(SourceError, match="link"):
        inputs_beside(tmp_path / "elsewhere")


def test_nothing_is_left_on_a_model_that_inputs_were_sought_for() -> None:
    model = clip()
    before = set(vars(model))
    fixed_inputs(model)
    give_inputs(model, {"input_ids": torch.zeros(1, 4, dtype=torch.long)})
    assert set(vars(model)) == before


@pytest.mark.parametrize("name", ["missing.npz", "empty.npz", "text.npz", "text.safetensors"])
def test_a_file_that_holds_no_inputs_is_refused(name: str, tmp_path: Path) -> None:
    if name.startswith("text"):
        (tmp_path / name).write_text("not a tensor")
    elif name.startswith("empty"):
        np.savez(tmp_path / name)
    with pytest.raises(DataError, match=name):
        read_inputs(tmp_path / name)


@pytest.mark.usefixtures("proof_here")
def test_a_run_whose_model_does_not_run_in_the_end_is_not_lost(tmp_path: Path) -> None:
    MODELS["wav2vec2"][0]().save_pretrained(tmp_path / "in")
    np.savez(tmp_path / "wrong.npz", input_values=np.zeros((1, 2), np.float32))
    with pytest.warns(NotRunWarning, match=r"does not run: .*Every tensor read back is what was written"):
        goldstick.quantize(tmp_path / "in", EVERYTHING_ROUNDED, output=tmp_path / "out", inputs=tmp_path / "wrong.npz")
    proof = json.loads((tmp_path / "out" / "goldstick.json").read_text())["proof"]
    assert proof["method"] == "tensors" and proof["passed"] and "does not run" in proof["not_run"]
    with pytest.warns(NotRunWarning, match="Every file and every quantized layer read back"):
        model = MODELS["wav2vec2"][0]()
        result = goldstick.apply(model, EVERYTHING_ROUNDED, inputs={"input_values": torch.zeros(1, 2)})
        result.save(tmp_path / "saved")
    again = goldstick.load(tmp_path / "saved")
    assert torch.equal(again.lm_head.weight, result.model.lm_head.weight)


@pytest.mark.usefixtures("proof_here")
def test_a_file_that_changed_on_its_way_to_the_disk_fails_the_proof_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["wav2vec2"][0]()
    result = goldstick.apply(model, EVERYTHING_ROUNDED, inputs={"input_values": torch.zeros(1, 2)})
    plain = finish.prove

    def damaged(directory: Path, request: Any, expected: Any) -> Any:
        path = directory / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        return plain(directory, request, expected)

    monkeypatch.setattr(finish, "prove", damaged)
    with pytest.raises(CheckpointError, match=r"does not give what the model.*model\.safetensors"):
        result.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
