"""Parts of the outputs, each by the inputs as it weights them: what each algorithm makes of them, and the options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms import AWQ, GPTQ, RTN
from goldstick.algorithms.guide import Guide
from goldstick.algorithms.guided import Guided
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.structure.network import Network, Site
from tests.support.gptq import correlated

every_algorithm = pytest.mark.parametrize(
    "algorithm",
    [AWQ, GPTQ, lambda **options: RTN(range_search="imatrix", **options)],
    ids=["awq", "gptq", "rtn"],
)


def observed(x: Tensor) -> InputObserver:
    observer = InputObserver(x.shape[-1])
    observer.observe(x)
    return observer


def in_two_parts() -> tuple[Site, Tensor, OutputGroups]:
    """A layer of eight rows, of which five and three weight the same inputs differently."""
    x = correlated(200, 32).float()
    site = next(iter(Network(nn.Sequential(nn.Linear(32, 8))).sites))
    parts = [(slice(0, 5), observed(x * torch.rand(200, 1))), (slice(5, 8), observed(x * torch.rand(200, 1) ** 4))]
    return site, torch.randn(8, 32), OutputGroups(parts=parts, plain=observed(x), sizes=[1.0, 1.0])


@every_algorithm
@pytest.mark.parametrize("scheme", ["w2a16-g16", "w3a16-g16-asym"])
def test_parts_of_the_outputs_are_solved_by_their_own_inputs(algorithm: type[Guided], scheme: str) -> None:
    site, weight, state = in_two_parts()
    (found,) = algorithm(scheme=scheme, objective="loss").solve(site, weight, state, Scheme.parse(scheme))
    for part, observer in state.parts:
        (alone,) = algorithm(scheme=scheme).solve(site, weight[part], observer, Scheme.parse(scheme))
        assert torch.equal(found.tensor.dequantize()[part], alone.tensor.dequantize())  # type: ignore[attr-defined]


@every_algorithm
def test_parts_have_one_scale_of_scales(algorithm: type[Guided]) -> None:
    site, weight, state = in_two_parts()
    weight[0] *= 10  # of the first part alone
    scheme = Scheme.parse("nvfp4a16")
    (found,) = algorithm(scheme=scheme, objective="loss").solve(site, weight, state, scheme)
    (plain,) = algorithm(scheme=scheme).solve(site, weight, state.plain, scheme)
    assert torch.equal(found.tensor.global_scale, plain.tensor.global_scale)  # type: ignore[attr-defined]
    assert (found.tensor.dequantize() - weight)[5:].square().mean() < 0.3  # type: ignore[attr-defined]


def test_awq_finds_scales_by_either_and_ranges_by_the_output() -> None:
    stage = AWQ(objective="output", output_groups=3, mix=0.1)
    assert stage.scale_guide == stage.guide == Guide(objective="output", parts=3, mix=0.1)
    assert AWQ(objective="loss").scale_guide == Guide(objective="loss", parts=4)
    assert AWQ(objective="loss").guide is AWQ().guide is AWQ().scale_guide is None


@pytest.mark.parametrize("name", ["awq", "gptq", "rtn"])
@pytest.mark.parametrize("options", [{"objective": "end"}, {"output_groups": 0}, {"mix": 2}])
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        goldstick.Recipe.load({"stages": [{name: options}]})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "range_search minmax looks at no inputs"),
        ({"range_search": "mse"}, "range_search mse looks at no inputs"),
        ({"range_search": "imatrix", "importance": "a.gguf"}, "range_search imatrix takes its importance from a file"),
    ],
)
def test_a_search_that_looks_at_no_inputs_has_no_objective(options: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        goldstick.Recipe.load({"stages": [{"rtn": {"objective": "loss", **options}}]})
