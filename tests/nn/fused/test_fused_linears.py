"""Layers that share their input: stacked, each gives what it gives alone, whoever calls what, and whatever moves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme
from goldstick.errors import StructureError
from goldstick.kernels.cpu import _C
from goldstick.nn import FusedLinears, QuantizedLinear
from goldstick.nn.fused.feed_forward import GatedForward
from goldstick.nn.fused.fused_linears import obstacle

pytestmark = pytest.mark.skipif(
    _C is None, reason="the other backends multiply in float, where stacking may round anew"
)


def layer(
    rows: int, name: str = "w4a16-g16", *, bias: bool = False, dtype: torch.dtype = torch.float32, columns: int = 48
) -> QuantizedLinear:
    torch.manual_seed(rows)
    scheme = Scheme.parse(name)
    tensor = quantize_with_search(torch.randn(rows, columns).to(dtype), scheme.weight, "minmax")
    return QuantizedLinear(tensor, scheme, torch.randn(rows).to(dtype) if bias else None)


def trio(name: str = "w4a16-g16", **options: object) -> list[QuantizedLinear]:
    return [layer(rows, name, **options) for rows in (24, 8, 17)]  # type: ignore[arg-type]


def alone(parts: Sequence[QuantizedLinear], x: Tensor) -> list[Tensor]:
    return [part.alone(x) for part in parts]


def equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "name", ["w4a16-g16", "w3a16-g16-asym", "w8a8-dynamic", "w4a8-dynamic-g16", "w4a4-dynamic-g16", "w8a16"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 48), (2, 5, 48), (0, 48)])
def test_stacked_layers_give_the_bits_they_give_alone(
    name: str, dtype: torch.dtype, bias: bool, shape: tuple[int, ...]
) -> None:
    parts = trio(name, bias=bias, dtype=dtype)
    x = torch.randn(shape).to(dtype)
    expected = alone(parts, x)
    FusedLinears(parts)
    assert equal([part(x) for part in parts], expected)


@pytest.mark.parametrize(
    "names", [("q4_k", "q4_k", "q6_k"), ("q6_k", "q4_k", "q4_k"), ("w4a16-g16", "w4a16-g16", "w8a16")]
)
@pytest.mark.parametrize("shape", [(1, 256), (2, 5, 256)])
def test_layers_of_two_schemes_give_the_bits_they_give_alone(names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    parts = [layer(rows, name, columns=256) for rows, name in zip((24, 8, 17), names, strict=True)]
    assert obstacle(parts) is None
    x = torch.randn(shape)
    expected = alone(parts, x)
    shared = FusedLinears(parts)
    assert [whole.out_features for whole in shared.wholes()] == ([32, 17] if names[0] == names[1] else [24, 25])
    assert equal([part(x) for part in parts], expected)
    shared.separate()
    assert equal([part(x) for part in parts], expected)


def test_one_multiplication_serves_all_and_nothing_is_kept_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, x = trio(), torch.randn(3, 48)
    expected = alone(parts, x)
    shared = FusedLinears(parts)
    rows = []
    original = QuantizedLinear.alone
    monkeypatch.setattr(QuantizedLinear, "alone", lambda own, x: (rows.append(own.out_features), original(own, x))[1])
    assert equal([parts[place](x) for place in (2, 0, 1)], [expected[place] for place in (2, 0, 1)])
    assert rows == [49]
    assert shared._held is None


def test_a_layer_called_twice_with_one_tensor_gives_it_twice() -> None:
    parts, x = trio(), torch.randn(3, 48)
    expected = alone(parts, x)
    FusedLinears(parts)
    order = [0, 0, 1, 1, 2, 0, 2]
    assert equal([parts[place](x) for place in order], [expected[place] for place in order])


@pytest.mark.parametrize("inference", [True, False])
def test_a_tensor_changed_in_place_is_multiplied_anew(inference: bool) -> None:
    parts = trio()
    FusedLinears(parts)
    with torch.inference_mode(inference):
        x = torch.randn(3, 48)
        parts[0](x)
        x.mul_(2)
        assert equal([part(x) for part in parts], alone(parts, x))


def test_an_equal_address_is_not_taken_for_the_same_tensor() -> None:
    parts = trio()
    FusedLinears(parts)
    for seed in range(4):  # each x is freed before the next is made
        x = torch.randn(3, 48, generator=torch.Generator().manual_seed(seed))
        parts[0](x)
        del x
        y = torch.randn(3, 48)
        assert torch.equal(parts[1](y), parts[1].alone(y))


def test_names_and_tensors_of_the_state_dict_stay() -> None:
    model = nn.ModuleList(trio(bias=True))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    surgery.fuse_linears(model, ["0", "1", "2"])
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_loading_other_weights_into_the_layers_reaches_the_stack() -> None:
    model = nn.ModuleList(trio(bias=True))
    surgery.fuse_linears(model, ["0", "1", "2"])
    state = {name: value + 1 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    x = torch.randn(3, 48)
    assert equal([part(x) for part in model], alone(list(model), x))  # type: ignore[arg-type]
    assert torch.equal(model[1].bias, state["1.bias"])  # type: ignore[arg-type]


def test_a_cast_model_and_a_copied_one_are_stacked_anew() -> None:
    model = nn.ModuleList(trio(bias=True))
    surgery.fuse_linears(model, ["0", "1", "2"])
    copied = copy.deepcopy(model).to(torch.bfloat16)
    for own, dtype in ((copied, torch.bfloat16), (model, torch.float32)):
        x = torch.randn(3, 48).to(dtype)
        parts: list[QuantizedLinear] = list(own)  # type: ignore[arg-type]
        assert equal([part(x) for part in parts], alone(parts, x))
        assert parts[0].weight_scale.untyped_storage().data_ptr() == parts[2].weight_scale.untyped_storage().data_ptr()
    assert copied[0].shared is not model[0].shared


def test_separated_layers_own_their_memory_again() -> None:
    parts, x = trio(bias=True), torch.randn(3, 48)
    expected = alone(parts, x)
    FusedLinears(parts).separate()
    assert all(part.shared is None for part in parts)
    assert equal([part(x) for part in parts], expected)
    assert len({part.weight_packed.untyped_storage().data_ptr() for part in parts}) == 3


def test_compiled_code_runs_each_layer_alone() -> None:
    model = nn.ModuleList(trio())
    surgery.fuse_linears(model, ["0", "1", "2"])
    compiled = torch.compile(lambda x: [part(x) for part in model], fullgraph=True, backend="eager")
    x = torch.randn(3, 48)
    assert equal(compiled(x), alone(list(model), x))  # type: ignore[arg-type]


def different_multipliers() -> list[QuantizedLinear]:
    first, second, _ = trio("w4a16-g16")
    first.register_buffer("input_multiplier", torch.full((48,), 2.0))
    second.register_buffer("input_multiplier", torch.full((48,), 3.0))
    return [first, second]


def different_scales_of_scales() -> list[QuantizedLinear]:
    first, second = layer(8, "nvfp4a16"), layer(8, "nvfp4a16")
    assert first.weight_global_scale is not None
    second.weight_global_scale = first.weight_global_scale * 2
    return [first, second]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([layer(8), layer(8, columns=32)], "different numbers of inputs"),
        ([layer(8), layer(8, "w8a16")], "schemes differ"),
        ([layer(8), layer(8, dtype=torch.bfloat16)], "dtypes differ"),
        ([layer(8), layer(8, bias=True)], "some have a bias"),
        (different_multipliers(), "differ in their input_multiplier"),
        (different_scales_of_scales(), "differ in their weight_global_scale"),
        ([layer(8), different_multipliers()[0]], "only some have an input_multiplier"),
    ],
)
def test_layers_that_are_not_alike_are_refused_with_the_reason(parts: list[QuantizedLinear], reason: str) -> None:
    assert reason in (obstacle(parts) or "")
    with pytest.raises(StructureError, match=reason):
        surgery.fuse_linears(nn.ModuleList(parts), ["0", "1"])


def test_what_is_stacked_already_or_no_quantized_layer_is_refused() -> None:
    model = nn.ModuleList([*trio(), nn.Linear(48, 8)])
    with pytest.raises(StructureError, match="not all are quantized"):
        surgery.fuse_linears(model, ["0", "3"])
    surgery.fuse_linears(model, ["0", "1"])
    with pytest.raises(StructureError, match="stacked already"):
        surgery.fuse_linears(model, ["1", "2"])


def test_layers_in_an_order_of_their_own_are_stacked_if_it_is_the_same() -> None:
    order = torch.randperm(48)
    scheme = Scheme.parse("w4a16-g16")

    def ordered(rows: int, order: Tensor) -> QuantizedLinear:
        tensor = quantize_with_search(torch.randn(rows, 48), scheme.weight, "minmax")
        return QuantizedLinear(dataclasses.replace(tensor, input_order=order), scheme)

    parts, x = [ordered(8, order), ordered(16, order)], torch.randn(2, 48)
    expected = alone(parts, x)
    FusedLinears(parts)
    assert equal([part(x) for part in parts], expected)
    assert "input_order" in (obstacle([ordered(8, order), ordered(8, order.flip(0))]) or "")


def test_a_weight_that_changes_between_two_layers_is_seen() -> None:
    parts = trio()
    unshared, x = copy.deepcopy(parts), torch.randn(3, 48)
    FusedLinears(parts)
    assert torch.equal(parts[0](x), unshared[0](x))
    for one in (parts[1], unshared[1]):
        one.weight_scale.mul_(2)
    assert torch.equal(parts[1](x), unshared[1](x))


def test_gradients_reach_biases_that_are_trained_after_a_first_call() -> None:
    parts, x = trio(bias=True), torch.randn(5, 48)
    FusedLinears(parts)
    [part(x) for part in parts]
    for part in parts:
        assert part.bias is not None
        part.bias.requires_grad_()
        part(x).sum().backward()
        assert part.bias.grad is not None
        assert torch.equal(part.bias.grad, torch.full_like(part.bias, 5))


def test_gradients_reach_biases_of_a_gated_feed_forward() -> None:
    class Feed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = layer(32, bias=True), layer(32, bias=True), layer(48, columns=32)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
            return found

    feed, x = Feed(), torch.randn(5, 48)
    FusedLinears([feed.gate, feed.up])
    run = GatedForward(feed, feed.gate, feed.down)
    run(x)
    assert feed.up.bias is not None
    feed.up.bias.requires_grad_()
    run(x).sum().backward()
    assert feed.up.bias.grad is not None and bool(feed.up.bias.grad.any())
