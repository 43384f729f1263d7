"""``plan --size`` and ``sensitivity --recipe-for-size``: what sizes there are, and the search by another name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import goldstick
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.search.layers import find_layers
from goldstick.jobs.search.possible import possible_sizes, smallest
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.jobs.search.target import Target
from goldstick.jobs.search.weight_files import weight_file_bytes
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe
from tests.support.commands import run

SCHEMES = ("w2a16-g32", "w4a16-g32", "w8a16-channel")


def test_the_least_and_the_most_are_those_of_plans_and_one_scheme_for_all_is_near_its_own(
    source_with_text: Path,
) -> None:
    layers = find_layers(
        source_with_text, RUNTIMES["goldstick"], method="rtn", calibration=Calibration(), schemes=SCHEMES
    )
    found = possible_sizes(source_with_text, Target(bits=4), schemes=SCHEMES)
    assert found.least == smallest(layers) and found.possible == (found.least <= found.asked)
    assert [one.scheme for one in found.uniform] == list(SCHEMES)
    for one in found.uniform:
        chosen = {site.name: one.scheme for group in layers.groups for site in group.sites}
        real = weight_file_bytes(make_plan(source_with_text, layers.recipe(chosen)))
        assert abs(one.nbytes - real) <= 8 * 3 * len(chosen)  # digits of offsets in the header
    assert found.most == real and found.uniform[-1].left == 0


def test_layers_that_cannot_have_a_scheme_are_counted(source_with_text: Path) -> None:
    found = possible_sizes(source_with_text, Target(bits=4), schemes=("w4a16-g128", "w4a16-channel"))
    left = {one.scheme: one.left for one in found.uniform}
    assert left["w4a16-channel"] == 0 < left["w4a16-g128"]


@pytest.mark.parametrize(("asked", "possible"), [("60%", True), ("1%", False), ("100%", False)])
def test_plan_answers_without_reading_a_weight(asked: str, possible: bool, source_with_text: Path) -> None:
    done = run("plan", str(source_with_text), "--share", asked, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["possible"] is possible and said["least"] < said["most"] < said["source"]
    shown = run("plan", str(source_with_text), "--share", asked).stdout
    assert ("not possible" in shown) != possible and "one scheme for all" in shown


def test_plan_names_a_command_that_does_it_or_why_there_is_none(source_with_text: Path, tmp_path: Path) -> None:
    shown = run("plan", str(source_with_text), "--size", "1GB").stdout
    assert "not possible: " in shown and "bytes hold the model as it is, so ask for less" in shown
    wanted = ("--share", "40%", "--for", "vllm", "--schemes", "w4a16-g32,w8a16-channel")
    shown = " ".join(run("plan", str(source_with_text), *wanted).stdout.split())
    command = shown.partition("'goldstick ")[2].partition("'")[0]
    assert command.endswith("--for vllm --schemes w4a16-g32,w8a16-channel")
    words = [str(source_with_text) if word == "MODEL" else word for word in command.split()]
    words = [str(tmp_path / "made") if word == "DIR" else word for word in words]
    rows = (
        "--method",
        "rtn",
        "--effort",
        "fast",
        "--search-samples",
        "2",
        "--search-seq-len",
        "16",
        "--proof",
        "tensors",
    )
    text = ("--held-out-rows", "2", "--dataset", str(source_with_text / "text.txt"))
    done = run(*words, *rows, *text)
    assert done.exit_code == 0, done.output


def test_what_a_size_leaves_nothing_of_is_refused(source_with_text: Path) -> None:
    done = run("plan", str(source_with_text), "--size", "1MB", "-r", "rtn-w8a16")
    assert done.exit_code == 2 and "--recipe" in done.stderr
    done = run("plan", str(source_with_text), "--schemes", "w8a16")
    assert done.exit_code == 2 and "--size" in done.stderr


def test_the_recipe_that_sensitivity_prints_is_that_of_the_search(source_with_text: Path, tmp_path: Path) -> None:
    text = str(source_with_text / "text.txt")
    file = tmp_path / "found.json"
    done = run(
        "sensitivity", str(source_with_text), "-r", "rtn-w4a16-g32", "--bits", "2,4,8", "--recipe-for-size", "70%",
        "--dataset", text, "--samples", "2", "--seq-len", "16", "--held-out-rows", "3", "-o", str(file),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    printed = Recipe.load(
        yaml.safe_load(done.stdout[done.stdout.index("description:") :].partition("\nsensitivity:")[0])
    )
    recipe = goldstick.search(
        source_with_text, share=0.7, schemes=["w2a16-g32", "w4a16-g32", "w8a16-g32"], method="rtn", effort="best",
        exclude=["model.embed_tokens", "lm_head"], dataset=text, samples=2, seq_len=16, held_out_rows=3,
    )  # fmt: skip
    assert printed.model_dump() == recipe.model_dump()
    measured = json.loads(file.read_text())
    assert measured["widths"] == [2, 4, 8]
    for layer, group in zip(measured["layers"], recipe.search["groups"], strict=True):
        assert layer["name"] == group["name"]
        assert list(layer["kl"].values()) == [one["measured"] for one in group["candidates"][:3]]
    (tmp_path / "recipe.yaml").write_text(
        "stages: [{rtn: {scheme: w4a16-g32}}]\nprecision: {sensitivity: found.json, bits_per_weight: 4.6}\n"
    )
    assert make_plan(source_with_text, Recipe.load(tmp_path / "recipe.yaml")).resolution.assignments


def test_a_recipe_of_other_stages_has_no_size_searched_for(source_with_text: Path) -> None:
    done = run("sensitivity", str(source_with_text), "-r", "awq-w4a16-g32", "--recipe-for-size", "70%")
    assert done.exit_code == 2 and "rtn or gptq" in done.stderr, done.output


def test_a_recipe_of_another_format_has_no_size_searched_for(source_with_text: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("stages: [{rtn: {scheme: w4a16-g32}}]\nexport: {format: gptq}\n")
    done = run("sensitivity", str(source_with_text), "-r", str(file), "--recipe-for-size", "70%")
    assert done.exit_code == 2 and "the format native" in done.stderr and "search MODEL --for" in done.stderr, (
        done.output
    )


def test_precision_beside_a_size_is_refused_by_its_name(source_with_text: Path, tmp_path: Path) -> None:
    found, file = tmp_path / "found.json", tmp_path / "recipe.yaml"
    done = run(
        "sensitivity", str(source_with_text), "-r", "rtn-w4a16-g32", "--bits", "4,8", "-o", str(found),
        "--dataset", str(source_with_text / "text.txt"), "--samples", "2", "--seq-len", "16",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    file.write_text(
        "stages: [{rtn: {scheme: w4a16-g32, range_search: mse}}]\n"
        "precision: {sensitivity: found.json, bits_per_weight: 6}\n"
    )
    done = run("sensitivity", str(source_with_text), "-r", str(file), "--recipe-for-size", "70%")
    assert done.exit_code == 2 and "leave precision out" in " ".join(done.stderr.split()), done.output


def test_a_size_of_files_beside_a_size_is_refused(source_with_text: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("stages: [{rtn: {scheme: w4a16-g32}}]\nexport: {max_shard_size: 1000000}\n")
    done = run("sensitivity", str(source_with_text), "-r", str(file), "--recipe-for-size", "70%")
    assert done.exit_code == 2 and "leave max_shard_size out" in " ".join(done.stderr.split()), done.output


@pytest.mark.parametrize(
    ("stage", "options", "words"),
    [
        ("rtn: {scheme: w4a16-g32, range_search: minmax}", (), "say range_search: mse"),
        ("rtn: {scheme: w4a16-g32, range_search: mse, overrides: {lm_head: w8a16-g32}}", (), "leave overrides out"),
        ("gptq: {scheme: w4a16-g32, order: natural}", (), "say order: gar"),
        ("rtn: {scheme: w4a16-g24, range_search: mse}", ("--group-size-mismatch", "smaller"), "do not divide"),
    ],
)
def test_options_that_a_search_does_not_take_are_refused(
    stage: str, options: tuple[str, ...], words: str, source_with_text: Path, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(f"stages: [{{{stage}}}]\n")
    done = run("sensitivity", str(source_with_text), "-r", str(file), *options, "--recipe-for-size", "70%")
    assert done.exit_code == 2 and words in " ".join(done.stderr.split()), done.output


def test_layers_that_a_recipe_leaves_float_stay_so_at_a_size(source_with_text: Path, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "stages: [{rtn: {scheme: w4a16-g32, range_search: mse, targets: {include: ['*mlp*']}}}]\nevaluate: [boolq]\n"
    )
    done = run(
        "sensitivity", str(source_with_text), "-r", str(file), "--bits", "2,4,8", "--recipe-for-size", "90%", "--json",
        "--dataset", str(source_with_text / "text.txt"), "--samples", "2", "--seq-len", "16", "--held-out-rows", "3",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert all("mlp" in layer["name"] for layer in found["layers"])
    assert found["recipe"]["evaluate"] == ["boolq"]
