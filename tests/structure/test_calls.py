"""Watching calls, leaving a forward and standing in for modules: the model is afterwards as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from goldstick.structure.calls import ForwardLeft, first_call, standing_in


class Careful(nn.Module):
    """Two layers, and a forward that goes on whatever fails in them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.second(input=self.first(x))  # type: ignore[no-any-return]
        except Exception:
            return x


def test_a_forward_ends_at_the_first_of_the_modules_whatever_it_catches() -> None:
    model, x, ran = Careful(), torch.ones(2, 3), list[nn.Module]()
    for layer in (model.first, model.second):
        layer.register_forward_hook(lambda layer, *_: ran.append(layer))
    call = first_call([model.second], lambda: model(x))
    assert call is not None
    module, args, kwargs = call
    assert (module, args, list(kwargs)) == (model.second, (), ["input"])
    assert ran == [model.first]
    assert first_call([model.second, model.first], lambda: model(x)) == (model.first, (x,), {})
    assert not model.first._forward_pre_hooks and not model.second._forward_pre_hooks


def test_a_module_that_is_not_called_is_no_call() -> None:
    assert first_call([nn.Linear(3, 3)], lambda: Careful()(torch.ones(2, 3))) is None


def test_an_error_before_the_call_comes_out_and_leaves_no_hooks() -> None:
    model = Careful()
    with pytest.raises(ArithmeticError):
        first_call([model.first], lambda: 1 / 0)
    assert not model.first._forward_pre_hooks


@pytest.mark.parametrize("fails", [False, True])
def test_what_stands_in_for_a_module_is_gone_afterwards(fails: bool) -> None:
    model, x = Careful(), torch.ones(2, 3)
    whole = model(x)

    def instead(*_: Any, **__: Any) -> Tensor:
        if fails:
            raise ForwardLeft
        return x

    if fails:
        with pytest.raises(ForwardLeft), standing_in(model, {"first": instead, "second": instead}):
            model(x)
    else:
        with standing_in(model, {"first": instead}):
            assert torch.equal(model(x), model.second(x))
    assert torch.equal(model(x), whole)
