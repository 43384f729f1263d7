"""What torch makes numbers of where nobody says it changes nothing that goldstick decides or computes."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import goldstick
from goldstick.core import element

RECIPES = ("rtn-w4a16-g32", "rtn-nf4a16", "rtn-fp8-dynamic", "rtn-mxfp8", "gptq-w4a16-g32", "awq-rtn-w4a16-g32")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_default_dtype_changes_no_bit(recipe: str, dtype: torch.dtype) -> None:
    model, x = network(), torch.randn(4, 64)
    data = [torch.randn(32, 64)] if recipe.startswith(("gptq", "awq")) else None
    wanted = goldstick.apply(model, recipe, data=data).model
    before = wanted(x)
    element._table.cache_clear()
    torch.set_default_dtype(dtype)

    found = goldstick.apply(model, recipe, data=data).model

    state = found.state_dict()
    assert all(torch.equal(state[name], value) for name, value in wanted.state_dict().items())
    assert torch.equal(wanted(x), before)
    assert torch.equal(found(x), before)


def test_what_is_first_imported_under_a_default_dtype_keeps_float32() -> None:
    code = """
import torch
torch.set_default_dtype(torch.bfloat16)
import goldstick
goldstick.apply(torch.nn.Sequential(torch.nn.Linear(32, 8)), "rtn-w8a16")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
