"""What every algorithm in the registry keeps to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from goldstick.algorithms import (
    ALGORITHMS,
    Algorithm,
    DataRequirement,
    Member,
    Quantizer,
    Smoother,
    Stage,
    TrainedQuantizer,
)
from goldstick.core.edits import Quantize
from goldstick.core.inputs import InputObserver
from goldstick.core.scheme import Scheme
from goldstick.core.training import TrainingOptions
from goldstick.errors import QuantizationError, RecipeError
from goldstick.recipes.recipe import Recipe
from goldstick.structure.network import Network
from goldstick.structure.targets import Targets

every_stage = pytest.mark.parametrize("stage", ALGORITHMS.values(), ids=ALGORITHMS)
ON_LAYERS = {name: stage for name, stage in ALGORITHMS.items() if issubclass(stage, Algorithm)}
every_algorithm = pytest.mark.parametrize("algorithm", ON_LAYERS.values(), ids=ON_LAYERS)


@pytest.mark.parametrize(("name", "stage"), ALGORITHMS.items())
def test_it_is_registered_under_its_own_name(name: str, stage: type[Stage]) -> None:
    assert stage.name == name
    assert stage().data_requirement in DataRequirement


@every_stage
def test_its_options_are_frozen_and_given_by_name_only(stage: type[Stage]) -> None:
    made = stage()
    first = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, first, getattr(made, first))
    with pytest.raises(TypeError):
        stage(getattr(made, first))


@every_stage
def test_its_options_survive_json(stage: type[Stage]) -> None:
    adapter = TypeAdapter(stage)
    options: dict[str, Any] = {}
    if issubclass(stage, Algorithm):
        options = {"targets": Targets(include=("*a",), exclude=("b",))}
    if issubclass(stage, Quantizer):
        scheme = "w8a16-channel-asym" if issubclass(stage, TrainedQuantizer) else "w8a16"
        options |= {"scheme": scheme, "overrides": {"*": "w4a16-g32"}, "group_size_mismatch": "skip", "tie": "keep"}
    if issubclass(stage, Smoother):
        options |= {"unfoldable": "multiply"}
    if "training" in stage.__dataclass_fields__:
        options |= {"training": TrainingOptions(steps=7, rate=0.1)}
    own: dict[str, dict[str, Any]] = {
        "rotate": {"seed": 3, "heads": False},
        "kv_cache": {"keys": "tensor", "window": 4},
        "slb_finish": {"steps": 7},
        "learn": {"steps": 7},
        "distill": {"epochs": 7},
        "validate": {"holdout": 0.25},
        "fold_batch_norm": {"targets": Targets(exclude=("*a",))},
        "equalize": {"rounds": 3},
        "correct_bias": {"targets": Targets(exclude=("*a",))},
    }
    options |= own.get(stage.name, {})
    made = stage(**options)
    assert made != stage()
    assert adapter.validate_json(adapter.dump_json(made)) == made


@every_stage
def test_options_that_do_not_exist_are_refused(stage: type[Stage]) -> None:
    with pytest.raises(ValidationError, match="nonsense"):
        TypeAdapter(stage).validate_python({"nonsense": 1})


@every_stage
def test_every_option_is_documented(stage: type[Stage]) -> None:
    text = (stage.__doc__ or "") + (Quantizer.__doc__ or "" if issubclass(stage, Quantizer) else "")
    assert [field.name for field in dataclasses.fields(stage) if f"{field.name}:" not in text] == []


@every_algorithm
def test_what_it_says_it_does_it_does(algorithm: type[Algorithm]) -> None:
    """A smoothing stage gives scales, or says why not; a quantizing one gives codes; any other call is refused."""
    made = algorithm()
    network = Network(torch.nn.Sequential(torch.nn.Linear(32, 16)))
    site = network.by_name["0"]
    scheme = Scheme.parse("w4a16-g16")
    member = Member(site=site, weight=network.weight(site), scheme=scheme)
    observer = InputObserver(32)
    observer.observe(torch.randn(64, 32) * torch.logspace(-1, 1, 32))
    assert made.smooths or made.quantizes
    if made.smooths:
        found = made.smooth_scale([member], observer)
        assert found.notes
        assert found.scale is None or (found.scale.shape == (32,) and (found.scale > 0).all())
    else:
        with pytest.raises(QuantizationError, match=f"{made.name} chooses no scales"):
            made.smooth_scale([member], observer)
    if isinstance(made, Quantizer):
        trained = isinstance(made, TrainedQuantizer)
        state = made.wrap(site, network.module(site), scheme) if trained else made.attach(site)
        if state is not None and not trained:
            state.observe(torch.randn(64, 32))
        (edit,) = made.solve(site, member.weight, state, scheme)
        assert isinstance(edit, Quantize)
        assert edit.algorithm == made.name
    assert made.quantizes == isinstance(made, Quantizer)


@pytest.mark.parametrize("stage", ["rtn", "gptq", "awq"])
@pytest.mark.parametrize("scheme", ["w1a16-g32", "w1a16-channel-asym"])
def test_one_bit_is_not_rounded_to_zeros(stage: str, scheme: str) -> None:
    with pytest.raises(RecipeError, match=f"{stage} cannot make {scheme} of a weight: .* Use 2 bits or more, or slb"):
        Recipe.load({"stages": [{stage: {"scheme": scheme}}]})
    with pytest.raises(RecipeError, match=f"{stage} cannot make {scheme}"):
        Recipe.load({"stages": [{stage: {"overrides": {"*q_proj": scheme}}}]})
