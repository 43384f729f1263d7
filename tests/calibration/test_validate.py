"""Validation on rows held out: never worse there than rounding, honest rows, the same on all ways, what it says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms import GPTQ
from goldstick.calibration import block_finish
from goldstick.calibration.held_out import apart
from goldstick.core.inputs import InputObserver
from goldstick.errors import QuantizationError, RecipeError
from tests.support.calibration import Batches, seeded_llama, token_batches
from tests.support.proofs import prove_here
from tests.support.tiny_tokenizer import write_tokenizer, write_words

W3 = "w3a16-g16"
SOLVE = {"gptq": {"scheme": W3}}
VALIDATE = {"validate": {"holdout": 0.25}}


def some_data(count: int = 4) -> Batches:
    return token_batches(count)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return seeded_llama()


def compressed(model: nn.Module, *stages: Any, data: list[dict[str, Tensor]] | None = None) -> goldstick.Result:
    return goldstick.apply(model, {"stages": list(stages)}, data=data or some_data())


def spoil(monkeypatch: pytest.MonkeyPatch, *layers: str) -> None:
    """Let GPTQ decide on other weights than it is given, in some layers."""
    honest = GPTQ.solve

    def solve(stage: GPTQ, site: Any, weight: Tensor, state: Any, scheme: Any) -> Any:
        return honest(stage, site, 0.5 * weight if site.name.endswith(layers) else weight, state, scheme)

    monkeypatch.setattr(GPTQ, "solve", solve)


def codes(model: nn.Module, layer: str) -> Tensor:
    found: Tensor = model.get_submodule(layer).weight_packed  # type: ignore[assignment]
    return found


def test_a_layer_that_calibration_spoils_is_rounded_and_the_report_says_so(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "o_proj", "up_proj")
    found = compressed(model, SOLVE, VALIDATE)
    kept = {record.name for record in found.report.layers if "rounding" in str(record.notes.get("validation"))}
    kept = {name.removesuffix(".weight") for name in kept}
    assert kept >= {name for name, _ in model.named_modules() if name.endswith(("o_proj", "up_proj"))}
    (warning,) = [text for text in found.report.warnings if "did not help" in text]
    assert sum(name in warning for name in kept) == min(10, len(kept))
    rounded = goldstick.apply(model, {"stages": [{"rtn": {"scheme": W3, "range_search": "mse"}}]})
    for name, module in found.model.named_modules():
        if hasattr(module, "weight_packed"):
            assert torch.equal(codes(found.model, name), codes(rounded.model, name)) == (name in kept)


def test_no_block_is_worse_than_what_was_decided_nor_than_rounding_on_the_rows_held_out(model: nn.Module) -> None:
    data = some_data()
    found = compressed(model, SOLVE, VALIDATE, data=data)
    rounded = goldstick.apply(model, {"stages": [{"rtn": {"scheme": W3, "range_search": "mse"}}]})
    errors = []
    for other in (found, rounded):
        seen: list[Tensor] = []
        for one in (model, other.model):
            with torch.no_grad():
                seen.append(one(**data[-1], output_hidden_states=True).hidden_states[1])
        errors.append(float((seen[0] - seen[1]).square().mean()))
    notes = next(record.notes for record in found.report.layers if "held_out_error" in record.notes)
    assert float(notes["held_out_error"]) == pytest.approx(errors[0], rel=1e-3)
    assert errors[0] <= errors[1]
    assert float(notes["held_out_error"]) <= float(notes["held_out_error_calibrated"])


def test_layers_are_not_fitted_to_the_rows_that_judge_them(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[int] = []
    take = InputObserver.take_hessian

    def counted(observer: InputObserver) -> Tensor:
        sums.append(observer.tokens)
        return take(observer)

    monkeypatch.setattr(InputObserver, "take_hessian", counted)
    found = compressed(model, SOLVE, VALIDATE)
    seen = {record.notes["tokens"] for record in found.report.layers if "tokens" in record.notes}
    assert seen == {3 * 64} and set(sums) <= {3 * 64}


def test_a_single_batch_is_taken_apart_by_rows_and_a_single_row_is_refused(model: nn.Module) -> None:
    (one,) = some_data(1)
    first, second = apart([one], 0.25)
    assert torch.equal(torch.cat([first["input_ids"], second["input_ids"]]), one["input_ids"])
    assert len(second["input_ids"]) == 1
    found = compressed(model, SOLVE, VALIDATE, data=[one])
    assert {record.notes["tokens"] for record in found.report.layers if "tokens" in record.notes} == {3 * 16}
    with pytest.raises(QuantizationError, match="give at least 2"):
        compressed(model, SOLVE, VALIDATE, data=[{"input_ids": one["input_ids"][:1]}])


def test_layers_outside_the_blocks_say_that_they_were_not_judged(model: nn.Module) -> None:
    head = {"gptq": {"scheme": W3, "targets": {"include": ["lm_head"]}, "tie": "untie"}}
    found = compressed(model, SOLVE, head, VALIDATE)
    (note,) = [record.notes["validation"] for record in found.report.layers if record.name == "lm_head.weight"]
    assert str(note).startswith("not judged")


@pytest.mark.parametrize(
    "stages", [[VALIDATE, SOLVE], [{"rtn": {"scheme": W3}}, VALIDATE], [SOLVE, VALIDATE, VALIDATE]]
)
def test_a_stage_that_would_judge_nothing_is_refused(model: nn.Module, stages: list[Any]) -> None:
    with pytest.raises(RecipeError, match=r"nothing to judge|one such stage"):
        compressed(model, *stages)


def test_the_way_by_blocks_gives_the_bytes_of_other_numbers_of_threads_and_of_little_memory(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.jobs.save.finish.prove", prove_here)
    monkeypatch.setattr("goldstick.jobs.quantize.quantize.require_memory", lambda *_: None)
    spoil(monkeypatch, "o_proj")
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    write_tokenizer(tmp_path / "model")
    write_words(tmp_path / "text.txt")
    recipe = {
        "stages": [{"gptq": {"scheme": W3, "gptaq": True}}, VALIDATE],
        "calibration": {"dataset": str(tmp_path / "text.txt"), "samples": 8, "seq_len": 16},
    }
    found, threads = [], torch.get_num_threads()
    for count, options in ((1, {"max_memory": 1}), (3, {})):
        torch.set_num_threads(count)
        made = goldstick.quantize(tmp_path / "model", recipe, output=tmp_path / f"out{count}", **options)
        found.append((tmp_path / f"out{count}" / "model.safetensors").read_bytes())
        assert any("did not help" in text for text in made.report.warnings)
    torch.set_num_threads(threads)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "options", [{"objective": "output"}, {"objective": "loss"}, {"objective": "loss", "two_sided": True}]
)
def test_an_objective_further_on_does_not_see_the_rows_that_judge_either(
    model: nn.Module, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[dict[str, Tensor]] = []

    def as_decided(network: Any, edits: Any, *_: Any) -> dict[str, Any]:
        decided.append({name: edit.tensor.codes.clone() for name, edit in edits.items()})
        return dict(edits)

    monkeypatch.setattr(block_finish, "validate_block", as_decided)
    data = some_data()
    other = {**data[-1], "input_ids": data[-1]["input_ids"] % 7}
    for rows in (data, [*data[:-1], other]):
        compressed(model, {"gptq": {"scheme": W3, **options}}, VALIDATE, data=rows)
    half = len(decided) // 2
    for first, second in zip(decided[:half], decided[half:], strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("scheme", "finish"),
    [
        ("w4a16-g16", VALIDATE),
        ("w4a16-g16", {"learn": {"steps": 4}}),
        ("w2a16-g16", {"distill": {"rate": 0.01, "holdout": 0.25}}),
    ],
)
def test_what_absorbs_the_scale_of_a_later_layer_is_compared_with_a_float_weight_that_did(
    model: nn.Module, scheme: str, finish: dict[str, Any]
) -> None:
    outliers = copy.deepcopy(model)
    with torch.no_grad():
        for name, module in outliers.named_modules():
            if name.endswith("up_proj"):
                module.weight[::8] *= 30  # type: ignore[index]
    stages = [{"awq": {"quantize": False}}, {"gptq": {"scheme": scheme}}]
    reports = [compressed(outliers, *further).report for further in (stages, [*stages, finish])]
    assert all(told["held_out"][1] < told["held_out"][0] for told in reports[1].training)  # distilled, not kept
    found = [{record.name: record for record in report.layers} for report in reports]
    ups = [name for name in found[0] if name.endswith("up_proj.weight")]
    assert ups
    for name in ups:
        alone, finished = (records[name] for records in found)
        assert alone.weight_sqnr_db is not None and finished.weight_sqnr_db is not None
        assert abs(finished.weight_sqnr_db - alone.weight_sqnr_db) < 3
        if finish is VALIDATE:
            assert "held_out_error" in finished.notes  # rounding stood beside it
