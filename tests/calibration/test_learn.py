"""Learned rounding: its start on every grid, judged by batches held out, what breaks it, the same on both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms import Learn, soft_assignment
from goldstick.algorithms.learn import LevelSearch
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.core.grid import FLOAT8_SCALES, POWERS_OF_TWO
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError, StructureError
from tests.support.calibration import Batches, seeded_llama, token_batches
from tests.support.proofs import prove_here
from tests.support.tiny_tokenizer import write_tokenizer, write_words

pytestmark = pytest.mark.usefixtures("reference_backend")

W2 = "w2a16-g16"
GRIDS = ["w4a16-g32", "w2a16-channel-asym", "nvfp4a16", "mxfp4a16", "nf4a16", "q4_k", "q3_k", "iq4_xs"]


def some_data(count: int = 6, rows: int = 4) -> Batches:
    return token_batches(count, rows)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return seeded_llama()


def compressed(model: nn.Module, *stages: Any, data: list[dict[str, Tensor]] | None = None) -> goldstick.Result:
    return goldstick.apply(model, {"stages": list(stages)}, data=data or some_data())


def logits(model: nn.Module, data: list[dict[str, Tensor]]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(**batch).logits for batch in data])


def search_of(name: str) -> tuple[LevelSearch, Tensor]:
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(0))
    search: RangeSearch = "ggml" if name.startswith(("q", "iq")) else "mse"
    return Learn().search(quantize_with_search(weight, Scheme.parse(name).weight, search), weight), weight


@pytest.mark.parametrize("name", GRIDS)
def test_a_search_begins_at_its_codes_and_near_the_float_weight(name: str) -> None:
    search, weight = search_of(name)
    start = search.start
    assert torch.equal(search.decision().dequantize(), start.dequantize())
    assert torch.equal(search.decision().codes, start.codes)
    assert (search.weight().detach() - weight).norm() < 0.9 * (start.dequantize() - weight).norm()
    search.anneal(1.0)
    torch.testing.assert_close(search.weight().detach(), start.dequantize(), rtol=1e-5, atol=1e-6)


def test_the_likeliest_level_is_that_of_argmax_and_of_equals_the_lowest() -> None:
    search, _ = search_of("w4a16-g128")
    with torch.no_grad():
        search.logits.copy_(torch.randint(0, 3, search.logits.shape, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(search._moved(), search.place + search.logits.argmax(0) - 1)
    assert {int(step) for step in (search._moved() - search.place).unique()} == {-1, 0, 1}


@pytest.mark.parametrize("name", GRIDS)
def test_a_gradient_is_that_of_the_softmax_whatever_rows_are_worked_on_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soft_assignment, "_THREE_AT_ONCE", 3 * 256 * 4)  # four rows, of six
    search, _ = search_of(name)
    search.anneal(0.5)
    ahead = torch.randn(6, 256, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(search.weight(), [parameter for parameter, _ in search.groups()], ahead)
    level, above, below = search._beside()
    down, _, up = (search.temperature * search.logits).softmax(0)
    steps = search._steps(search.scale())
    plain = (level + up * above - down * below) * search._spread(steps) - search._shift(steps)
    expected = torch.autograd.grad(plain, [parameter for parameter, _ in search.groups()], ahead)
    torch.testing.assert_close(search.weight().float(), plain.to(search.start.scale.dtype).float())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", GRIDS)
def test_the_likeliest_level_is_the_next_one_on_the_grid_and_scales_stay_storable(name: str) -> None:
    search, _ = search_of(name)
    start = search.start
    with torch.no_grad():
        up = search.logits[2] > -1e3
        search.logits[2] += torch.where(up, 10.0, 0.0)
        search.scale.log_scale += 0.3 * torch.randn_like(search.scale.log_scale)
    found = search.decision()
    values, before = (search.levels[place.long()] for place in (search._moved(), search.place))
    assert ((values > before) == up).all() and up.any()
    search.anneal(1.0)
    torch.testing.assert_close(search.weight().detach(), found.dequantize(), rtol=1e-5, atol=1e-6)
    if start.grid.scale == POWERS_OF_TWO or start.grid.superblock is not None:
        assert torch.equal(found.scale, start.scale)
    elif start.grid.scale == FLOAT8_SCALES:
        assert torch.equal(found.scale, found.scale.to(torch.float8_e4m3fn).to(found.scale.dtype))
        assert not torch.equal(found.scale, start.scale)
    else:
        assert not torch.equal(found.scale, start.scale)


@pytest.mark.parametrize("rounding", [{"gptq": {"scheme": W2}}, {"rtn": {"scheme": "mxfp4a16"}}])
def test_a_learned_model_lies_nearer_to_the_float_one_on_data_it_has_not_seen(
    model: nn.Module, rounding: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(9)
    fresh = [{"input_ids": torch.randint(3, 128, (16, 16), generator=generator)}]
    wanted, data = logits(model, fresh), some_data(12)
    rounded = compressed(model, {**rounding}, {"learn": {"steps": 1, "logits_rate": 1e-9, "rate": 0}}, data=data)
    learned = compressed(model, rounding, {"learn": {"steps": 80, "holdout": 0.25}}, data=data)
    near, far = ((logits(one.model, fresh) - wanted).norm() for one in (learned, rounded))
    assert near < far
    notes = [record.notes for record in learned.report.layers if "block_error" in record.notes]
    assert notes and all(float(note["block_error"]) <= float(note["block_error_before"]) for note in notes)
    assert {note["held_out_batches"] for note in notes} == {3}
    assert any(float(note.get("codes_moved", 0)) > 0 for note in notes)


def test_a_block_that_learns_nothing_for_other_batches_keeps_its_start_and_says_so(model: nn.Module) -> None:
    start = compressed(model, {"gptq": {"scheme": W2}})
    found = compressed(model, {"gptq": {"scheme": W2}}, {"learn": {"steps": 1, "logits_rate": 1e-9, "rate": 0}})
    data = some_data()
    assert torch.equal(logits(found.model, data), logits(start.model, data))
    notes = [record.notes for record in found.report.layers if "block_error" in record.notes]
    assert notes and all("start was kept" in str(note["learning"]) for note in notes)


def test_learning_that_diverges_keeps_the_best_it_had_and_says_so(model: nn.Module) -> None:
    found = compressed(model, {"gptq": {"scheme": W2}}, {"learn": {"steps": 4, "rate": 1e30}})
    notes = [record.notes for record in found.report.layers if "block_error" in record.notes]
    assert notes and all(str(note["learning"]).startswith("stopped: The loss is") for note in notes)
    assert torch.isfinite(logits(found.model, some_data())).all()


def test_a_gradient_that_is_no_number_keeps_the_start_and_says_so(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(search: LevelSearch) -> Tensor:
        weight = honest(search)
        weight.register_hook(lambda gradient: gradient * torch.nan)
        return weight

    honest = LevelSearch.weight
    monkeypatch.setattr(LevelSearch, "weight", spoiled)
    found = compressed(model, {"gptq": {"scheme": W2}}, {"learn": {"steps": 4}})
    notes = [record.notes for record in found.report.layers if "block_error" in record.notes]
    assert notes and all("gradient is NaN" in str(note["learning"]) for note in notes)


def test_one_row_cannot_be_held_out(model: nn.Module) -> None:
    stages = {"gptq": {"scheme": W2}}, {"learn": {"steps": 1}}
    with pytest.raises(QuantizationError, match="give at least 2"):
        compressed(model, *stages, data=some_data(1, rows=1))
    compressed(model, *stages, data=some_data(1, rows=2))  # a batch of several rows is two
    compressed(model, stages[0], {"learn": {"steps": 1, "holdout": 0}}, data=some_data(1, rows=1))


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"batches": 0},
        {"holdout": 0.6},
        {"holdout": -0.1},
        {"rate": -1},
        {"temperature": 0.5},
        {"objective": "layer"},
        {"mix": 1.5},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        goldstick.Recipe.load({"stages": [{"rtn": {}}, {"learn": options}]})


@pytest.mark.parametrize("objective", ["output", "loss"])
def test_the_way_by_blocks_gives_the_bytes_of_the_model_in_memory_with_any_number_of_threads(
    model: nn.Module, objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.jobs.save.finish.prove", prove_here)
    monkeypatch.setattr("goldstick.jobs.quantize.quantize.require_memory", lambda *_: None)
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    write_tokenizer(tmp_path / "model")
    write_words(tmp_path / "text.txt")
    learn = {"steps": 20, "logits_rate": 0.05, "objective": objective}
    stages = [{"gptq": {"scheme": W2, "gptaq": True, "cycles": 2}}, {"learn": learn}]
    recipe = {"stages": stages, "calibration": {"dataset": str(tmp_path / "text.txt"), "samples": 48, "seq_len": 16}}
    found = []
    threads = torch.get_num_threads()
    for count, options in ((1, {"max_memory": 1}), (3, {})):
        torch.set_num_threads(count)
        made = goldstick.quantize(tmp_path / "model", recipe, output=tmp_path / f"out{count}", **options)
        found.append((tmp_path / f"out{count}" / "model.safetensors").read_bytes())
        assert any("held_out_batches" in record.notes for record in made.report.layers)
    torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_with_loss_errors_count_by_what_the_end_makes_of_them(model: nn.Module) -> None:
    stages: list[Any] = [{"gptq": {"scheme": W2}}, {"validate": {}}]
    errors = {}
    for name, learn in {
        "output": {},
        "loss": {"objective": "loss"},
        "all mixed in": {"objective": "loss", "mix": 1.0},
    }.items():
        found = compressed(model, *stages, {"learn": {"steps": 5, **learn}})
        (notes,) = (
            record.notes for record in found.report.layers if record.name == "model.layers.1.mlp.up_proj.weight"
        )
        errors[name] = notes["block_error_before"]
    assert errors["all mixed in"] == pytest.approx(errors["output"], rel=1e-5)
    assert errors["loss"] != pytest.approx(errors["output"], rel=1e-2)


class Apart(nn.Module):
    """Blocks that do not feed one another: something is done between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(torch.relu(x))
        return x


def test_blocks_that_do_not_feed_one_another_are_refused_before_anything_is_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goldstick.algorithms.gptq.solve_gptq", lambda *_, **__: pytest.fail("a layer was solved"))
    with pytest.raises(StructureError, match=r"learn goes from block to block.*leave learn out"):
        stages = [{"gptq": {"scheme": W2}}, {"learn": {}}]
        goldstick.apply(Apart(), {"stages": stages}, data=[torch.randn(64, 32) for _ in range(3)])
