"""What others read: plain transformers with compressed-tensors must answer as goldstick does, to the bit."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import goldstick
from goldstick.jobs.load.load import load_float
from goldstick.jobs.save import finish
from goldstick.recipes import Recipe
from tests.support.plain_transformers import write_plain_logits
from tests.support.proofs import Job, prove_here

pytestmark = pytest.mark.usefixtures("reference_backend")

FAMILIES_READ = ("mixtral", "qwen3_moe", "deepseek_v3", "llama_gqa", "gemma2", "phi3", "opt")
SCHEMES_READ = (
    "w4a16-g32-asym",
    "w8a16",
    "w3a16-channel-asym",
    "w8a8-dynamic",
    "w4a8-dynamic-g32",
    "w4a4-dynamic-g32",
    "mixed",
)
STATIC_READ = ("w8a8-static", "w8a8-static-shifted", "w4a8-static", "w4a8-static-g32", "mixed-static")
PRESETS_READ = ("rtn-w4a16-g32", "rtn-w8a16", "rtn-w8a8")


@pytest.fixture(scope="module")
def plain(family_job: Callable[[str], Job], tmp_path_factory: pytest.TempPathFactory, stories: Path | None) -> Path:
    """A folder of checkpoints by name, each with inputs and what plain transformers answers to them."""
    folder = tmp_path_factory.mktemp("plain")
    job = family_job("llama_gqa")
    inputs = {f"family-{family}": family_job(family).inputs for family in FAMILIES_READ}
    for family in FAMILIES_READ:
        shutil.copytree(family_job(family).made.directory, folder / f"family-{family}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        for scheme in SCHEMES_READ:
            stage = {"scheme": "w4a16-g32", "overrides": {"*q_proj": "w8a16", "*0.mlp.up_proj": "w3a16-g32"}}
            recipe = {"stages": [{"rtn": stage if scheme == "mixed" else {"scheme": scheme}}]}
            goldstick.quantize(job.source, recipe, output=folder / f"scheme-{scheme}")
            inputs[f"scheme-{scheme}"] = job.inputs
        for scheme in STATIC_READ:
            stage = {"scheme": "w4a8-dynamic-g32", "overrides": {"*q_proj": "w8a8-static", "*k_proj": "w4a16-g32"}}
            recipe = {"stages": [{"rtn": stage if scheme == "mixed-static" else {"scheme": scheme}}]}
            goldstick.apply(load_float(job.source), recipe, data=[job.inputs]).save(folder / f"scheme-{scheme}")
            inputs[f"scheme-{scheme}"] = job.inputs
        for name in PRESETS_READ if stories else ():
            goldstick.quantize(str(stories), preset(name), output=folder / f"stories-{name}")
            ids = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(3))
            inputs[f"stories-{name}"] = {"input_ids": ids}
    write_plain_logits(folder, inputs)
    return folder


@pytest.fixture(scope="session")
def stories(request: pytest.FixtureRequest) -> Path | None:
    """The trained model, where the data sets are."""
    try:
        data: Path = request.getfixturevalue("shared_data")
    except pytest.skip.Exception:
        return None
    return data / "stories260k"


def differs(folder: Path, name: str) -> float:
    """Largest difference between the logits of goldstick and of plain transformers."""
    theirs = load_file(folder / f"{name}.logits")["logits"]
    ours = goldstick_logits(folder / name, load_file(folder / f"{name}.inputs"))
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.float32
    assert float(ours.abs().max()) > 1
    return float((ours - theirs).abs().max())


def goldstick_logits(directory: Path, inputs: dict[str, Tensor]) -> Tensor:
    """Logits of a checkpoint loaded by goldstick."""
    model: Any = goldstick.load(directory)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits: Tensor = model(**inputs).logits
    return logits


def preset(name: str) -> Recipe:
    """A preset with ``--group-size-mismatch channel``."""
    recipe = Recipe.load(name)
    stages = tuple(dataclasses.replace(stage, group_size_mismatch="channel") for stage in recipe.stages)
    return recipe.model_copy(update={"stages": stages})


@pytest.mark.data
@pytest.mark.parametrize("name", PRESETS_READ)
def test_plain_transformers_answers_as_goldstick_on_a_trained_model(name: str, shared_data: Path, plain: Path) -> None:
    source, directory = shared_data / "stories260k", plain / f"stories-{name}"
    assert differs(plain, f"stories-{name}") == 0.0
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (directory / file).read_bytes() == (source / file).read_bytes()


@pytest.mark.parametrize("family", FAMILIES_READ)
def test_plain_transformers_answers_as_goldstick_on_other_families(family: str, plain: Path) -> None:
    config = json.loads((plain / f"family-{family}" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert differs(plain, f"family-{family}") == 0.0


@pytest.mark.parametrize("scheme", [*SCHEMES_READ, *STATIC_READ])
def test_plain_transformers_answers_as_goldstick_for_other_schemes(scheme: str, plain: Path) -> None:
    assert differs(plain, f"scheme-{scheme}") == 0.0


@pytest.mark.data
@pytest.mark.usefixtures("proof_here")
def test_perplexity_grows_as_bits_fall(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "stories260k"

    def perplexity(directory: Path) -> float:
        found = goldstick.evaluate(directory, ["tinystories"], data_dir=shared_data, limit=16).to_dict()
        value: float = found["tasks"]["tinystories"]["metrics"]["perplexity"]
        return value

    measured = {16: perplexity(source)}
    for bits, name in ((8, "rtn-w8a16"), (4, "rtn-w4a16-g32"), (3, "rtn-w3a16-g32"), (2, "rtn-w2a16-g32")):
        measured[bits] = perplexity(goldstick.quantize(source, preset(name), output=tmp_path / name).directory)
    assert measured[16] < 5.0
    assert abs(measured[8] / measured[16] - 1) < 0.005
    assert measured[8] < measured[4] < measured[3] < measured[2]
    assert measured[4] < 1.2 * measured[16]
    assert measured[2] > 1.5 * measured[16]
