"""Several processes write the checkpoint of one, byte for byte."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from tests.support.crash_points import contents, tiny_checkpoint
from tests.support.ranks import finish, start
from tests.support.tiny_tokenizer import write_tokenizer

GPTQ: dict[str, Any] = {"gptq": {"scheme": "w4a16-g32"}}
RECIPES: dict[str, tuple[str, list[Any], bool]] = {
    "awq-gptaq": (
        "llama",
        [{"awq": {"quantize": False, "grid": 2}}, {"gptq": {"scheme": "w4a16-g32", "gptaq": True}}],
        True,
    ),
    "smoothquant-static": ("llama", [{"smoothquant": {}}, {"gptq": {"scheme": "w8a8-static"}}], False),
    "rotate-kv8": ("llama", ["rotate", GPTQ, "kv_cache"], True),
    "imatrix-slb": (
        "llama",
        [{"rtn": {"scheme": "w2a16-g32", "range_search": "imatrix"}}, {"slb_finish": {"steps": 2}}],
        False,
    ),
    "mixture": ("mixture", [GPTQ], True),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and text as one stream and as rows of unequal length."""
    folder = tmp_path_factory.mktemp("data")
    tiny_checkpoint(folder / "llama", 2)
    torch.manual_seed(1)
    config = MixtralConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, num_local_experts=5, num_experts_per_tok=2, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(folder / "mixture")
    write_tokenizer(folder / "mixture")
    sentences = [f"{number} cats sat on {number * 7} mats, and sang. " for number in range(900)]
    (folder / "stream.txt").write_text("".join(sentences))
    rows = (json.dumps({"text": sentence * (1 + number % 3)}) for number, sentence in enumerate(sentences[:100]))
    (folder / "rows.jsonl").write_text("\n".join(rows))
    return folder


def job(data: Path, name: str, output: Path, **options: Any) -> dict[str, Any]:
    """Quantize by one of ``RECIPES``."""
    model, stages, padded = RECIPES[name]
    rows = {"dataset": str(data / "rows.jsonl"), "packing": False, "samples": 40}
    text = rows if padded else {"dataset": str(data / "stream.txt"), "samples": 37}
    recipe = {"stages": stages, "calibration": {**text, "seq_len": 64}}
    return {"source": str(data / model), "recipe": recipe, "output": str(output), "options": options}


def made(data: Path, folder: Path, count: int) -> dict[str, dict[str, bytes]]:
    """What so many processes write by each recipe."""
    for code, errors in finish(start(count, [job(data, name, folder / name) for name in RECIPES])):
        assert code == 0, errors
    return {name: contents(folder / name) for name in RECIPES}


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What one process writes."""
    return made(data, tmp_path_factory.mktemp("alone"), 1)


def test_every_calibrated_recipe_gives_the_files_of_one_process(
    data: Path, alone: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    together = made(data, tmp_path, 2)
    for name in RECIPES:
        assert together[name] == alone[name], name
    ranks = json.loads((tmp_path / "mixture" / "report.json").read_text())["ranks"]
    assert len(ranks["work_seconds"]) == 2
    assert all(sent > 1000 for sent in ranks["sent_bytes"])  # each took part


def test_a_rank_that_is_killed_ends_the_run_and_any_number_goes_on_to_the_same_bytes(
    data: Path, alone: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    processes = start(2, [job(data, "awq-gptaq", output)])
    journal = tmp_path / ".out.work" / "journal.json"
    while not journal.exists() and processes[0].poll() is None:
        time.sleep(0.002)
    processes[1].send_signal(signal.SIGKILL)
    (code, errors), _ = finish(processes)
    if code:  # it may have been finished already
        assert code == 1
        assert "cannot reach the others any more" in errors
        assert "--resume" in errors
        assert not output.exists()
        assert finish(start(1, [job(data, "awq-gptaq", output, resume=True)]))[0][0] == 0
    assert contents(output) == alone["awq-gptaq"]


def test_ranks_with_another_recipe_or_other_data_refuse_to_start_and_say_which(data: Path, tmp_path: Path) -> None:
    own = job(data, "rotate-kv8", tmp_path / "out")
    other = json.loads(json.dumps(own))
    other["recipe"]["stages"][1]["gptq"]["damping"] = 0.02
    other["recipe"]["calibration"]["samples"] = 30
    (code, errors), (second, _) = finish(start(2, [{**own, "rank 1": other}]))
    assert (code, second) == (1, 2)
    assert "rank 1 has another recipe and another calibration data than rank 0" in errors
    assert not (tmp_path / "out").exists()
