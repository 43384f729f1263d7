"""RTN: what it decides, and the options it refuses."""

from __future__ import annotations

import pytest
import torch

from goldstick.algorithms import RTN
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.edits import Quantize
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.structure.network import Network
from goldstick.structure.targets import Targets


def network() -> Network:
    return Network(torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)))


def test_it_decides_one_quantization_and_leaves_the_model_alone() -> None:
    view = network()
    before = {name: value.clone() for name, value in view.model.state_dict().items()}
    algorithm = RTN(scheme="w4a16-channel", range_search="mse")
    site = view.by_name["0"]
    scheme = algorithm.scheme_for(site)
    (edit,) = algorithm.solve(site, view.weight(site), algorithm.attach(site), scheme)
    assert isinstance(edit, Quantize)
    assert (edit.site, edit.scheme, edit.algorithm) == ("0", scheme, "rtn")
    expected = quantize_with_search(before["0.weight"], scheme.weight, "mse")
    assert torch.equal(edit.tensor.codes, expected.codes)
    after = view.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_hqq_is_refused_wherever_a_scheme_is_symmetric() -> None:
    with pytest.raises(RecipeError, match="use w4a16-g128-asym, or range_search mse"):
        RTN(range_search="hqq")
    with pytest.raises(RecipeError, match="symmetric scheme w8a16-channel"):
        RTN(scheme="w4a16-g64-asym", range_search="hqq", overrides={"0": "w8a16"})
    assert RTN(scheme="w4a16-g64-asym", range_search="hqq").fractional_zeros


def test_only_hqq_gives_fractions() -> None:
    assert not RTN(scheme="w4a16-g64-asym", range_search="mse").fractional_zeros


def test_a_wrong_scheme_is_found_before_any_model_is() -> None:
    with pytest.raises(RecipeError, match=r"Near it: .*w4a16-g128"):
        RTN(scheme="w4a16-128")
    with pytest.raises(RecipeError, match="No scheme is called 'w5'"):
        RTN(overrides={"*": "w5"})


def test_of_overrides_the_last_match_wins() -> None:
    algorithm = RTN(scheme="w4a16-channel", overrides={"*": "w3a16-channel", "2": "w8a16"})
    view = network()
    assert algorithm.scheme_for(view.by_name["0"]) == Scheme.parse("w3a16-channel")
    assert algorithm.scheme_for(view.by_name["2"]) == Scheme.parse("w8a16")
    turned = RTN(scheme="w4a16-channel", overrides={"2": "w8a16", "*": "w3a16-channel"})
    assert turned.scheme_for(view.by_name["2"]) == Scheme.parse("w3a16-channel")


def test_an_override_whose_layers_later_ones_all_match_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"'2' in overrides would do nothing: .* such as '\[02\]'\. Write '2' behind"):
        RTN(overrides={"2": "w8a16", "*": "w3a16-channel", "[02]": "w4a16-channel"}).sites(network())
    partly = RTN(overrides={"*": "w3a16-channel", "2": "w8a16"})
    assert len(partly.sites(network())) == 2


def test_an_override_that_matches_no_target_is_an_error() -> None:
    with pytest.raises(RecipeError, match="'7' in overrides matches no layer"):
        RTN(overrides={"7": "w8a16"}).sites(network())
    with pytest.raises(RecipeError, match="in overrides matches no layer"):
        RTN(overrides={"2": "w8a16"}, targets=Targets(exclude=("2",))).sites(network())
