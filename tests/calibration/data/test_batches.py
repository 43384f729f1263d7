"""Batches that a caller brings: mappings, tensors, tuples, what a DataLoader gives, and what is none of these."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import goldstick
from goldstick.calibration.data.batches import as_batches
from goldstick.errors import DataError
from tests.support.tiny_models import FAMILIES

RECIPE = {"stages": [{"gptq": {"scheme": "w4a16-g32"}}]}


class OneInput(nn.Module):
    """A network whose argument is called ``x``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Two layers."""
        return self.second(self.first(x).relu() * scale)


class TwoInputs(OneInput):
    """One that needs a second tensor."""

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:  # type: ignore[override]
        """Two layers, with something added before."""
        return super().forward(x + beside)


class NamelessInputs(OneInput):
    """One whose forward names nothing."""

    def forward(self, *xs: Tensor) -> Tensor:  # type: ignore[override]
        """Two layers."""
        return super().forward(xs[0])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def inputs(count: int = 3) -> list[Tensor]:
    return [torch.randn(40, 32) for _ in range(count)]


def weights(model: nn.Module, data: Any) -> list[Tensor]:
    made = goldstick.apply(model, RECIPE, data=data)
    assert all("fallback" not in layer.notes for layer in made.report.layers if layer.scheme)
    return [made.model(torch.eye(32)), *(tensor for tensor in made.model.state_dict().values())]


def test_all_ways_to_give_the_same_inputs_give_the_same_weights() -> None:
    model, given = OneInput(), inputs()
    labels = torch.zeros(40, dtype=torch.int64)
    ways: list[Any] = [
        [{"x": x} for x in given],
        given,
        tuple((x,) for x in given),
        (UserDict({"x": x}) for x in given),
        DataLoader(TensorDataset(torch.cat(given), labels.repeat(3)), batch_size=40),
        [[x, ["a name", "of something"]] for x in given],
        [x.numpy() for x in given],
        [{"x": x.numpy()} for x in given],
        ((x.numpy(), labels.numpy()) for x in given),
    ]
    found = [weights(model, way) for way in ways]
    assert len(found[0]) > 4
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


def test_a_second_tensor_that_the_forward_needs_is_passed() -> None:
    x, beside = inputs(2)
    assert as_batches(TwoInputs(), [(x, beside)])[0].keys() == {"x", "beside"}
    assert as_batches(TwoInputs(), [(x, beside, torch.zeros(40))])[0]["beside"] is beside
    assert as_batches(OneInput(), [(x, beside)]) == [{"x": x}]


class Nested(nn.Module):
    """Takes its tensors from a mapping in a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Any) -> Tensor:
        found: Tensor = self.layer(x["parts"]["first"])
        return found


def test_tensors_may_lie_in_mappings_of_mappings() -> None:
    data = [{"x": {"parts": {"first": torch.randn(16, 32)}}}]
    made = goldstick.apply(Nested(), RECIPE, data=data)
    assert all("fallback" not in layer.notes for layer in made.report.layers if layer.scheme)
    with pytest.raises(DataError, match="holds no tensor, only x: dict"):
        as_batches(Nested(), [{"x": {"parts": {"first": "words"}}}])


def test_token_ids_are_given_to_a_language_model_as_ever() -> None:
    ids = torch.randint(90, (2, 16))
    model = FAMILIES["llama_gqa"]()
    for data in ([ids], [{"input_ids": ids}], [(ids, ids)]):
        (batch,) = as_batches(model, data)
        assert batch.keys() == {"input_ids"}
        assert batch["input_ids"] is ids
    assert as_batches(model, ids)[1]["input_ids"].shape == (1, 16)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_masks_that_leave_no_token_are_refused(dtype: torch.dtype) -> None:
    """As they are where 1 is taken for padding, and no row has any."""
    ids, model = torch.randint(90, (2, 16)), FAMILIES["llama_gqa"]()
    hidden, shown = torch.zeros(2, 16, dtype=dtype), torch.ones(2, 16, dtype=dtype)
    with pytest.raises(DataError, match="attention_mask of every item of data is 0 throughout"):
        as_batches(model, [{"input_ids": ids, "attention_mask": hidden}] * 2)
    for kept in (shown, hidden.float()):
        assert len(as_batches(model, [{"input_ids": ids, "attention_mask": one} for one in (hidden, kept)])) == 2


def test_a_picture_is_given_to_a_model_of_pictures() -> None:
    pixels = torch.randn(2, 3, 32, 32)
    assert as_batches(FAMILIES["vit"](), [pixels, (pixels, torch.zeros(2).long())])[1].keys() == {"pixel_values"}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"x": torch.zeros(2, 32)}, r"data is an iterable of batches, not dict\. For one batch, write data=\[batch\]"),
        ("rows.jsonl", "data is an iterable of batches, not str"),
        (7, "data is an iterable of batches, not int"),
        ([torch.zeros(2, 32), "text"], "Item 1 of data is of type str. An item is a mapping"),
        ([None], "Item 0 of data is of type NoneType"),
        ([()], "Item 0 of data is a tuple that holds nothing"),
        ([[1.0, 2.0]], "Item 0 of data is a list that holds float at 0"),
        ([{"x": 3}], "Item 0 of data is a dict that holds no tensor, only x: int"),
        ([{3: torch.zeros(2)}], "Item 0 of data is a dict that has a key of type int"),
        ([torch.zeros(2, 64), torch.zeros(0, 64)], r"Item 1 of data holds no numbers \(\[0, 64\]\)"),
        ([{"ids": torch.zeros(2, 32)}], "names 'ids', and the forward of OneInput takes scale, x"),
        ([torch.zeros(2, 32).split(1) * 2], "holds 4 values, and the forward of OneInput takes 1 by position"),
    ],
)
def test_what_is_no_batch_is_named_with_its_place_and_type(data: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        goldstick.apply(OneInput(), RECIPE, data=data)


def test_what_cannot_be_passed_by_position_says_what_can() -> None:
    x = torch.zeros(2, 32)
    with pytest.raises(DataError, match=r"holds 1 value, and the forward of TwoInputs takes 2 by position \(x, beside"):
        as_batches(TwoInputs(), [x])
    with pytest.raises(DataError, match=r"NamelessInputs does not name its positional arguments\. Give mappings"):
        as_batches(NamelessInputs(), [x])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: torch.compile(model, backend="eager"),
        nn.DataParallel,
        AveragedModel,
        lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    ],
    ids=["compile", "DataParallel", "AveragedModel", "both"],
)
def test_of_a_wrapper_the_forward_of_what_it_wraps_counts(wrap: Callable[[nn.Module], nn.Module]) -> None:
    x, labels = torch.zeros(2, 32), torch.zeros(2)
    for item in (x, (x,), (x, labels), {"x": x}):
        assert as_batches(wrap(OneInput()), [item])[0].keys() == {"x"}
    assert as_batches(wrap(TwoInputs()), [(x, x)])[0].keys() == {"x", "beside"}
    with pytest.raises(DataError, match=r"holds 1 value, and the forward of TwoInputs takes 2 by position \(x, beside"):
        as_batches(wrap(TwoInputs()), [x])
    with pytest.raises(DataError, match="names 'ids', and the forward of OneInput takes scale, x"):
        as_batches(wrap(OneInput()), [{"ids": x}])


def test_of_a_forward_with_arguments_fixed_the_rest_counts() -> None:
    model, x = TwoInputs(), torch.zeros(2, 32)
    model.forward = functools.partial(model.forward, x)  # type: ignore[method-assign]
    assert as_batches(model, [x])[0].keys() == {"beside"}


def test_a_wrapper_gets_the_codes_of_what_it_wraps() -> None:
    model, data = OneInput().eval(), inputs()
    assert all(map(torch.equal, weights(nn.DataParallel(model), data), weights(model, data)))


class OneMapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 8)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(batch["x"])
        return out


def test_a_forward_that_takes_a_mapping_is_given_it_by_name() -> None:
    batch = {"x": torch.randn(16, 32)}
    with pytest.raises(DataError, match=r"If batch is to be such a mapping itself, give \{'batch': …\} with it inside"):
        as_batches(OneMapping(), [batch])
    found = goldstick.apply(OneMapping(), "gptq-w4a16-g32", data=[{"batch": batch}])
    assert not found.report.warnings
