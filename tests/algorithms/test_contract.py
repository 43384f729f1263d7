"""What every algorithm in the registry keeps to."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import TypeAdapter

from goldstick.algorithms import ALGORITHMS, Algorithm, Exposure

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS.items())
def test_it_is_registered_under_its_own_name(name: str, algorithm: type[Algorithm]) -> None:
    assert algorithm.name == name
    assert algorithm.exposure in Exposure


@every_algorithm
def test_its_options_are_frozen_and_given_by_name_only(algorithm: type[Algorithm]) -> None:
    made = algorithm()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.scheme = "w8a16"  # type: ignore[misc]
    with pytest.raises(TypeError):
        algorithm("w8a16")  # type: ignore[misc]


@every_algorithm
def test_its_options_survive_json(algorithm: type[Algorithm]) -> None:
    adapter = TypeAdapter(algorithm)
    made = algorithm(scheme="w8a16", overrides={"*": "w4a16-g32"}, indivisible="skip", tie="keep")
    assert adapter.validate_json(adapter.dump_json(made)) == made


@every_algorithm
def test_every_option_is_documented(algorithm: type[Algorithm]) -> None:
    text = (algorithm.__doc__ or "") + (Algorithm.__doc__ or "")
    assert [field.name for field in dataclasses.fields(algorithm) if f"{field.name}:" not in text] == []
