"""What a forward reads of a packed weight: facts and products without its numbers, all else with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme
from goldstick.errors import StructureError
from goldstick.nn import QuantizedLinear
from goldstick.nn.derived import in_place_of
from goldstick.nn.lazy_weight import LazyWeight

pytestmark = pytest.mark.usefixtures("reference_backend")


def layer(scheme: str = "w8a16", **inputs: Any) -> QuantizedLinear:
    parsed, old = Scheme.parse(scheme), nn.Linear(32, 24)
    tensor = quantize_with_search(old.weight.detach(), parsed.weight, "minmax")
    found = in_place_of(QuantizedLinear, old, tensor, parsed, **inputs)
    assert isinstance(found, QuantizedLinear)
    return found


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F.linear": lambda x, w: F.linear(x, w),
    "bias": lambda x, w: F.linear(x, w, bias=torch.ones(24)),
    "keywords": lambda x, w: F.linear(input=x, weight=w),
    "@ .T": lambda x, w: x @ w.T,
    "@ .mT": lambda x, w: x @ w.mT,
    "matmul t": lambda x, w: torch.matmul(x, w.t()),
    "mm": lambda x, w: torch.mm(x[0], w.T),
}
OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "abs": lambda x, w: F.linear(x, w.abs()),
    "row": lambda x, w: x @ w[3],
    "not transposed": lambda x, w: torch.randn(24, generator=torch.Generator().manual_seed(0)) @ w,
    "einsum": lambda x, w: torch.einsum("bti,oi->bto", x, w),
    "addmm": lambda x, w: torch.addmm(torch.ones(24), x[0], w.T),
    "vector": lambda x, w: F.linear(x[0, 0], w),
    "norm": lambda x, w: w.norm(dim=1, keepdim=True) * w,
    "twice T": lambda x, w: F.linear(x, w.T.T),
    "with itself": lambda x, w: w @ w.T,
    "stack": lambda x, w: torch.stack([w, w]),
    "data": lambda x, w: w.data + 1,
    "detached": lambda x, w: w.detach().clone(),
    "float": lambda x, w: w.to(torch.float64),
    "lists": lambda x, w: torch.tensor(w.tolist()),
}


@pytest.mark.parametrize("name", [*PRODUCTS, *OTHERS])
def test_it_gives_what_the_numbers_give(name: str) -> None:
    own, x = layer(), torch.randn(2, 5, 32)
    compute = {**PRODUCTS, **OTHERS}[name]
    found = compute(x, own.weight)
    assert type(found) is Tensor
    torch.testing.assert_close(found, compute(x, own.stored_numbers()), rtol=1e-5, atol=1e-5)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "data +=": lambda w: w.data.add_(1),
    "data =": lambda w: setattr(w, "data", torch.zeros(24, 32)),
    "detached": lambda w: w.detach().mul_(2),
    "transposed": lambda w: w.T.zero_(),
    "item": lambda w: w.__setitem__((0, slice(None)), 0.0),
    "copy": lambda w: w.copy_(torch.zeros(24, 32)),
    "initialised": nn.init.xavier_uniform_,
    "out": lambda w: torch.zeros(24, 32, out=w),
    "several": lambda w: torch._foreach_add_([torch.zeros(1), w.data], 1.0),
    "as a whole": lambda w: w.__iadd__(1),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_to_numbers_that_are_made_of_codes(name: str, inference: bool) -> None:
    own, x = layer(), torch.randn(2, 5, 32)
    with torch.inference_mode() if inference else torch.no_grad():
        before = own(x)
        with pytest.raises(StructureError, match="weight of this QuantizedLinear is made of codes"):
            WRITES[name](own.weight)
        assert torch.equal(own(x), before)


def test_an_adapter_is_not_merged_into_codes_and_lost() -> None:
    """As peft merges: into the data of the weight, or into a copy that takes its place."""
    own, delta = layer(), torch.ones(24, 32)
    with pytest.raises(StructureError, match="merge adapters into that"):
        own.weight.data += delta
    merged = own.weight.data.clone()
    merged += delta
    torch.testing.assert_close(merged, own.stored_numbers() + 1)
    with pytest.raises(StructureError, match="merge adapters into that"):
        own.weight.data = merged


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_the_packed_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, x = layer(), torch.randn(2, 5, 32)
    expected = PRODUCTS[name](x, own.stored_numbers())
    monkeypatch.setattr(QuantizedLinear, "dequantized", lambda self: pytest.fail("the numbers were asked for"))
    torch.testing.assert_close(PRODUCTS[name](x, own.weight), expected, rtol=1e-5, atol=1e-5)


def test_facts_need_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    own = layer().to(torch.bfloat16)
    monkeypatch.setattr(QuantizedLinear, "dequantized", lambda self: pytest.fail("the numbers were asked for"))
    weight = own.weight
    assert isinstance(weight, LazyWeight)
    assert (weight.shape, weight.size(0), weight.dim(), weight.numel(), len(weight)) == ((24, 32), 24, 2, 768, 24)
    assert weight.T.shape == (32, 24) and weight.is_floating_point() and not weight.requires_grad
    assert (weight.dtype, weight.device) == (torch.bfloat16, torch.device("cpu"))


def test_a_product_of_a_forward_rounds_the_input_as_the_scheme_says() -> None:
    own, x = layer("w8a8-dynamic"), torch.randn(2, 5, 32)
    own.bias = None
    assert torch.equal(x @ own.weight.T, own(x))
    multiplied = layer(input_multiplier=torch.rand(32))
    multiplied.bias = None
    assert torch.equal(F.linear(x, multiplied.weight), multiplied(x))


def test_operators_that_are_called_from_cpp_get_the_numbers() -> None:
    own, x = layer(), torch.randn(2, 5, 32)
    found = torch.ops.aten.mul.Tensor(own.weight, own.weight)
    assert torch.equal(found, own.stored_numbers() ** 2)
    assert repr(own.weight) == repr(own.stored_numbers())
    assert x.shape[-1] == own.weight.shape[1]


@pytest.mark.parametrize("inputs", [{"input_multiplier": torch.logspace(-1, 1, 32)}, {"rotated": 8}])
def test_its_numbers_are_what_the_layer_multiplies_by_whatever_it_does_to_its_input(inputs: dict[str, Any]) -> None:
    own, x = layer(**inputs), torch.randn(2, 5, 32)
    expected = own(x) - own.bias
    for found in (torch.einsum("bti,oi->bto", x, own.weight), F.linear(x, own.weight), F.linear(x, own.weight.clone())):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Longhand(nn.Linear):
    """A layer whose own forward reads its weight."""

    def forward(self, input: Tensor) -> Tensor:
        """x·Wᵀ."""
        return input @ self.weight.T


def test_a_static_range_is_that_of_the_calls_and_rounds_no_input_of_others() -> None:
    own, large = layer("w8a8-static", input_scale=torch.tensor(0.02)), 50 * torch.randn(4, 32)
    for read in (F.linear(large, own.weight), large @ own.weight.T):
        torch.testing.assert_close(read, large @ own.stored_numbers().T, rtol=1e-5, atol=1e-4)
    longhand = Longhand(32, 24, bias=False)
    scheme = Scheme.parse("w8a8-static")
    tensor = quantize_with_search(longhand.weight.detach(), scheme.weight, "minmax")
    called = in_place_of(QuantizedLinear, longhand, tensor, scheme, input_scale=torch.tensor(0.02))
    clipped = (large / 0.02).round().clamp(-128, 127) * 0.02
    torch.testing.assert_close(called(large), clipped @ tensor.dequantize().T, rtol=1e-4, atol=1e-4)
