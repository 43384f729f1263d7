"""Importance matrices of runs: saved, given to other runs in the place of data, and what is wrong with bad ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import goldstick
from goldstick import api
from goldstick.checkpoint.gguf.importance import read_importance, write_importance
from goldstick.core.input_squares import InputSquares
from goldstick.errors import FormatError, OutputError, RecipeError, UsageError
from goldstick.formats.gguf import GGUF_NAME
from goldstick.recipes.given_importance import with_importance
from goldstick.recipes.recipe import Recipe
from tests.support.gguf_models import GGUF_MODELS

pytestmark = pytest.mark.usefixtures("all_proofs_here")

MODELS = ("llama", "mixtral", "qwen2_moe", "gpt_oss", "deepseek_v3", "gpt2", "phi3")
#: Of how many inputs of each kind a tensor of the files tells: a row for each expert.
STACKED = {"mixtral": 4, "qwen2_moe": 4, "gpt_oss": 4, "deepseek_v3": 8}


@dataclasses.dataclass(frozen=True)
class Run:
    """A float model, and a run that measured its inputs."""

    source: Path
    output: Path
    importance: Path


def recipe(**options: Any) -> dict[str, Any]:
    stage = {"scheme": "q5_0", "range_search": "ggml-imatrix", "group_size_mismatch": "skip", **options}
    return {"stages": [{"rtn": stage}], "export": {"format": "gguf"}}


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibration data: rows of token ids."""
    file = tmp_path_factory.mktemp("data") / "ids.safetensors"
    save_file({"input_ids": torch.randint(0, 120, (3, 24), generator=torch.Generator().manual_seed(3))}, file)
    return file


@pytest.fixture(scope="module")
def calibration(ids: Path) -> dict[str, Any]:
    return {"calibration": {"dataset": str(ids), "samples": 3, "seq_len": 24}}


@pytest.fixture(scope="module")
def made(calibration: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    folder = tmp_path_factory.mktemp("importance")

    def make(name: str) -> Run:
        here = folder / name
        found = Run(source=here / "float", output=here / "measured", importance=here / "i.gguf")
        if not here.exists():
            GGUF_MODELS[name]().to(torch.bfloat16).save_pretrained(found.source)
            run = recipe() | calibration
            goldstick.quantize(found.source, run, output=found.output, save_importance=found.importance)
        return found

    return make


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_importance_matrix_gives_the_bytes_of_the_run_that_measured_it(
    name: str, made: Callable[[str], Run], tmp_path: Path
) -> None:
    before = made(name)
    done = goldstick.quantize(before.source, recipe(importance=str(before.importance)), output=tmp_path / "given")
    assert (tmp_path / "given" / GGUF_NAME).read_bytes() == (before.output / GGUF_NAME).read_bytes()
    assert done.report.proof["passed"] is True
    assert done.report.calibration == {}


@pytest.mark.parametrize("name", MODELS)
def test_it_has_a_row_for_each_matrix_under_the_names_of_the_file(name: str, made: Callable[[str], Run]) -> None:
    before = made(name)
    found = read_importance(before.importance)
    shapes = {tensor.name: tensor.shape for tensor in gguf.GGUFReader(before.output / GGUF_NAME).tensors}
    rounded = {
        tensor.name
        for tensor in gguf.GGUFReader(before.output / GGUF_NAME).tensors
        if tensor.tensor_type.name == "Q5_0"
    }
    assert rounded and rounded <= found.keys() <= shapes.keys()
    for weight, squares in found.items():
        stacked = "exps" in weight
        assert squares.sums.shape == (STACKED[name] if stacked else 1, shapes[weight][0]), weight
        assert stacked or squares.counts.tolist() == [72.0], weight


def test_of_a_model_in_memory_it_gives_the_weights_of_the_file(made: Callable[[str], Run]) -> None:
    for name in ("llama", "mixtral"):
        before = made(name)
        model = AutoModelForCausalLM.from_pretrained(before.source)
        mine = goldstick.apply(model, recipe(importance=str(before.importance))).model
        theirs = goldstick.load(before.output)
        tokens = torch.arange(2, 30).unsqueeze(0)
        assert torch.equal(mine(input_ids=tokens).logits, theirs(input_ids=tokens).logits)


def test_the_first_layer_has_the_mean_squares_of_the_float_models_inputs(made: Callable[[str], Run], ids: Path) -> None:
    before = made("llama")
    model: Any = AutoModelForCausalLM.from_pretrained(before.source, dtype=torch.bfloat16)
    seen: list[torch.Tensor] = []
    layer = model.model.layers[0].self_attn.q_proj
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(0, 1).double()))
    with torch.no_grad():
        for row in load_file(ids)["input_ids"]:
            model(input_ids=row.unsqueeze(0))
    expected = torch.cat(seen).square().mean(0)
    found = read_importance(before.importance)["blk.0.attn_q.weight"].mean_square()[0].double()
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-6)


def test_a_stopped_run_saves_what_an_undisturbed_one_does(
    made: Callable[[str], Run], calibration: dict[str, Any], tmp_path: Path
) -> None:
    before = made("llama")

    class StoppedError(Exception):
        pass

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("calibrating model.layers.1"):
            raise StoppedError

    run = recipe() | calibration
    saved: dict[str, Any] = {"output": tmp_path / "out", "save_importance": tmp_path / "i.gguf"}
    with pytest.raises(StoppedError):
        goldstick.quantize(before.source, run, progress=stop, **saved)
    assert not (tmp_path / "i.gguf").exists()
    goldstick.quantize(before.source, run, resume=True, **saved)
    assert (tmp_path / "i.gguf").read_bytes() == before.importance.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.gguf", "out"]
    with pytest.raises(StoppedError):
        goldstick.quantize(before.source, run, output=tmp_path / "other", progress=stop)
    with pytest.raises(OutputError, match="begun without --save-importance"):
        goldstick.quantize(
            before.source, run, output=tmp_path / "other", save_importance=tmp_path / "j.gguf", resume=True
        )


def test_a_run_that_is_finished_says_that_it_kept_nothing(
    made: Callable[[str], Run], calibration: dict[str, Any], tmp_path: Path
) -> None:
    before = made("llama")
    with pytest.raises(OutputError, match="what it measured is no longer known"):
        goldstick.quantize(
            before.source, recipe() | calibration, output=before.output, save_importance=tmp_path / "x", resume=True
        )
    again = goldstick.quantize(
        before.source, recipe() | calibration, output=before.output, save_importance=before.importance, resume=True
    )
    assert again.finished_before


def _said(directory: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(directory / GGUF_NAME).fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("quantize.")}


def test_a_file_says_with_which_importance_matrix_it_was_made(
    made: Callable[[str], Run], calibration: dict[str, Any], ids: Path, tmp_path: Path
) -> None:
    before = made("llama")
    known = {"dataset": str(ids), "entries_count": len(read_importance(before.importance)), "chunks_count": 3}
    expected = {f"quantize.imatrix.{key}": value for key, value in known.items()}
    assert _said(before.output) == expected | {"quantize.imatrix.file": "i.gguf"}
    header = gguf.GGUFReader(before.output / GGUF_NAME).fields["quantize.imatrix.chunks_count"]
    assert header.types == [gguf.GGUFValueType.UINT32]  # as llama.cpp's quantizer writes it
    goldstick.quantize(before.source, recipe() | calibration, output=tmp_path / "unsaved")
    assert _said(tmp_path / "unsaved") == expected
    goldstick.quantize(before.source, recipe(range_search="ggml"), output=tmp_path / "plain")
    assert _said(tmp_path / "plain") == {}
    nameless = _rewritten(before, tmp_path / "other.gguf", lambda found: None)
    goldstick.quantize(before.source, recipe(importance=nameless), output=tmp_path / "given")
    assert _said(tmp_path / "given")["quantize.imatrix.dataset"] == "x"
    assert _said(tmp_path / "given")["quantize.imatrix.file"] == "other.gguf"


def test_gptq_saves_what_its_hessians_were_of(
    made: Callable[[str], Run], calibration: dict[str, Any], tmp_path: Path
) -> None:
    before = made("mixtral")
    run = {"stages": [{"gptq": {"scheme": "q5_0", "range_search": "ggml-imatrix"}}]} | calibration
    goldstick.quantize(before.source, run, output=tmp_path / "out", save_importance=tmp_path / "i.gguf")
    mine, theirs = read_importance(tmp_path / "i.gguf"), read_importance(before.importance)
    assert mine.keys() == theirs.keys()
    first = "blk.0.attn_q.weight"  # nothing was rounded before it
    assert torch.equal(mine[first].sums, theirs[first].sums)


def _rewritten(run: Run, file: Path, change: Callable[[dict[str, InputSquares]], None]) -> str:
    found = dict(read_importance(run.importance))
    change(found)
    write_importance(file, found, datasets=["x"], chunks=1, chunk_size=1)
    return str(file)


def _cut(name: str, width: int) -> Callable[[dict[str, InputSquares]], None]:
    def change(found: dict[str, InputSquares]) -> None:
        found[name] = InputSquares(sums=found[name].sums[:, :width], counts=found[name].counts)

    return change


def _first_experts(found: dict[str, InputSquares]) -> None:
    name = "blk.1.ffn_down_exps.weight"
    found[name] = InputSquares(sums=found[name].sums[:2], counts=found[name].counts[:2])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama", lambda found: found.pop("blk.1.ffn_down.weight"), r"lacks blk\.1\.ffn_down\.weight, which is"),
        ("llama", _cut("blk.0.attn_q.weight", 32), r"another model: blk\.0\.attn_q\.weight has inputs of width 32"),
        ("mixtral", _first_experts, r"another model: blk\.1\.ffn_down_exps\.weight has 2 matrices there, and 4"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    name: str, change: Callable[[Any], Any], said: str, made: Callable[[str], Run], tmp_path: Path
) -> None:
    file = _rewritten(made(name), tmp_path / "bad.gguf", change)
    with pytest.raises(FormatError, match=said):
        goldstick.quantize(made(name).source, recipe(importance=file), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_file_of_another_model_is_refused(made: Callable[[str], Run], tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="of another model"):
        api.plan(made("gpt2").source, recipe(importance=str(made("mixtral").importance)))
    with pytest.raises(FormatError, match="is no importance matrix"):
        api.plan(made("llama").source, recipe(importance=str(made("llama").output / GGUF_NAME)))
    with pytest.raises(FormatError, match="There is no importance matrix"):
        api.plan(made("llama").source, recipe(importance=str(tmp_path / "none.gguf")))


def test_experts_that_saw_no_token_are_searched_as_if_all_columns_counted_alike(
    made: Callable[[str], Run], tmp_path: Path
) -> None:
    name = "blk.0.ffn_down_exps.weight"

    def unseen(found: dict[str, InputSquares]) -> None:
        counts = found[name].counts.clone()
        counts[1] = 0
        found[name] = InputSquares(sums=found[name].sums, counts=counts)

    def alike(found: dict[str, InputSquares]) -> None:
        sums = found[name].sums.clone()
        sums[1] = found[name].counts[1]
        found[name] = InputSquares(sums=sums, counts=found[name].counts)

    blocks = []
    for change in (unseen, alike):
        file = _rewritten(made("mixtral"), tmp_path / f"{change.__name__}.gguf", change)
        goldstick.quantize(made("mixtral").source, recipe(importance=file), output=tmp_path / change.__name__)
        reader = gguf.GGUFReader(tmp_path / change.__name__ / GGUF_NAME)
        blocks.append(next(tensor.data for tensor in reader.tensors if tensor.name == name))
    assert np.array_equal(*blocks)


def test_what_cannot_be_is_said_before_anything_is_done(
    made: Callable[[str], Run], calibration: dict[str, Any], tmp_path: Path
) -> None:
    source, file = made("llama").source, str(made("llama").importance)
    with pytest.raises(RecipeError, match="looks at no importance matrix"):
        Recipe.load(recipe(range_search="ggml", importance=file))
    with pytest.raises(RecipeError, match="No stage of this recipe takes an importance matrix"):
        with_importance(Recipe.load("gptq-q4_k_m"), file)
    named = Recipe.load(recipe(importance=file))
    assert with_importance(named, file) == named
    for first in ({"rotate": {}}, {"smoothquant": {}}):
        run = recipe(importance=file)
        with pytest.raises(RecipeError, match="changes the inputs of layers"):
            api.plan(source, run | {"stages": [first, *run["stages"]], "export": {"format": "native"}})
        with pytest.raises(RecipeError, match="changes the inputs of layers"):
            goldstick.quantize(
                source,
                {"stages": [first, {"gptq": {"scheme": "w4a16-g32"}}]} | calibration,
                output=tmp_path / "out",
                save_importance=tmp_path / "i.gguf",
            )
    with pytest.raises(UsageError, match="nothing to save as an importance matrix"):
        goldstick.quantize(source, "rtn-q8_0", output=tmp_path / "out", save_importance=tmp_path / "i.gguf")
    with pytest.raises(OutputError, match="exists already"):
        goldstick.quantize(source, recipe() | calibration, output=tmp_path / "out", save_importance=file)
    with pytest.raises(FormatError, match="which are of transformers models"):
        goldstick.apply(torch.nn.Sequential(torch.nn.Linear(64, 64)), recipe(importance=file) | {"export": {}})
    assert not (tmp_path / "out").exists()
