"""What judges a block, and what later blocks are given, is what the finished layers make of their rounded inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from tests.support.calibration import seeded_llama, token_batches

pytestmark = pytest.mark.usefixtures("reference_backend")

SCHEMES = ["w8a8-dynamic", "w8a8-static", "w8a8-static-shifted", "w4a8-dynamic-g32", "w4a4-dynamic-g32", "fp8-dynamic",
           "fp8-static", "mxfp8", "mxfp4", "nvfp4"]  # fmt: skip
LEARN = {"learn": {"steps": 6, "holdout": 0.5}}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return seeded_llama()


def block_outputs(model: Any, data: list[dict[str, Tensor]]) -> list[Tensor]:
    """What each block gives, over all batches."""
    found: list[list[Tensor]] = [[] for _ in model.model.layers]
    hooks = [
        block.register_forward_hook(lambda _, __, output, index=index: found[index].append(output))
        for index, block in enumerate(model.model.layers)
    ]
    with torch.no_grad():
        for batch in data:
            model(**batch)
    for hook in hooks:
        hook.remove()
    return [torch.cat(each) for each in found]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("stages", [[{"rtn": {}}, LEARN], [{"smoothquant": {}}, {"gptq": {}}, LEARN]])
def test_the_error_of_a_block_is_that_of_the_finished_layers(
    model: nn.Module, scheme: str, stages: list[dict[str, dict[str, Any]]]
) -> None:
    data = token_batches(6, 4)
    chosen = {"scheme": scheme}
    full = [{name: chosen if name in ("rtn", "gptq") else told for name, told in one.items()} for one in stages]
    result = goldstick.apply(model, {"stages": full}, data=data)
    floats, rounded = block_outputs(model, data[3:]), block_outputs(result.model, data[3:])
    notes = {
        record.name.split(".")[2]: record.notes for record in result.report.layers if "block_error" in record.notes
    }
    assert len(notes) == len(floats)
    for index, note in notes.items():
        error = (rounded[int(index)] - floats[int(index)]).square().mean().item()
        assert note["block_error"] == pytest.approx(error, rel=1e-4)


def test_validation_judges_rounded_inputs(model: nn.Module) -> None:
    data = token_batches(6, 4)
    stages = [{"gptq": {"scheme": "mxfp4"}}, {"validate": {"holdout": 0.5}}]
    result = goldstick.apply(model, {"stages": stages}, data=data)
    floats, rounded = block_outputs(model, data[3:]), block_outputs(result.model, data[3:])
    last = [record for record in result.report.layers if record.name.startswith(f"model.layers.{len(floats) - 1}.")]
    notes = [record.notes for record in last if "held_out_error" in record.notes]
    assert notes
    error = (rounded[-1] - floats[-1]).square().mean().item()
    assert [note["held_out_error"] for note in notes] == pytest.approx([error] * len(notes), rel=1e-4)
