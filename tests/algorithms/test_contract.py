"""What every algorithm in the registry keeps to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from goldstick.algorithms import ALGORITHMS, Algorithm, Exposure, Member, Quantizer
from goldstick.core.edits import Quantize
from goldstick.core.inputs import InputObserver
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError
from goldstick.structure.network import Network
from goldstick.structure.targets import Targets

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS.items())
def test_it_is_registered_under_its_own_name(name: str, algorithm: type[Algorithm]) -> None:
    assert algorithm.name == name
    assert algorithm().exposure in Exposure


@every_algorithm
def test_its_options_are_frozen_and_given_by_name_only(algorithm: type[Algorithm]) -> None:
    made = algorithm()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.targets = Targets()  # type: ignore[misc]
    with pytest.raises(TypeError):
        algorithm(Targets())  # type: ignore[misc]


@every_algorithm
def test_its_options_survive_json(algorithm: type[Algorithm]) -> None:
    adapter = TypeAdapter(algorithm)
    options: dict[str, Any] = {"targets": Targets(include=("*a",), exclude=("b",))}
    if issubclass(algorithm, Quantizer):
        options |= {"scheme": "w8a16", "overrides": {"*": "w4a16-g32"}, "indivisible": "skip", "tie": "keep"}
    made = algorithm(**options)
    assert adapter.validate_json(adapter.dump_json(made)) == made


@every_algorithm
def test_every_option_is_documented(algorithm: type[Algorithm]) -> None:
    text = (algorithm.__doc__ or "") + (Quantizer.__doc__ or "" if issubclass(algorithm, Quantizer) else "")
    assert [field.name for field in dataclasses.fields(algorithm) if f"{field.name}:" not in text] == []


@every_algorithm
def test_what_it_says_it_does_it_does(algorithm: type[Algorithm]) -> None:
    """A balancing stage gives scales, or says why not; a quantizing one gives codes; any other call is refused."""
    made = algorithm()
    network = Network(torch.nn.Sequential(torch.nn.Linear(32, 16)))
    site = network.by_name["0"]
    scheme = Scheme.parse("w4a16-g16")
    member = Member(site=site, weight=network.weight(site), scheme=scheme)
    observer = InputObserver(32)
    observer.observe(torch.randn(64, 32) * torch.logspace(-1, 1, 32))
    assert made.balances or made.quantizes
    if made.balances:
        balance = made.balance([member], observer)
        assert balance.notes
        assert balance.scale is None or (balance.scale.shape == (32,) and (balance.scale > 0).all())
    else:
        with pytest.raises(QuantizationError, match=f"{made.name} chooses no scales"):
            made.balance([member], observer)
    if isinstance(made, Quantizer):
        state = made.attach(site)
        if state is not None:
            state.observe(torch.randn(64, 32))
        (edit,) = made.solve(site, member.weight, state, scheme)
        assert isinstance(edit, Quantize)
        assert edit.algorithm == made.name
    assert made.quantizes == isinstance(made, Quantizer)
