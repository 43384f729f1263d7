"""A single batch is taken apart by its rows only where the model shows that it is made of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.calibration.held_out import apart
from goldstick.errors import QuantizationError

WIDTH = 32
SOLVE = {"gptq": {"scheme": "w4a16-g16"}}
FINISHES: dict[str, Any] = {
    "validate": "validate",
    "learn": {"learn": {"steps": 2}},
    "distill": {"distill": {"epochs": 1}},
}


class Rows(nn.Module):
    """Blocks that feed one another and take rows one by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(2))
        self.eval()

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Graph(Rows):
    """The same for the nodes of a graph."""

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(adjacency @ x)


class Counted(Rows):
    """The same with a count of its forwards, and dropout while it is trained."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.train()

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        self.count += 1
        return super().forward(nn.functional.dropout(x, training=self.training), extra)


class Set(Rows):
    """Rows that look at one another."""

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        return super().forward((x @ x.T / WIDTH).softmax(-1) @ x)


class Similar(Rows):
    """What it gives of each row, and how alike rows are."""

    def forward(self, x: Tensor, extra: Any = None) -> Any:
        found = super().forward(x)
        return found @ found.T, found


class Alike(Similar):
    """How alike rows are, alone."""

    def forward(self, x: Tensor, extra: Any = None) -> Any:
        return super().forward(x)[0]


class Pooled(Rows):
    """What it gives of each row, and of all together."""

    def forward(self, x: Tensor, extra: Any = None) -> Any:
        return super().forward(x), x.sum(0, keepdim=True)


class Mean(Rows):
    """What it gives is of all rows together."""

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        return super().forward(x).mean()


def rows(count: int = 8) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))


def graph() -> dict[str, Tensor]:
    return {"x": rows(40), "adjacency": torch.rand(40, 40, generator=torch.Generator().manual_seed(2)) / 20}


def compressed(model: nn.Module, finish: Any, *data: dict[str, Any]) -> goldstick.Result:
    return goldstick.apply(model, {"stages": [SOLVE, finish]}, data=data)


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("extra", [True, None, ["a", "b"], {"mask": torch.ones(8)}, [torch.ones(8, 2)]], ids=repr)
def test_values_that_are_no_tensors_belong_to_both_parts(extra: Any, finish: str) -> None:
    found = compressed(Rows(), FINISHES[finish], {"x": rows(), "extra": extra})
    seen = {record.notes["tokens"] for record in found.report.layers if "tokens" in record.notes}
    assert seen == {7 if finish == "validate" else 8}


def test_a_graph_is_not_cut_by_its_nodes() -> None:
    found = compressed(Graph(), "validate", graph())
    assert {record.notes["tokens"] for record in found.report.layers if "tokens" in record.notes} == {40}
    with pytest.raises(QuantizationError, match=r"there is 1 batch, which cannot be taken apart; give at least 2"):
        compressed(Graph(), FINISHES["distill"], graph())


@pytest.mark.parametrize("make", [Set, Mean, Pooled, Alike])
def test_rows_that_a_model_mixes_are_not_cut(make: Callable[[], nn.Module]) -> None:
    batch = {"x": rows()}
    assert apart([batch], 0.25, make()) == [batch]


@pytest.mark.parametrize("make", [Rows, Similar])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_a_model_takes_one_by_one_are_cut(dtype: torch.dtype, make: Callable[[], nn.Module]) -> None:
    batch = {"x": rows().to(dtype), "extra": torch.tensor(3.0)}
    first, second = apart([batch], 0.25, make().to(dtype))
    assert torch.equal(torch.cat([first["x"], second["x"]]), batch["x"]) and len(second["x"]) == 2
    assert first["extra"] is second["extra"] is batch["extra"]


def test_a_model_is_left_as_it_is_by_the_trial() -> None:
    model = Counted()
    assert len(apart([{"x": rows()}], 0.25, model)) == 2
    assert model.training and float(model.count) == 0


def test_text_is_cut_without_a_trial() -> None:
    ids = torch.arange(12).reshape(4, 3)
    found = apart([{"input_ids": ids, "attention_mask": ids, "use_cache": False}], 0.25, nn.Linear(1, 1))
    assert [part["input_ids"].tolist() for part in found] == [ids[:3].tolist(), ids[3:].tolist()]
    assert all(part["use_cache"] is False for part in found)
