"""Calibration data that are no text: images, recordings, rows that name them, tensors; for tiny models of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers import AutoTokenizer
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import goldstick
from goldstick.calibration.data.tensor_samples import TensorSamples
from goldstick.errors import DataError, GoldstickError, OutputError
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.load.calibration_inputs import calibration_inputs
from goldstick.recipes.calibration import Calibration
from tests.support import tiny_processors
from tests.support.tiny_processors import PATCH, SIDE, write_image, write_rows, write_sound
from tests.support.tiny_tokenizer import write_tokenizer

PATCHES = (SIDE // PATCH) ** 2
Saved = tuple[nn.Module, Path]


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    directory = tmp_path_factory.mktemp("vit")
    return tiny_processors.vit(directory), directory


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    directory = tmp_path_factory.mktemp("llava")
    return tiny_processors.llava(directory), directory


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    directory = tmp_path_factory.mktemp("whisper")
    return tiny_processors.whisper(directory), directory


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number in range(6):
        write_image(tmp_path / "images" / f"class{number % 2}" / f"{number}.png", seed=number)
    return tmp_path / "images"


def read(saved: Saved, dataset: Path, **settings: Any) -> TensorSamples:
    found = calibration_inputs(Calibration(dataset=str(dataset), **settings), saved[1], None)(saved[0])
    assert isinstance(found, TensorSamples)
    return found


def gptq(dataset: Path, include: tuple[str, ...] = ("*layer*",), **calibration: Any) -> dict[str, Any]:
    stage = {"gptq": {"scheme": "w4a16-g32", "targets": {"include": include}, "token_floor": 0.0}}
    return {"stages": [stage], "calibration": {"dataset": str(dataset), **calibration}}


def test_a_folder_of_images_goes_through_the_models_own_processor(vit: Saved, images: Path) -> None:
    data = read(vit, images, samples=6)
    paths = sorted(images.rglob("*.png"))
    own = ViTImageProcessorPil.from_pretrained(vit[1])
    expected = torch.cat([own(Image.open(path).convert("RGB"), return_tensors="pt")["pixel_values"] for path in paths])
    (batch,) = data.batches()
    assert torch.equal(batch["pixel_values"], expected)
    assert data.audit() | {"fingerprint": ""} == {
        "dataset": str(images),
        "samples": 6,
        "windows_available": 6,
        "arguments": f"pixel_values 1×3×{SIDE}×{SIDE}",
        "kind": "images",
        "fingerprint": "",
    }


def test_an_image_of_a_kind_that_cannot_be_read_is_named(vit: Saved, images: Path) -> None:
    (images / "class0" / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(
        DataError, match=r"photo\.heic: no image that can be read; leave it out, or save it again as PNG"
    ):
        read(vit, images, samples=7).batches()


def test_a_seed_draws_the_same_samples_and_another_draws_others(vit: Saved, images: Path) -> None:
    prints = [read(vit, images, samples=3, seed=seed).fingerprint for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
    before = read(vit, images, samples=6).fingerprint
    write_image(images / "class0" / "0.png", seed=99)
    assert read(vit, images, samples=6).fingerprint != before


@pytest.mark.usefixtures("proof_here")
def test_a_checkpoint_is_calibrated_on_images_and_resuming_tells_when_they_changed(
    vit: Saved, images: Path, tmp_path: Path
) -> None:
    recipe = gptq(images, samples=6)
    made = goldstick.quantize(vit[1], recipe, output=tmp_path / "out")
    layers = [layer for layer in made.report.layers if layer.algorithm == "gptq"]
    assert {layer.notes["tokens"] for layer in layers if "layers" in layer.name} == {6 * (PATCHES + 1)}
    assert made.report.calibration["kind"] == "images"
    again = goldstick.quantize(vit[1], recipe, output=tmp_path / "out", resume=True)
    assert again.finished_before
    write_image(images / "class0" / "0.png", seed=99)
    with pytest.raises(OutputError, match="made with another calibration data"):
        goldstick.quantize(vit[1], recipe, output=tmp_path / "out", resume=True)


def test_recordings_are_heard_at_the_rate_of_the_model_and_transcripts_are_shifted(
    whisper: Saved, tmp_path: Path
) -> None:
    for number in range(3):
        write_sound(tmp_path / f"{number}.wav", seed=number)
    rows = write_rows(
        tmp_path / "rows.jsonl",
        {"audio": "0.wav", "text": "cats"},
        {"audio_filepath": "1.wav", "transcript": "dogs"},
        {"file_name": "2.wav"},
    )
    data = read(whisper, rows, samples=3)
    tokenizer = AutoTokenizer.from_pretrained(whisper[1])
    start = whisper[0].config.decoder_start_token_id
    ids = [sample["decoder_input_ids"][0].tolist() for sample in data.samples]
    assert ids == [[start, *tokenizer(word)["input_ids"][:-1]] for word in ("cats", "dogs")] + [[start]]
    assert {tuple(sample["input_features"].shape) for sample in data.samples} == {(1, 16, 100)}
    assert data.warnings() == (
        f"no transcript for 1 of 3 recordings of {rows}, of which the decoder saw its first token only; name "
        "transcripts in a .jsonl, .csv or .tsv file",
    )
    table = tmp_path / "rows.csv"
    table.write_text("audio,text\n0.wav,cats\n1.wav,dogs\n2.wav,\n")
    assert read(whisper, table, samples=3).fingerprint == data.fingerprint
    table = tmp_path / "rows.tsv"
    table.write_text("path\tsaid\n0.wav\tcats\n1.wav\tdogs\n")
    assert read(whisper, table, samples=2, text_field="said").samples[1]["decoder_input_ids"].tolist() == [ids[1]]


def test_encoder_and_decoder_are_both_calibrated_on_recordings(whisper: Saved, tmp_path: Path) -> None:
    for number in range(3):
        write_sound(tmp_path / f"{number}.wav", seed=number)
    rows = write_rows(tmp_path / "r.jsonl", *({"audio": f"{number}.wav", "text": "cats"} for number in range(3)))
    data = read(whisper, rows, samples=3)
    report = goldstick.apply(whisper[0], gptq(rows), data=data.batches()).report
    tokens = {layer.name: layer.notes["tokens"] for layer in report.layers if layer.algorithm == "gptq"}
    assert tokens["model.encoder.layers.0.fc1.weight"] == 3 * 50
    assert tokens["model.decoder.layers.1.fc1.weight"] == 3 * 4
    assert tokens["model.decoder.layers.1.encoder_attn.k_proj.weight"] == 3 * 50


def test_a_folder_of_recordings_needs_no_transcripts(whisper: Saved, tmp_path: Path) -> None:
    write_sound(tmp_path / "a" / "b.wav")
    (tmp_path / "a" / "LICENSE").write_text("free")
    data = read(whisper, tmp_path / "a", samples=1)
    assert data.samples[0]["decoder_input_ids"].tolist() == [[whisper[0].config.decoder_start_token_id]]
    assert data.audit()["other_files"] == 1


def test_conversations_about_images_are_written_by_the_processors_template(llava: Saved, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    asked = {"type": "text", "text": "what?"}
    rows = write_rows(
        tmp_path / "rows.jsonl",
        {"messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"}, asked]}]},
        {"image": "a.png", "conversations": [{"from": "human", "value": "<image>\nwhat?"}]},
        {"image": "a.png", "text": "what?"},
        {"messages": [{"role": "user", "content": "what?"}]},
    )
    data = read(llava, rows, samples=4)
    first, *others = data.samples
    token = llava[0].config.image_token_index
    written = first["input_ids"][0].tolist()
    assert written.count(token) == PATCHES
    assert first["pixel_values"].shape == (1, 3, SIDE, SIDE)
    assert [other["input_ids"].tolist() for other in others[:2]] == [[written]] * 2
    assert others[2]["input_ids"][0].tolist() == [one for one in written if one != token]
    assert [len(batch["input_ids"]) for batch in data.batches()] == [3, 1]


@pytest.mark.usefixtures("proof_here")
def test_a_model_of_images_and_text_is_calibrated_in_all_its_parts(llava: Saved, tmp_path: Path) -> None:
    for number in range(4):
        write_image(tmp_path / f"{number}.png", seed=number)
    rows = write_rows(tmp_path / "rows.jsonl", *({"image": f"{number}.png", "text": "what?"} for number in range(4)))
    recipe = gptq(rows, ("*layer*", "*multi_modal_projector*"), samples=4)
    report = goldstick.quantize(llava[1], recipe, output=tmp_path / "out").report
    layers = [layer for layer in report.layers if layer.algorithm == "gptq"]
    unreached = {layer.name for layer in layers if "unreached" in layer.notes}
    assert any("vision" in layer.name for layer in layers if layer.name not in unreached)
    assert any("multi_modal_projector" in layer.name for layer in layers if layer.name not in unreached)
    last = "vision_tower.encoder.layers.1"  # its output is not looked at: the model takes that of the layer before
    assert all(last in name for name in unreached)


@pytest.mark.usefixtures("proof_here")
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_saved_tensors_are_the_forwards_arguments(vit: Saved, tmp_path: Path, suffix: str) -> None:
    pixels = torch.randn(5, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    path = tmp_path / f"pixels{suffix}"
    if suffix == ".npz":
        np.savez(path, pixel_values=pixels.numpy())
    else:
        save_file({"pixel_values": pixels}, path)
    (batch,) = read(vit, path, samples=5).batches()
    assert torch.equal(batch["pixel_values"], pixels)
    report = goldstick.quantize(vit[1], gptq(path, samples=4), output=tmp_path / "out").report
    assert (report.calibration["samples"], report.calibration["windows_available"]) == (4, 5)


def test_token_ids_that_were_saved_fit_the_embedding(llava: Saved, tmp_path: Path) -> None:
    path = tmp_path / "ids.npz"
    np.savez(path, input_ids=np.full((3, 8), 300, dtype=np.int32))
    with pytest.raises(DataError, match=r"gives token id 300, and the embedding of Llava.* has 128 rows"):
        read(llava, path, samples=3)
    np.savez(path, input_ids=np.full((3, 8), 100, dtype=np.int32))
    (batch,) = read(llava, path, samples=3).batches()
    assert batch["input_ids"].dtype is torch.int64


def test_values_come_in_the_models_dtype(tmp_path: Path, images: Path) -> None:
    model = tiny_processors.vit(tmp_path / "vit").to(torch.bfloat16)
    assert read((model, tmp_path / "vit"), images, samples=2).samples[0]["pixel_values"].dtype is torch.bfloat16


def test_what_is_wrong_is_named_with_its_remedy(vit: Saved, llava: Saved, whisper: Saved, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    images = write_image(tmp_path / "images" / "a.png").parent
    both = write_image(tmp_path / "both" / "a.png").parent
    write_sound(both / "b.wav")
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "a.py").write_text("")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.png").write_bytes(b"no image")
    silent = tmp_path / "silent"
    silent.mkdir()
    (silent / "a.wav").write_bytes(b"RIFFnothing")
    lost = write_rows(tmp_path / "lost.jsonl", {"image": "c.png"})
    other = tmp_path / "other.npz"
    np.savez(other, pixels=np.zeros((2, 3)))
    uneven = tmp_path / "uneven.npz"
    np.savez(uneven, a=np.zeros((2, 3)), b=np.zeros((3, 3)))
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, a=np.array([{}, []], dtype=object))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"12345678no")
    counts = write_rows(
        tmp_path / "counts.jsonl",
        {"image": "images/a.png", "messages": [{"role": "user", "content": [{"type": "image"}] * 2}]},
    )
    for saved, dataset, complaint in [
        (vit, empty, r"empty: a folder with no image and no audio file, but no file\. Calibration data are a text"),
        (vit, odd, "odd: a folder with no image and no audio file, but 1 of .py"),
        (vit, both, "a folder of 1 image and 1 audio file; give a folder of one kind"),
        (vit, images / "a.png", "one .png file is no calibration data; give the folder"),
        (vit, tmp_path / "none.npz", "there is no calibration file"),
        (
            vit,
            images,
            r"images gives 1 images, and 2 are asked for: use samples: 1, more images or allow_short: true",
        ),
        (vit, lost, r"lost.jsonl, line 1: there is no file 'c.png' \(paths are relative to "),
        (vit, other, "gives 'pixels', and the forward of ViTForImageClassification takes pixel_values"),
        (vit, uneven, r"the first dimension is the samples, .* not a \[2, 3\], b \[3, 3\]"),
        (vit, pickled, "pickled.npz: cannot be read as .npz"),
        (vit, damaged, "damaged.safetensors: cannot be read as .safetensors"),
        (llava, counts, "line 1: 2 parts of its messages are of type image, and 1 files are named"),
    ]:
        with pytest.raises(DataError, match=complaint):
            read(saved, dataset, samples=2)
    with pytest.raises(DataError, match=r"broken/a.png: no image that can be read; leave it out"):
        read(vit, broken, samples=1)
    with pytest.raises(DataError, match="holds images alone, and LlavaForConditionalGeneration reads text with them"):
        read(llava, images, samples=1)
    with pytest.raises(DataError, match=r"silent/a.wav: no recording that can be read"):
        read(whisper, silent, samples=1)


def test_a_model_without_a_processor_says_which_file_is_missing(images: Path, tmp_path: Path) -> None:
    model = tiny_processors.vit(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").unlink()
    with pytest.raises(GoldstickError, match=r"its image processor, which such data need, cannot be read .* copy pre"):
        read((model, tmp_path / "vit"), images, samples=2)


def test_data_of_another_kind_than_the_model_reads_are_refused(vit: Saved, llava: Saved, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    rows = write_rows(tmp_path / "rows.jsonl", {"image": "a.png", "text": "what?"})
    with pytest.raises(DataError, match=r"the processor in .* takes text or images or audio"):
        read(vit, rows, samples=1)
    sounds = write_sound(tmp_path / "sounds" / "a.wav").parent
    with pytest.raises(GoldstickError, match="its feature extractor, which such data need, cannot be read"):
        read(vit, sounds, samples=1)
    settings = Calibration(dataset=str(sounds), samples=1)
    with pytest.raises(DataError, match="sounds is a folder, and text is read here"):
        calibration_data(settings, llava[1], None)(llava[0])


def test_text_is_read_as_ever(llava: Saved, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "a cat sat on a mat"}))
    settings = Calibration(dataset=str(rows), samples=1, seq_len=8)
    assert calibration_inputs(settings, tmp_path, None)(llava[0]).batches()[0]["input_ids"].shape == (1, 8)


@pytest.mark.usefixtures("proof_here")
def test_a_patch_embedding_is_calibrated_on_images_and_proven(vit: Saved, images: Path, tmp_path: Path) -> None:
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g32"}}], "calibration": {"dataset": str(images), "samples": 6}}
    report = goldstick.quantize(vit[1], recipe, output=tmp_path / "out").report
    (patches,) = [layer for layer in report.layers if layer.algorithm == "gptq" and "projection" in layer.name]
    assert patches.notes["tokens"] == 6 * PATCHES
    assert report.proof["max_abs_difference"] < 1e-5
