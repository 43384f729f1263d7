"""The tokenizer in a GGUF file: what exports, evaluations and generations make of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick import api
from goldstick.cli import main
from goldstick.errors import SourceError
from goldstick.formats.gguf import GGUF_NAME
from goldstick.jobs.evaluate.cache import model_digest
from goldstick.jobs.load.find_model import reference_directory

pytestmark = pytest.mark.usefixtures("all_proofs_here")

TEXTS = (
    "Once upon a time, there was a little girl who liked the sea.",
    "  two spaces,\n\n\ta tab",
    "naïve café — 東京 🙂 and e\u0301",
    "12 boats and 3.14159",
    "<s>begin</s> <|end|> <unk> it",
)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def written(folder: Path, tokenizer: Path | None, rows: int = 64) -> Path:
    """A directory with a GGUF file, made of a tiny model with the tokenizer of another."""
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).half().save_pretrained(folder / "float")
    for name in TOKENIZER if tokenizer else ():
        shutil.copy((tokenizer or folder) / name, folder / "float" / name)
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}], "export": {"format": "gguf"}}
    goldstick.quantize(folder / "float", recipe, output=folder / "gguf", proof="tensors")
    return folder / "gguf"


def lone(directory: Path, folder: Path) -> Path:
    """Only the file, in a directory of its own."""
    folder.mkdir()
    return Path(shutil.copy(directory / GGUF_NAME, folder / "some.gguf"))


@pytest.fixture(scope="module")
def with_tokenizer(all_proofs_here: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has the reference model's tokenizer; never to be changed."""
    return written(tmp_path_factory.mktemp("with"), reference_directory(), rows=3072)


def test_an_export_from_a_file_brings_its_tokenizer(with_tokenizer: Path, tmp_path: Path) -> None:
    file = lone(with_tokenizer, tmp_path / "lone")
    done = api.export(file, "compressed-tensors", output=tmp_path / "out")
    assert (done.report.proof["passed"], done.report.warnings) == (True, ())
    made = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    original = AutoTokenizer.from_pretrained(reference_directory())
    assert [made(text)["input_ids"] for text in TEXTS] == [original(text)["input_ids"] for text in TEXTS]
    assert (made.eos_token, made.pad_token, made.unk_token) == ("<|end|>", "<|end|>", "<unk>")


def test_the_tokenizer_of_a_sentencepiece_model_makes_the_round(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "stories260k"
    file = lone(written(tmp_path, source, rows=512), tmp_path / "lone")
    api.export(file, "native", output=tmp_path / "out", proof="tensors")
    made, original = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", source))
    assert [made(text)["input_ids"] for text in TEXTS] == [original(text)["input_ids"] for text in TEXTS]


def test_a_file_is_evaluated_as_its_directory_is(with_tokenizer: Path, tmp_path: Path) -> None:
    file = lone(with_tokenizer, tmp_path / "lone")
    of_file, of_directory = (
        api.evaluate(path, ["text"], data_dir="reference", limit=2) for path in (file, with_tokenizer)
    )
    assert of_file.tokenizer == of_directory.tokenizer
    found, expected = (of.results["text"].metrics["perplexity"] for of in (of_file, of_directory))
    assert found == pytest.approx(expected, rel=1e-4)  # the file says nothing of float16, in which the other computes


def test_the_commands_take_a_file_by_its_name(with_tokenizer: Path, tmp_path: Path) -> None:
    file = str(lone(with_tokenizer, tmp_path / "lone"))
    runner = CliRunner()
    done = runner.invoke(main, ["generate", file, "--prompt", "Once upon", "--max-new-tokens", "3"])
    assert (done.exit_code, done.output.startswith("Once upon")) == (0, True), done.output
    done = runner.invoke(main, ["compare", str(with_tokenizer), file, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["only_first"] == found["only_second"] == []


def test_a_file_without_a_tokenizer_runs_on_token_ids_and_says_so(tmp_path: Path) -> None:
    file = lone(written(tmp_path, None), tmp_path / "lone")
    goldstick.load(file)
    reason = "There is no tokenizer for some.gguf: it holds no tokenizer. Put the tokenizer files of the float model"
    done = api.export(file, "compressed-tensors", output=tmp_path / "out", proof="tensors")
    assert [warning.startswith(reason) for warning in done.report.warnings] == [True]
    assert not any((tmp_path / "out" / name).exists() for name in TOKENIZER)
    with pytest.raises(SourceError, match="it holds no tokenizer"):
        api.evaluate(file, ["text"], data_dir="reference", limit=1)
    done_by_command = CliRunner().invoke(main, ["export", str(file), "--format", "native", "-o", str(tmp_path / "n")])
    assert done_by_command.exit_code == 0
    assert "note: There is no tokenizer" in done_by_command.output
    refused = CliRunner().invoke(main, ["generate", str(file), "--prompt", "Once"])
    assert refused.exit_code != 0
    assert "it holds no tokenizer" in str(refused.exception) + refused.output


def test_tokenizer_files_beside_a_file_are_taken_instead(with_tokenizer: Path, tmp_path: Path) -> None:
    file = lone(with_tokenizer, tmp_path / "lone")
    for name in TOKENIZER:
        shutil.copy(reference_directory() / name, file.parent / name)
    api.export(file.parent, "compressed-tensors", output=tmp_path / "out", proof="tensors")
    for name in TOKENIZER:
        assert (tmp_path / "out" / name).read_bytes() == (reference_directory() / name).read_bytes()
    (file.parent / "tokenizer.json").unlink()
    (file.parent / "tokenizer.json").symlink_to(reference_directory() / "tokenizer.json")
    with pytest.raises(SourceError, match="a link out of its directory"):
        goldstick.load(file.parent)


def test_results_are_not_kept_for_another_file(with_tokenizer: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(with_tokenizer, tmp_path / "copy"))
    assert model_digest(copy) == model_digest(with_tokenizer)
    data = bytearray((copy / GGUF_NAME).read_bytes())
    data[-1] ^= 1
    (copy / GGUF_NAME).write_bytes(data)
    assert model_digest(copy) != model_digest(with_tokenizer)
