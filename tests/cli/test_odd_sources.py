"""Sources and reports at the edge of what can be: each is read, or refused in one paragraph."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import goldstick
from goldstick.errors import CheckpointError, DataError, QuantizationError
from goldstick.evaluation.forward import forward
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.commands import Refused, change_json, quantize, run
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer

UP = "model.layers.0.mlp.up_proj.weight"


def halves(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A checkpoint in float16 whose tensors somebody changed."""
    FAMILIES["llama_gqa"]().to(torch.float16).save_pretrained(folder / "source")
    file = folder / "source" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    return folder / "source"


@pytest.mark.parametrize("way", ["streamed", "in memory"])
def test_a_float16_weight_that_rounding_makes_infinite_is_refused_by_name(way: str, tmp_path: Path) -> None:
    """The last code of its grid stands for more than the largest value."""
    source = halves(tmp_path, lambda tensors: tensors[UP][0, 0].fill_(-65504))
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-asym"}}]}
    with pytest.raises(
        QuantizationError, match=r"up_proj \(128, 64\) cannot be quantized: it reaches 65504, and .*float16"
    ):
        if way == "streamed":
            goldstick.quantize(source, recipe, output=tmp_path / "out")
        else:
            goldstick.apply(goldstick.load(source), recipe)


def overflow(tensors: dict[str, torch.Tensor]) -> None:
    for name, value in tensors.items():
        if "_proj" in name and "mlp" in name:
            tensors[name] = value * 3000


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_model_that_overflows_by_itself_is_named_as_the_cause(tokenizer: bool, tmp_path: Path) -> None:
    source = halves(tmp_path, overflow)
    if tokenizer:
        write_tokenizer(source)
    with pytest.raises(CheckpointError, match="itself gives NaN or infinity on the proof's inputs") as caught:
        goldstick.quantize(source, {"stages": [{"rtn": {"scheme": "w8a16"}}]}, output=tmp_path / "out")
    assert "report this" not in str(caught.value)


def test_a_quantization_config_of_null_is_none(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    monkeypatch.setattr(verify, "prove", prove_here)
    change_json(source / "config.json", lambda config: config.update(quantization_config=None))
    write_tokenizer(source)
    (tmp_path / "text.txt").write_text("The harbour lies on the north side of the island. " * 20)
    data = {"dataset": str(tmp_path / "text.txt"), "samples": 2, "seq_len": 16}
    for name, stage in (("streamed", "rtn"), ("blocks", "gptq")):
        recipe = {"stages": [{stage: {"scheme": "w4a16-g32"}}]} | ({"calibration": data} if stage == "gptq" else {})
        goldstick.quantize(source, recipe, output=tmp_path / name)
        assert verify_checkpoint(tmp_path / name)["passed"]
    assert getattr(goldstick.load(source).config, "quantization_config", None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", 0), ("hidden_size", -64), ("vocab_size", 0), ("num_attention_heads", 0), ("intermediate_size", 0),
     ("num_hidden_layers", -1), ("max_position_embeddings", -3), ("dtype", 3), ("dtype", []), ("architectures", None)],
)  # fmt: skip
def test_a_config_of_nonsense(assert_refused: Refused, source: Path, key: str, value: Any) -> None:
    change_json(source / "config.json", lambda config: config.update({key: value}))
    assert_refused(*quantize(source), says=("config.json", key))


@pytest.mark.parametrize("family", ["llama_gqa", "bert"])
def test_a_token_that_the_embedding_has_no_row_for_is_refused_and_as_padding_does_no_harm(family: str) -> None:
    model = FAMILIES[family]()
    ids = torch.tensor([[1, 2, 500], [1, 2, 3]])
    with torch.no_grad():
        with pytest.raises(DataError, match=r"gives token id 500, and the embedding of .* has 128 rows"):
            forward(model, ids, torch.ones_like(ids))
        padded = forward(model, ids, torch.tensor([[1, 1, 0], [1, 1, 1]]))[0]
        expected = forward(model, ids.clamp(max=0).where(ids > 127, ids), torch.tensor([[1, 1, 0], [1, 1, 1]]))[0]
    assert torch.equal(padded, expected)


@pytest.mark.parametrize(
    "command", [["generate", "--prompt", "zebra"], ["evaluate", "--tasks", "text", "--data-dir", "reference"]]
)
def test_a_tokenizer_larger_than_the_embedding(command: list[str], tmp_path: Path, source: Path) -> None:
    write_tokenizer(source)
    text = json.loads((source / "tokenizer.json").read_text())
    vocabulary = text["model"]["vocab"]
    for word in list(vocabulary):
        vocabulary[word] += 1000
    (source / "tokenizer.json").write_text(json.dumps(text))
    shown = run(command[0], str(source), *command[1:])
    assert shown.exit_code == 1
    assert "the embedding of LlamaForCausalLM has 128 rows" in shown.stderr
    assert "did not expect" not in shown.stderr


WRONG: list[Any] = [None, True, -1, 1.5, "x", [], {}, [1], {"a": 1}, "NaN", "\ud800", 10**30]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in plain data; of long lists the first three."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [path] * bool(path) + [found for key, item in inner for found in places(item, (*path, key))]


def spoilt(content: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    whole = copy.deepcopy(content)
    owner = whole
    for key in path[:-1]:
        owner = owner[key]
    if wrong is None:
        del owner[path[-1]]
    else:
        owner[path[-1]] = wrong
    return whole


def test_a_report_with_a_wrong_field_anywhere_is_shown_or_refused(made: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(made, tmp_path / "made"))
    content = json.loads((directory / "report.json").read_text())
    for number, path in enumerate(places(content)[::5]):
        wrong = WRONG[number % len(WRONG)]
        (directory / "report.json").write_text(json.dumps(spoilt(content, path, wrong)))
        for command in (["inspect", str(directory)], ["inspect", str(directory), "--json"], ["report", str(directory)]):
            shown = run(*command)
            assert shown.exit_code in (0, 1), (path, wrong, shown.stderr)
            assert "did not expect" not in shown.stderr, (path, wrong, shown.stderr)


@pytest.mark.parametrize("wrong", [[1], 3, "x"])
@pytest.mark.parametrize("key", ["layers", "recipe", "source"])
def test_a_manifest_with_a_wrong_field_is_not_exported(key: str, wrong: Any, made: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(made, tmp_path / "made"))
    change_json(directory / "goldstick.json", lambda manifest: manifest.update({key: wrong}))
    with pytest.raises(CheckpointError, match=f"is not one that goldstick writes: '{key}' is no table"):
        goldstick.export(directory, "native", output=tmp_path / "out")


def test_half_a_sign_in_a_report_is_refused(made: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(made, tmp_path / "made"))
    change_json(directory / "report.json", lambda report: report.update(model="\ud800"))
    with pytest.raises(CheckpointError, match="half of a character"):
        read_report(directory)
