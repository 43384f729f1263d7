"""Layers whose input is multiplied, from memory to a checkpoint and back; which formats can hold them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import goldstick
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import CheckpointError, FormatError
from goldstick.formats import FORMATS
from goldstick.formats.site_table import read_table
from goldstick.jobs.load.load import load_float
from goldstick.jobs.load.plain_module import load_into
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.save import finish
from goldstick.jobs.save.result import Result
from goldstick.recipes import Recipe
from tests.support.calibration import batches_for
from tests.support.proofs import answer, prove_here
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs
from tests.support.tiny_tokenizer import write_tokenizer
from tests.support.words import WORDS

FORGETFUL = "model.layers.1.self_attn.o_proj.input_multiplier"


@pytest.fixture(autouse=True, scope="module")
def reference_backend() -> Iterator[None]:
    """Other backends promise closeness only; proofs run here, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDSTICK_BACKEND", "reference")
        patch.setattr(finish, "prove", prove_here)
        yield


def recipe(format_: str = "auto", rounding: str = "w8a8-dynamic", **options: Any) -> dict[str, Any]:
    stages = [{"smoothquant": {"unfoldable": "multiply", **options}}, {"rtn": {"scheme": rounding}}]
    return {"stages": stages, "export": {"format": format_}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """A family's result and its checkpoint in bfloat16, made once."""
    folder = tmp_path_factory.mktemp("multiplied")

    @cache
    def make(family: str) -> tuple[Result, Path]:
        FAMILIES[family]().to(torch.bfloat16).save_pretrained(folder / f"{family}-source")
        model: Any = load_float(folder / f"{family}-source")
        result = goldstick.apply(model, recipe(), data=batches_for(model))
        result.save(folder / family)
        return result, folder / family

    return make


Made = Callable[[str], tuple[Result, Path]]


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2"])
def test_a_reloaded_model_answers_to_the_bit(family: str, made: Made) -> None:
    result, directory = made(family)
    inputs: Any = sample_inputs(result.model)  # type: ignore[arg-type]
    assert torch.equal(output_tensor(goldstick.load(directory), inputs), output_tensor(result.model, inputs))  # type: ignore[arg-type]
    assert result.report.format == "native"
    stored = {name: info for name, info in open_tensors(directory).items() if name.endswith(".input_multiplier")}
    table = json.loads((directory / "config.json").read_text())["quantization_config"]
    assert len(stored) == len(read_table(table).multiplied) == (14 if family == "llama_gqa" else 8)
    assert {info.dtype for info in stored.values()} == {torch.bfloat16}
    assert any(not bool((info.read() == 1).all()) for info in stored.values())


@pytest.mark.parametrize("scheme", ["nvfp4a16", "mxfp4a16"])
def test_scales_that_are_stored_as_codes_do_not_say_what_multipliers_are(scheme: str, tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().to(torch.bfloat16).save_pretrained(tmp_path / "source")
    model: Any = load_float(tmp_path / "source")
    result = goldstick.apply(model, recipe(rounding=scheme), data=batches_for(model))
    result.save(tmp_path / "out")
    inputs: Any = sample_inputs(model)
    loaded: Any = goldstick.load(tmp_path / "out")
    assert torch.equal(output_tensor(loaded, inputs), output_tensor(result.model, inputs))  # type: ignore[arg-type]


def test_the_plan_forecasts_every_tensor(made: Made) -> None:
    _, directory = made("llama_gqa")
    plan = make_plan(directory.parent / "llama_gqa-source", Recipe.load(recipe()))
    written = {name: (tuple(info.shape), info.dtype) for name, info in open_tensors(directory).items()}
    forecast = {
        name: (tuple(shape), dtype) for tensor in plan.tensors for name, (shape, dtype) in tensor.outputs.items()
    }
    assert forecast == written
    assert plan.format.name == "native" and "'unfoldable: multiply' gives it a factor" in plan.warnings[0]


def test_compressed_tensors_refuses_before_any_weight_is_read_and_names_both_ways_out(made: Made) -> None:
    _, directory = made("llama_gqa")
    with pytest.raises(FormatError, match=r"proj: .*'unfoldable: skip' does without.*--format native"):
        make_plan(directory.parent / "llama_gqa-source", Recipe.load(recipe("compressed-tensors")))
    nothing_multiplied = recipe("compressed-tensors", unfoldable="skip")
    plan = make_plan(directory.parent / "llama_gqa-source", Recipe.load(nothing_multiplied))
    assert plan.format.name == "compressed-tensors"


def test_compressed_tensors_packs_no_multiplier(made: Made) -> None:
    layer: Any = made("llama_gqa")[0].model.get_submodule("model.layers.0.mlp.up_proj")
    with pytest.raises(FormatError, match="no place for what a layer does to its input"):
        FORMATS["compressed-tensors"].pack(
            layer.quantized_tensor(), layer.scheme, input_multiplier=layer.input_multiplier
        )


def test_a_checkpoint_that_lacks_a_multiplier_does_not_load(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made("llama_gqa")[1], tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[FORGETFUL]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"lacks the tensor '{FORGETFUL}'"):
        goldstick.load(tmp_path)


def test_neither_does_one_that_holds_an_undeclared_one(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made("llama_gqa")[1], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["multiplied"].remove(FORGETFUL.removesuffix(".input_multiplier"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"unexpected keys {FORGETFUL}"):
        goldstick.load(tmp_path)
    config["quantization_config"]["multiplied"].append("model.norm")
    with pytest.raises(FormatError, match=r"multiplies what model\.norm is given"):
        read_table(config["quantization_config"])


def plain() -> nn.Module:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 8))
    with torch.no_grad():
        model[0].weight[:3] *= 50
    return model


def test_a_plain_module_is_stored_and_rebuilt(tmp_path: Path) -> None:
    x = torch.randn(200, 32)
    result = goldstick.apply(plain(), recipe(), data=[{"input": x}])
    result.save(tmp_path / "out")
    found = load_into(plain(), tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(found(x), result.model(x))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert not bool((tensors["2.input_multiplier"] == 1).all())
    save_file(tensors | {"2.stray": torch.ones(1)}, tmp_path / "out" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"2\.stray"):
        load_into(plain(), tmp_path / "out")
    del tensors["2.input_multiplier"]
    save_file(tensors, tmp_path / "out" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks the tensor '2\.input_multiplier'"):
        load_into(plain(), tmp_path / "out")


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("max_memory", [1 << 40, 1], ids=["together", "one by one"])
def test_a_run_over_the_blocks_is_proven(max_memory: int, tmp_path: Path) -> None:
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source")
    chosen = torch.randint(len(WORDS), (1200,), generator=torch.Generator().manual_seed(0)).tolist()
    (tmp_path / "words.txt").write_text(" ".join(WORDS[number] for number in chosen))
    data = {"dataset": str(tmp_path / "words.txt"), "samples": 6, "seq_len": 48}
    wanted = recipe(rounding="w4a16-g32") | {"calibration": data}
    made = goldstick.quantize(tmp_path / "source", wanted, output=tmp_path / "out", max_memory=max_memory)
    assert made.report.proof["method"] == "outputs" and made.report.proof["max_abs_difference"] == 0.0
    assert made.report.size.bytes_after == sum(info.nbytes for info in open_tensors(made.directory).values())
    notes = {record.name: record.notes for record in made.report.layers}
    assert "smoothquant_multiplied" in notes["model.layers.0.self_attn.o_proj.weight"]
    model: Any = goldstick.load(made.directory)
    assert torch.isfinite(answer(model, sample_inputs(model))).all()
