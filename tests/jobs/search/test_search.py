"""A search on a small model: sizes are met, files are as large as promised, and a kill loses little."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import goldstick
from goldstick.checkpoint.working_directory import held_file
from goldstick.cli import main
from goldstick.core.notices import OtherSearchWarning
from goldstick.errors import OutputError, RecipeError, UsageError
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.plan import make_plan
from goldstick.jobs.save import finish
from goldstick.jobs.search import search as module
from goldstick.jobs.search.bound import upper_bound
from goldstick.jobs.search.find import search_recipe
from goldstick.jobs.search.gradient_scores import gradient_scores
from goldstick.jobs.search.journal import Journal
from goldstick.jobs.search.layers import FLOAT, find_layers
from goldstick.jobs.search.losses import RowLosses
from goldstick.jobs.search.possible import smallest
from goldstick.jobs.search.rounding import RoundedLayers
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.jobs.search.search import Search
from goldstick.jobs.search.settings import SearchSettings
from goldstick.jobs.search.target import Found, Target
from goldstick.jobs.search.weight_files import weight_file_bytes
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Recipe
from goldstick.structure.network import Network
from tests.support.proofs import prove_here
from tests.support.tiny_models import FAMILIES

SCHEMES = ("w2a16-g32", "w4a16-g32", "w8a16-channel")


@pytest.fixture(scope="module")
def text(source_with_text: Path) -> Calibration:
    return Calibration(dataset=str(source_with_text / "text.txt"), samples=2, seq_len=16)


def found_for(source: Path, text: Calibration, target: Target, **options: object) -> Found:
    given = {"schemes": SCHEMES, "method": "rtn", "held_out_rows": 4} | options
    return search_recipe(source, target, text=text, **given)  # type: ignore[arg-type]


def files_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def test_a_size_is_met_by_the_file_that_is_written(
    source_with_text: Path, text: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = find_layers(source_with_text, RUNTIMES["goldstick"], method="rtn", calibration=text, schemes=SCHEMES)
    asked = 2 * smallest(layers)
    found = found_for(source_with_text, text, Target(size=asked), effort="fast")
    monkeypatch.setattr(finish, "prove", prove_here)
    made = goldstick.quantize(source_with_text, found.recipe, output=tmp_path / "made")
    assert files_of(made.directory) == found.nbytes <= asked


@pytest.mark.parametrize("runtime", ["vllm", "transformers", "goldstick"])
def test_layers_that_a_runtime_makes_one_of_share_a_scheme(
    runtime: str, source_with_text: Path, text: Calibration
) -> None:
    layers = find_layers(source_with_text, RUNTIMES[runtime], method="rtn", calibration=text)  # type: ignore[index]
    together = [group for group in layers.groups if len(group.sites) > 1]
    assert bool(together) == (runtime == "vllm")
    for number in (0, -1):
        chosen = {site.name: list(group.nbytes)[number] for group in layers.groups for site in group.sites}
        if set(chosen.values()) == {"float"}:
            continue
        plan = make_plan(source_with_text, layers.recipe(chosen))
        assert plan.format.name == RUNTIMES[runtime].format  # type: ignore[index]
        sizes = layers.fixed + sum(list(group.nbytes.values())[number] for group in layers.groups)
        assert plan.bytes_after == sizes < weight_file_bytes(plan)


def test_too_small_a_size_says_what_the_smallest_is(source_with_text: Path, text: Calibration) -> None:
    with pytest.raises(UsageError, match=r"less than the smallest this model can be .* [\d,]+ bytes"):
        found_for(source_with_text, text, Target(size=100))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "awq"}, "method is one of rtn, gptq"),  # which was taken for rtn
        ({"metric": "ppl"}, "A loss is of kl or perplexity"),  # which was taken for kl
        ({"effort": "slow"}, "effort is one of fast, default, best"),
        ({"share": "50%"}, "a number above 0, not '50%'"),
        ({"share": True}, "a number above 0, not True"),
        ({"schemes": "w4a16-g32"}, r"schemes is a list, such as \['w4a16-g32'\]"),
        ({"exclude": "*down_proj"}, "exclude is a list"),
        ({"seq_len": 1}, "seq_len is at least 2"),
        ({"held_out_rows": 1}, "held_out_rows is at least 2"),
        ({"samples": 0}, "samples: Input should be greater"),
        ({"calibration": {"sample": 3}}, "unknown key 'calibration.sample'; did you mean 'samples'"),
        ({"schemes": ("float",)}, "name a scheme"),
        ({"share": None, "bits": 1e308}, "hold the model as it is"),
    ],
)
def test_what_cannot_be_asked_for_in_python_is_refused_in_words(
    options: dict[str, object], says: str, source_with_text: Path
) -> None:
    asked: dict[str, object] = {"share": 0.5, "dataset": str(source_with_text / "text.txt")}
    with pytest.raises(UsageError, match=says):
        goldstick.search(source_with_text, **(asked | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [{}, {"size": 1, "bits": 2.0}, {"bits": float("nan")}, {"share": 0.0}])
def test_one_thing_is_asked_for(target: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Target(**target)  # type: ignore[arg-type]


class Killed(BaseException):
    """What a kill is here."""


def test_a_search_that_is_killed_goes_on_to_the_same_recipe(
    source_with_text: Path, text: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(share=0.5)
    whole = found_for(source_with_text, text, target)
    kept: list[str] = []
    keep = Journal.keep

    def killing(self: Journal, key: str, value: float | list[float]) -> None:
        keep(self, key, value)
        kept.append(key)
        if len(kept) == 4:
            raise Killed

    monkeypatch.setattr(Journal, "keep", killing)
    journal = tmp_path / "journal.json"
    with pytest.raises(Killed):
        found_for(source_with_text, text, target, journal=journal)
    first = list(kept)
    again = found_for(source_with_text, text, target, journal=journal)
    assert again.recipe == whole.recipe and again.record == whole.record
    assert not set(first) & set(kept[4:])


def test_what_other_versions_measured_is_measured_again(
    source_with_text: Path, text: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = find_layers(source_with_text, RUNTIMES["goldstick"], method="rtn", calibration=text, schemes=SCHEMES)
    settings = SearchSettings(text=text, held_out_rows=4, effort="fast", journal=tmp_path / "journal.json")
    Search(layers, Target(share=0.5), settings).journal.keep("a", 1.0)
    assert Search(layers, Target(share=0.5), settings).journal.get("a") == 1.0
    monkeypatch.setattr(module, "versions", lambda: {"torch": "another"})
    with pytest.warns(OtherSearchWarning, match="of other options, text, model or versions"):
        assert Search(layers, Target(share=0.5), settings).journal.get("a") is None


def test_an_exchange_whose_headers_do_not_fit_leaves_the_choice_before_it(
    source_with_text: Path, text: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = find_layers(source_with_text, RUNTIMES["goldstick"], method="rtn", calibration=text, schemes=SCHEMES)
    of_least = {group.name: next(iter(group.nbytes)) for group in layers.groups}
    monkeypatch.setattr(module, "choose_in_place", lambda *_: of_least)
    monkeypatch.setattr(module, "exchange", lambda *_: dict.fromkeys(of_least, FLOAT))
    found = found_for(source_with_text, text, Target(size=2 * smallest(layers)))
    assert {group["name"]: group["chosen"] for group in found.record["groups"]} == of_least
    assert found.nbytes == smallest(layers)


def test_losses_of_recipes_that_do_more_are_no_known_ones(
    source_with_text: Path, text: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Recipe] = []
    others = ["*self_attn*", "*gate_proj", "*up_proj", "*layers.1*", "*embed*", "*head*"]  # all but one layer
    monkeypatch.setattr(Search, "made", lambda self, recipe: made.append(recipe) or self.searched.model)

    def searched(effort: str) -> int:
        before, target = len(made), Target(max_loss=0.5, metric="kl")
        asked = {"method": "gptq", "schemes": ("w4a16-g32",), "journal": tmp_path / "journal.json"}
        found_for(source_with_text, text, target, effort=effort, calibration=text, exclude=others, **asked)
        return len(made) - before

    assert searched("fast") == 1
    assert searched("fast") == 0
    assert searched("default") == 1, "GPTQ is told to do more, and gives other codes"


def test_the_second_order_is_half_the_mean_square_of_the_change_of_the_log_likelihood(
    source_with_text: Path, text: Calibration
) -> None:
    model = load_float(source_with_text).float()
    network = Network(model)
    site = next(site for site in network.sites if site.role == "inner")
    rounded = RoundedLayers(network, RUNTIMES["goldstick"], {site.name: torch.bfloat16})
    ids = torch.arange(12)[None] + 4
    found = gradient_scores(
        network, [{"input_ids": ids}], {"g": [site]}, {"g": ["w2a16-channel"]}, rounded, draws=3, seed=5
    )["g", "w2a16-channel"]
    change = rounded.matrix(site, "w2a16-channel") - network.weight(site)
    weight = getattr(network.module(site), site.parameter)
    weight.requires_grad_(True)
    generator = torch.Generator().manual_seed(5)
    second = first = 0.0
    for _ in range(3):
        log_p = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0], dim=-1)
        labels = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
        (gradient,) = torch.autograd.grad(log_p.gather(1, labels).sum(), weight)
        second += float((gradient.double() * change.double()).sum()) ** 2 / 2
        first += float((gradient * change).abs().sum())
    assert found.second == pytest.approx(second / 36, rel=1e-4)
    assert found.first == pytest.approx(first / 36, rel=1e-4)
    weight.requires_grad_(False)


def test_rounded_layers_cost_what_a_copy_of_the_model_costs(source_with_text: Path) -> None:
    model = load_float(source_with_text).float()
    network = Network(model)
    batches = [{"input_ids": torch.arange(24).reshape(2, 12) + 4}]
    rows = RowLosses(model, batches)
    site = next(site for site in network.sites if site.role == "inner")
    rounded = RoundedLayers(network, RUNTIMES["goldstick"], {site.name: torch.bfloat16})
    other = load_float(source_with_text)
    recipe = Recipe.load(
        {"stages": [{"rtn": {"scheme": "w2a16-channel", "range_search": "mse", "targets": {"include": [site.name]}}}]}
    )
    made = goldstick.apply(other, recipe).model.float()
    with rounded.become({site.name: "w2a16-channel"}):
        changed = rows.kl()
    assert changed == pytest.approx(rows.of(made, "kl"), rel=0.05)
    assert max(rows.kl()) < 1e-9 < min(changed)


def test_the_bound_of_a_mean_is_students() -> None:
    values = [0.1, 0.4, 0.2, 0.5, 0.3, 0.9, 0.7, 0.2, 0.6, 0.1, 0.8]
    mean = sum(values) / 11
    deviation = (sum((value - mean) ** 2 for value in values) / 10) ** 0.5
    assert upper_bound(values, 0.95) == pytest.approx(mean + 1.812461 * deviation / 11**0.5, rel=1e-6)


@pytest.mark.parametrize(("rows", "quantile"), [(2, 63.65674), (3, 9.924843), (4, 5.840909), (32, 2.744042)])
def test_the_bound_is_students_with_few_rows_too(rows: int, quantile: float) -> None:
    values = [float(row % 2) for row in range(rows)]
    mean = sum(values) / rows
    deviation = (sum((value - mean) ** 2 for value in values) / (rows - 1)) ** 0.5
    assert upper_bound(values, 0.995) == pytest.approx(mean + quantile * deviation / rows**0.5, rel=1e-6)


def test_a_loss_is_kept_or_the_best_is_named(source_with_text: Path, text: Calibration) -> None:
    kept = found_for(source_with_text, text, Target(max_loss=0.5, metric="kl"), effort="fast")
    assert any(look["kept"] and look["bytes"] == kept.nbytes and look["bound"] <= 0.5 for look in kept.record["looks"])
    with pytest.raises(UsageError, match=r"No choice keeps the kl loss within 1e-30 .* The best has a loss of"):
        found_for(
            source_with_text, text, Target(max_loss=1e-30, metric="kl"), effort="fast", schemes=("w2a16-g32",),
        )  # fmt: skip


def test_the_command_writes_a_recipe_that_quantize_takes(source_with_text: Path, tmp_path: Path) -> None:
    output = tmp_path / "small.yaml"
    command = [
        "search", str(source_with_text), "--share", "50%", "--schemes", ",".join(SCHEMES), "--method", "rtn",
        "--dataset", str(source_with_text / "text.txt"), "--samples", "2", "--seq-len", "16", "--held-out-rows", "3",
        "--effort", "fast", "-o", str(output), "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    record = json.loads((tmp_path / "small.json").read_text())
    plan = make_plan(source_with_text, Recipe.load(output))
    assert weight_file_bytes(plan) == said["bytes"] == record["bytes"]
    page = (tmp_path / "small.html").read_text()
    assert "<script src" not in page and all(group["name"] in page for group in record["groups"])
    assert FLOAT in {one["scheme"] for one in record["groups"][0]["candidates"]}


def test_other_checkpoints_are_judged_on_the_same_rows(source_with_text: Path, text: Calibration) -> None:
    least = smallest(
        find_layers(source_with_text, RUNTIMES["goldstick"], method="rtn", calibration=text, schemes=SCHEMES)
    )
    found = found_for(
        source_with_text, text, Target(size=2 * least), effort="fast", beside=(str(source_with_text),)
    )  # fmt: skip
    (itself,) = found.record["beside"]
    assert itself["kl"] == pytest.approx(0.0, abs=1e-9) and itself["grown"] == pytest.approx(0.0, abs=1e-9)
    assert itself["bytes"] == files_of(source_with_text)
    assert found.record["whole"]["kl"] > 1e-9


@pytest.mark.parametrize("runtime", ["goldstick", "transformers"])
def test_a_compressed_checkpoint_beside_loses_what_its_recipe_was_found_to_lose(
    runtime: str, source_with_text: Path, text: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    options: dict[str, object] = {"runtime": runtime, "effort": "fast"}
    first = found_for(source_with_text, text, Target(share=0.5), **options)
    made = goldstick.quantize(source_with_text, first.recipe, output=tmp_path / "made")
    again = found_for(source_with_text, text, Target(share=0.5), beside=(str(made.directory),), **options)
    (itself,) = again.record["beside"]
    assert itself["bytes"] == first.nbytes
    assert itself["kl"] == pytest.approx(again.record["whole"]["kl"], rel=0.01)


@pytest.mark.parametrize("family", ["t5", "bert", "vit"])
def test_a_model_that_does_not_go_on_from_a_text_is_refused(family: str, text: Calibration, tmp_path: Path) -> None:
    FAMILIES[family]().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"what a causal language model predicts, and a \w+ is none"):
        search_recipe(tmp_path, Target(bits=12.0), text=text, method="rtn", effort="fast")


def test_a_size_that_holds_the_model_as_it_is_is_refused_at_once(source_with_text: Path, text: Calibration) -> None:
    with pytest.raises(UsageError, match=r"hold the model as it is .* Ask for less"):
        search_recipe(source_with_text, Target(bits=100.0), text=text)


def test_a_scheme_that_fits_no_layer_is_named(source_with_text: Path, text: Calibration) -> None:
    with pytest.raises(RecipeError, match="can become w8a8-dynamic in the format native"):
        search_recipe(source_with_text, Target(bits=6.0), text=text, schemes=("w8a8-dynamic", "w4a16-g32"))


@pytest.mark.parametrize("content", ["mine", "{}", "[1]"])
def test_a_file_that_is_no_journal_is_not_replaced(
    content: str, source_with_text: Path, text: Calibration, tmp_path: Path
) -> None:
    (tmp_path / "found.journal.json").write_text(content)
    with pytest.raises(OutputError, match=r"found.journal.json, where a search keeps .* is something else: move it"):
        found_for(source_with_text, text, Target(bits=6.0), effort="fast", journal=tmp_path / "found.journal.json")
    assert (tmp_path / "found.journal.json").read_text() == content


def test_what_another_search_has_measured_is_put_aside_and_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "found.journal.json"
    Journal(path, {"bits": 4}).keep("a", 1.0)
    with pytest.warns(OtherSearchWarning, match=r"lies in .*found\.journal-\w+\.json, and its command goes on with it"):
        other = Journal(path, {"bits": 3})
    assert other.get("a") is None
    other.keep("a", 2.0)
    path.unlink()  # its recipe is made
    assert Journal(path, {"bits": 4}).get("a") == 1.0
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.warns(OtherSearchWarning):
        Journal(path, {"bits": 3}).keep("a", 3.0)
    with pytest.warns(OtherSearchWarning):
        assert Journal(path, {"bits": 4}).get("a") == 1.0
    assert len(list(tmp_path.iterdir())) == 2


def test_two_searches_do_not_keep_what_they_measure_in_one_journal(
    source_with_text: Path, text: Calibration, tmp_path: Path
) -> None:
    journal = tmp_path / "found.journal.json"
    with held_file(journal), pytest.raises(OutputError, match=r"Another run is writing .*found.journal.json at this"):
        found_for(source_with_text, text, Target(bits=6.0), effort="fast", journal=journal)
    seen: list[list[str]] = []

    def progress(*_: object) -> None:
        seen.append(sorted(file.name for file in tmp_path.iterdir()))

    found_for(source_with_text, text, Target(bits=6.0), effort="fast", journal=journal, progress=progress)
    assert all(".found.journal.json.work" in files for files in seen)
    assert [file.name for file in tmp_path.iterdir()] == [journal.name]


def test_a_journal_of_another_search_is_not_offered(source_with_text: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "found.yaml"
    (tmp_path / "found.journal.json").write_text("{}")
    words = ["search", str(source_with_text), "-o", str(recipe), "--dataset", "x.txt"]
    for more, says in ((["--size", "1KB", "--bits", "4"], "Ask for one thing"), (["--schemes", ""], "has no name")):
        result = CliRunner().invoke(main, [*words, *more])
        assert result.exit_code != 0
        assert says in result.output
        assert "goes on with it" not in result.output
