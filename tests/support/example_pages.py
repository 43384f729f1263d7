"""What each document's examples presume: models and data, as small as they come."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertModel

import goldstick
from goldstick.jobs.load.find_model import reference_directory
from tests.support import tiny_processors
from tests.support.small_networks import TinyStages, accuracy, batches, trained
from tests.support.tiny_mixtures import MIXTURES
from tests.support.tiny_processors import SIDE, write_image, write_rows, write_sound

#: Bundled, before any test puts a smaller one in its place.
BUNDLED = reference_directory()
#: Characters of what calibrates the bundled model, a twentieth of what comes with it.
_CALIBRATION = 8_000
#: The size of a page's model. What says nothing of lengths is calibrated on windows of its context.
SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
#: Page → what is otherwise in its model's config.
OTHERWISE = {
    "own-tasks.md": {"max_position_embeddings": 192},
    "README.md": {"max_position_embeddings": 192},
    "commands.md": {"max_position_embeddings": 192},
    "gguf-for-a-laptop.md": {"hidden_size": 256, "intermediate_size": 256},
    "recipes.md": {"num_hidden_layers": 2},
    "runtimes.md": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}


def small_model(directory: Path, page: str) -> Path:
    """The bundled model made small, with random weights and its tokenizer."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(BUNDLED, **(SMALL | OTHERWISE.get(page, {})))
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / name, directory)
    return directory


def few_data(directory: Path) -> Path:
    """A data directory with a few items of each of the bundled tasks, and with some of the bundled calibration text."""
    for name in ("text", "boolq", "squad", "ceval", "wikitext2"):
        (directory / name).mkdir(parents=True)
    data = BUNDLED / "data"
    calibration = (data / "text" / "calibration.txt").read_text()
    (directory / "text" / "calibration.txt").write_text(calibration[:_CALIBRATION])
    (directory / "wikitext2" / "wiki.train.raw").write_text(calibration)
    held_out = (data / "text" / "heldout.txt").read_text()[:3000]
    for name in ("text/heldout.txt", "wikitext2/wiki.test.raw"):
        (directory / name).write_text(held_out)
    for name, rows in (("boolq/val.jsonl", 4), ("ceval/val.jsonl", 4), ("ceval/dev.jsonl", 40)):
        lines = (data / name).read_text().splitlines(keepends=True)
        (directory / name).write_text("".join(lines[:rows]))
    squad = json.loads((data / "squad" / "dev-v1.1.json").read_text())
    squad["data"] = squad["data"][:1]
    squad["data"][0]["paragraphs"] = squad["data"][0]["paragraphs"][:2]
    (directory / "squad" / "dev-v1.1.json").write_text(json.dumps(squad))
    return directory


def bundled_with_few_data(directory: Path) -> Path:
    """The bundled model as it is, with a few items of its data."""
    shutil.copytree(BUNDLED, directory, ignore=shutil.ignore_patterns("data"))
    few_data(directory / "data")
    return directory


def texts(folder: Path) -> None:
    """The bundled text under the names that examples give their own."""
    text = (BUNDLED / "data" / "text" / "calibration.txt").read_text()
    for name in ("text.txt", "TEXT"):
        (folder / name).write_text(text)
    write_rows(folder / "mine.jsonl", {"text": text})


def loaded(directory: str | Path) -> Any:
    """The model of a checkpoint, as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(directory)


def _ids() -> torch.Tensor:
    return torch.randint(3, 3000, (1, 32))


def _python(folder: Path, names: dict[str, Any]) -> None:
    shutil.copytree(folder / "model", folder / "Llama-3-8B")
    goldstick.quantize("model", "rtn-w4a16-g128", output="packed", proof="tensors")
    names |= {"model": loaded("model"), "loaded": loaded("packed")}


def _my_model(folder: Path, names: dict[str, Any]) -> None:
    shutil.copytree(folder / "model", folder / "my-model")


def _encoder(folder: Path, names: dict[str, Any]) -> None:
    config = BertConfig(
        vocab_size=3072, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder / "encoder")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / name, folder / "encoder")
    write_rows(folder / "mine.jsonl", *({"text": f"The harbour lies {number} miles away."} for number in range(6)))


def _onnx(folder: Path, names: dict[str, Any]) -> None:
    _encoder(folder, names)
    (folder / "encoder").rename(folder / "my-encoder")


def _classifier(folder: Path, names: dict[str, Any]) -> None:
    _media(folder, names)
    for name in ("cat", "dog"):
        write_image(folder / "test" / "images" / name / "1.png")
    names |= {"network": trained(), "images": [images for images, _ in batches(2)]}


def _mixture(folder: Path, names: dict[str, Any]) -> None:
    config = MIXTURES["qwen3_moe"]().config
    config.vocab_size = 3072
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "mixture")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / name, folder / "mixture")


def _media(folder: Path, names: dict[str, Any]) -> None:
    tiny_processors.vit(folder / "vit")
    tiny_processors.llava(folder / "llava")
    tiny_processors.whisper(folder / "whisper")
    for number in range(4):
        write_sound(folder / f"{number}.wav", seed=number)
        write_image(folder / "photos" / f"{number}.png", seed=number)
    rows = "".join(f"{number}.wav,some words\n" for number in range(4))
    (folder / "speech.csv").write_text("audio,transcript\n" + rows)
    write_rows(folder / "asked.jsonl", *({"image": f"photos/{number}.png", "text": "what?"} for number in range(4)))
    save_file({"pixel_values": torch.randn(4, 3, SIDE, SIDE)}, folder / "pixels.safetensors")


def _doctor(folder: Path, names: dict[str, Any]) -> None:
    shutil.copytree(folder / "model", folder / "Llama-3-8B")
    goldstick.quantize("model", "rtn-w4a16-g128", output="Llama-3-8B-w4a16", proof="tensors")


def _evaluation(folder: Path, names: dict[str, Any]) -> None:
    shutil.copytree(folder / "model", folder / "path" / "to" / "model")
    goldstick.quantize("model", "rtn-w4a16-g128", output="packed", proof="tensors")
    images = []
    for seed in range(4):
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "jpeg")
        images.append(file.getvalue())
    (folder / "data" / "cifar10").mkdir()
    np.savez(
        folder / "data" / "cifar10" / "test.npz",
        jpeg=np.frombuffer(b"".join(images), dtype=np.uint8),
        offsets=np.cumsum([0, *map(len, images)]),
        labels=np.arange(4),
    )
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.Flatten(), nn.Linear(64, 10))
    names |= {"model": loaded("model"), "quantized": goldstick.load("packed"), "module": module}


def _formats(folder: Path, names: dict[str, Any]) -> None:
    recipe = {"stages": [{"rtn": {"scheme": "fp8-block"}}], "export": {"format": "fp8"}}
    goldstick.quantize("model", recipe, output="DEEPSEEK-FP8", proof="tensors")


def _named_model(folder: Path, names: dict[str, Any]) -> None:
    shutil.copytree(folder / "model", folder / "MODEL")


def _optimize(folder: Path, names: dict[str, Any]) -> None:
    goldstick.quantize("model", "rtn-w4a16-g128", output="out", proof="tensors")
    shutil.copytree("out", "reference-w4")
    names |= {"model": goldstick.load("out"), "network": trained(), "images": [images for images, _ in batches(2)]}


def _recipes(folder: Path, names: dict[str, Any]) -> None:
    shutil.copytree(folder / "model", folder / "MODEL")
    (folder / "mine.yaml").write_text("stages:\n  - rtn: {scheme: w8a16}\n")


def _own_tasks(folder: Path, names: dict[str, Any]) -> None:
    goldstick.quantize("model", "rtn-w4a16-g128", output="out", proof="tensors")
    (folder / "notes.txt").write_text((BUNDLED / "data" / "text" / "heldout.txt").read_text()[:3000])


def _report(folder: Path, names: dict[str, Any]) -> None:
    goldstick.quantize("reference", "rtn-w8a16", output="other", proof="tensors")


def _in_float(folder: Path, names: dict[str, Any]) -> None:
    names |= {"model": loaded("model"), "ids": _ids()}


def _rotation(folder: Path, names: dict[str, Any]) -> None:
    _in_float(folder, names)
    stages = [{"rotate": {"online": True}}, {"rtn": {"scheme": "w4a8-dynamic-g128"}}]
    goldstick.quantize("model", {"stages": stages}, output="turned")


def _training(folder: Path, names: dict[str, Any]) -> None:
    training = "{epochs: 2, norm_batches: 2}"
    (folder / "slb.yaml").write_text(f"stages:\n  - slb: {{scheme: w2a16-channel-asym, training: {training}}}\n")
    names |= {"model": TinyStages(), "loader": batches(2), "accuracy": accuracy}


#: Page → what it presumes beside ``model``, ``data`` and texts; it is called in the folder in which the page is read.
PREPARE: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "README.md": _python,
    "calibration.md": _media,
    "classifier.md": _classifier,
    "commands.md": _named_model,
    "doctor.md": _doctor,
    "effort.md": _recipes,
    "encoder.md": _encoder,
    "evaluation.md": _evaluation,
    "formats.md": _formats,
    "gguf-for-a-laptop.md": _my_model,
    "image-text.md": _media,
    "kv-cache.md": _in_float,
    "llm-for-vllm.md": _my_model,
    "mlx-for-a-mac.md": _my_model,
    "mixtures-of-experts.md": _mixture,
    "number-formats.md": _named_model,
    "onnx.md": _onnx,
    "optimize.md": _optimize,
    "own-tasks.md": _own_tasks,
    "python.md": _python,
    "recipes.md": _recipes,
    "report.md": _report,
    "rotation.md": _rotation,
    "runtimes.md": _doctor,
    "speech.md": _media,
    "start.md": _my_model,
    "structure.md": _in_float,
    "training-and-pruning.md": _training,
    "training.md": _training,
    "which-recipe.md": _named_model,
}
#: Pages that print what only the whole bundled model gives.
WHOLE = {"kv-cache.md", "rotation.md", "serve.md", "start.md"}
