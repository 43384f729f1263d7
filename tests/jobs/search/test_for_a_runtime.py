"""A search for a runtime chooses among what that runs, on each of the devices that it splits layers over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick import api
from goldstick.errors import FormatError, RecipeError, UsageError
from goldstick.jobs.search.layers import find_layers
from goldstick.jobs.search.possible import possible_sizes
from goldstick.jobs.search.runnable import rules_of
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.jobs.search.target import Target
from goldstick.recipes.calibration import Calibration
from goldstick.report.report import Report
from tests.support.commands import run
from tests.support.runtime_checkpoints import Workshop
from tests.support.tiny_tokenizer import write_tokenizer

SCHEMES = ("w4a16-g128", "w4a16-g32", "w8a16-channel")
ROWS: dict[str, Any] = {"samples": 2, "seq_len": 16, "held_out_rows": 3, "method": "rtn", "effort": "fast"}

pytestmark = pytest.mark.usefixtures("all_proofs_here")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four heads; 128 inputs of o_proj, 256 of down_proj, which servers cut by their inputs."""
    directory = tmp_path_factory.mktemp("servers")
    config = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)  # what a search chooses hangs on the weights
    LlamaForCausalLM(config).save_pretrained(directory)
    write_tokenizer(directory)
    (directory / "text.txt").write_text("The harbour lies on the north side of the island. " * 8)
    return directory


def choices(source: Path, runtime: str, devices: int) -> Mapping[str, set[str]]:
    """Last words of a group's layers → what it may become."""
    layers = find_layers(
        source, RUNTIMES[runtime], method="rtn", calibration=Calibration(), schemes=SCHEMES, require_use=False,  # type: ignore[index]
        rules=rules_of(runtime, devices),
    )  # fmt: skip
    return {"+".join(site.name.rpartition(".")[2] for site in group.sites): {*group.nbytes} for group in layers.groups}


def test_what_cannot_be_split_is_no_choice(llama: Path) -> None:
    whole, of_two, of_four = (choices(llama, "vllm", devices) for devices in (1, 2, 4))
    everything = {*SCHEMES, "float"}
    assert set(whole) == {"q_proj+k_proj+v_proj", "o_proj", "gate_proj+up_proj", "down_proj", "lm_head"}
    assert all(found == everything for found in whole.values())
    # 128 / 2 and 256 / 4 inputs on each device are no groups of 128; what is cut by its outputs keeps them
    assert of_two == {**whole, "o_proj": everything - {"w4a16-g128"}}
    assert of_four == {**of_two, "down_proj": everything - {"w4a16-g128"}}


def test_what_the_runtime_would_not_run_on_one_device_is_no_choice(llama: Path) -> None:
    """SGLang's kernel of four bits takes groups of 32, 64 or 128; transformers runs NVFP4 in bfloat16 alone."""
    with pytest.raises(RecipeError, match=r"can become w4a16-g16 .*SGLang .* groups of 16.* To do: "):
        api.search(llama, share=0.5, schemes=("w4a16-g32", "w4a16-g16"), runtime="sglang", **ROWS)
    with pytest.raises(RecipeError, match="computed in bfloat16, and the model is of another dtype"):
        api.search(llama, share=0.5, schemes=("nvfp4a16",), runtime="transformers", **ROWS)


@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "deepseek"])
def test_all_experts_of_a_block_share_a_scheme(model: str, tmp_path: Path) -> None:
    """Servers run gate, up and down of all experts in one kernel, also where the model holds them in two parameters."""
    source = Workshop(tmp_path).float(model)
    found = choices(source, "vllm", 1)
    assert [name for name in found if "down_proj" in name and "gate_up_proj" in name] == ["gate_up_proj+down_proj"]
    layers = find_layers(source, RUNTIMES["vllm"], method="rtn", calibration=Calibration(), schemes=SCHEMES)
    chosen = {
        site.name: SCHEMES[place % 2] for place, group in enumerate(layers.groups) for site in group.sites
    }  # fmt: skip
    assert api.plan(source, layers.recipe(chosen), runtime="vllm").format.name == "compressed-tensors"


def test_the_checkpoint_is_one_that_quantize_makes_and_doctor_passes_on_so_many_devices(
    llama: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    split = ("--for", "vllm", "--tensor-parallel", "4")
    done = run(
        "quantize", str(llama), "-o", str(output), "--share", "22%", "--schemes", ",".join(SCHEMES), *split,
        "--method", "rtn", "--effort", "fast", "--dataset", str(llama / "text.txt"), "--search-samples", "2",
        "--search-seq-len", "16", "--held-out-rows", "3", "--proof", "tensors",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    verdict = api.doctor(output, runtime="vllm", tensor_parallel=4).verdict
    assert verdict is not None and verdict.loads
    report = Report.read(output)
    assert report.search["tensor_parallel"] == 4 and "for vLLM on 4 devices" in report.recipe["description"]

    recipe = goldstick.search(
        llama, share=0.22, schemes=SCHEMES, runtime="vllm", tensor_parallel=4, dataset=str(llama / "text.txt"), **ROWS
    )
    assert recipe.model_dump(mode="json") == report.recipe
    other = goldstick.search(
        llama, share=0.22, schemes=SCHEMES, runtime="vllm", dataset=str(llama / "text.txt"), **ROWS
    )  # fmt: skip
    with pytest.raises(FormatError, match="256 inputs over 4 devices in groups of 128"):
        api.plan(llama, other, runtime="vllm", tensor_parallel=4)


def test_search_writes_a_recipe_for_so_many_devices(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.yaml"
    done = run(
        "search", str(llama), "-o", str(file), "--share", "22%", "--for", "vllm", "--tensor-parallel", "4",
        "--schemes", ",".join(SCHEMES), "--method", "rtn", "--effort", "fast", "--samples", "2", "--seq-len", "16",
        "--held-out-rows", "3", "--dataset", str(llama / "text.txt"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(file.with_suffix(".json").read_text())["tensor_parallel"] == 4
    assert api.plan(llama, str(file), runtime="vllm", tensor_parallel=4)


def test_sizes_are_those_of_what_can_be_split(llama: Path) -> None:
    schemes = ("w4a16-g128", "w8a16-channel")
    whole = possible_sizes(llama, Target(bits=8), runtime="vllm", schemes=schemes)
    split = possible_sizes(llama, Target(bits=8), runtime="vllm", tensor_parallel=4, schemes=schemes)
    assert [one.left for one in whole.uniform if one.scheme == "w4a16-g128"] == [0]
    assert [one.left for one in split.uniform if one.scheme == "w4a16-g128"] == [2]
    assert split.least > whole.least
    shown = run("plan", str(llama), "--share", "22%", "--for", "vllm", "--tensor-parallel", "4")
    assert " --for vllm --tensor-parallel 4" in " ".join(shown.stdout.split()), shown.output


def test_devices_that_nothing_can_be_split_over_are_refused_before_anything_is_measured(llama: Path) -> None:
    with pytest.raises(RecipeError, match="4 heads over 3 devices"):
        api.search(llama, share=0.5, runtime="vllm", tensor_parallel=3, dataset="nothing", **ROWS)
    with pytest.raises(UsageError, match="name one of vllm, sglang"):
        api.search(llama, share=0.5, tensor_parallel=2, dataset="nothing", **ROWS)
    with pytest.raises(UsageError, match=r"one of goldstick, .*llama\.cpp, not for 'nothing'"):
        api.search(llama, share=0.5, runtime="nothing", dataset="nothing", **ROWS)  # type: ignore[arg-type]
