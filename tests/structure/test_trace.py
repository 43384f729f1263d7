"""Capturing a block's inputs and tracing what its layers receive."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from goldstick.errors import StructureError
from goldstick.structure.trace import (
    capture_block_inputs,
    capture_inputs,
    map_tensors,
    materialise,
    tensors_in,
    trace_block,
)
from tests.support.tiny_models import FAMILIES, meta_model, sample_inputs


def test_a_block_run_on_its_captured_inputs_gives_what_it_gave_in_the_model() -> None:
    model = FAMILIES["llama_gqa"]()
    inputs = sample_inputs(model)
    block = model.get_submodule("model.layers.1")
    seen: list[Tensor] = []
    handle = block.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(**inputs)
        handle.remove()
        args, kwargs = capture_block_inputs(model, "model.layers.1", inputs)
        assert torch.equal(block(*args, **kwargs), seen[0])


def test_the_forward_stops_at_the_block_and_leaves_no_trace_of_itself() -> None:
    model = FAMILIES["llama_mha"]()
    model.train()
    model.get_submodule("model.layers.1").eval()
    modes = [module.training for module in model.modules()]
    reached: list[str] = []
    handle = model.get_submodule("model.layers.0").register_forward_hook(
        lambda module, args, output: reached.append("end of block 0")
    )
    _, kwargs = capture_block_inputs(model, "model.layers.0", sample_inputs(model))
    handle.remove()
    assert reached == []
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert kwargs.get("past_key_values") is None


def test_capturing_from_a_model_in_training_does_not_move_its_running_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)).train()
    x = torch.randn(16, 4) + 3
    args, _ = capture_block_inputs(model, "2", {"input": x})
    assert torch.equal(model[0].running_mean, torch.zeros(4))
    torch.testing.assert_close(args[0], x, rtol=1e-4, atol=1e-4)


def test_meta_inputs_become_numbers_and_do_so_repeatably() -> None:
    model = meta_model("llama_mha")
    first, again, other = (
        capture_block_inputs(model, "model.layers.0", sample_inputs(model), seed=seed) for seed in (0, 0, 1)
    )
    assert first[0][0].device.type == "cpu"
    assert torch.equal(first[0][0], again[0][0])
    assert not torch.equal(first[0][0], other[0][0])
    positions = first[1]["position_ids"]
    assert torch.equal(positions[0], torch.arange(positions.shape[-1]))


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (torch.empty(2, 3, dtype=torch.int64, device="meta"), torch.tensor([[0, 1, 2], [0, 1, 2]])),
        (torch.empty((), dtype=torch.int64, device="meta"), torch.tensor(0)),
        (torch.empty(2, 2, dtype=torch.bool, device="meta"), torch.tensor([[True, False], [True, True]])),
        (torch.empty(2, dtype=torch.bool, device="meta"), torch.tensor([True, True])),
    ],
)
def test_what_meta_integers_and_booleans_become(meta: Tensor, expected: Tensor) -> None:
    assert torch.equal(materialise(meta, torch.Generator()), expected)


def test_several_blocks_are_captured_in_one_forward() -> None:
    model = FAMILIES["t5"]()
    paths = ["encoder.block.0", "decoder.block.1"]
    captured = capture_inputs(model, paths, sample_inputs(model))
    assert set(captured) == set(paths)
    for path in paths:
        alone = capture_block_inputs(model, path, sample_inputs(model))
        assert torch.equal(captured[path][0][0], alone[0][0])


def test_a_forward_that_fails_or_goes_around_the_block_is_an_error_that_says_so() -> None:
    model = FAMILIES["llama_mha"]()
    with pytest.raises(StructureError, match=r"model\.layers\.0.*failed first"):
        capture_block_inputs(model, "model.layers.0", {"nonsense": 1})
    bypassed = nn.Sequential(nn.Linear(4, 4))
    bypassed.add_module("spare", nn.Identity())
    bypassed.forward = lambda input: input  # type: ignore[method-assign]
    with pytest.raises(StructureError, match="ended without calling it"):
        capture_block_inputs(bypassed, "spare", {"input": torch.zeros(1, 4)})


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        total = self.b(y) + self.a(y)
        total = total + self.c(y.view(-1, 4)).view_as(total)  # the same numbers, flattened
        total = total + self.d(y.clone())  # equal numbers, another tensor
        y.add_(1)
        return total + self.e(y)  # the same memory, other numbers


def test_a_trace_tells_the_same_tensor_from_an_equal_one_and_from_a_changed_one() -> None:
    calls = trace_block(Reader(), (torch.randn(2, 3, 4),), {})
    keys = {call.module: call.key for call in calls}
    assert [call.module for call in calls] == ["b", "a", "c", "d", "e"]
    assert keys["a"] == keys["b"] == keys["c"]
    assert len({keys["a"], keys["d"], keys["e"]}) == 3


def test_memory_freed_inside_the_block_is_not_mistaken_for_a_shared_input() -> None:
    class Freeing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x * 2)
            return x

    calls = trace_block(Freeing(), (torch.randn(2, 4),), {})
    assert len({call.key for call in calls}) == len(calls) == 8


@dataclass(frozen=True)
class Pair:
    """Values under names."""

    first: object
    second: object = None


def test_the_tensors_of_a_dataclass_are_found_and_changed_in_a_copy() -> None:
    one, other = torch.ones(2), torch.zeros(3)
    pair, named = Pair([one], {"other": other}), Pair("a name")
    assert [id(tensor) for tensor in tensors_in((1, pair))] == [id(one), id(other)]
    changed = map_tensors({"pair": pair, "named": named}, lambda tensor: tensor + 1)
    assert changed["named"] is named and isinstance(changed["pair"], Pair)
    assert [tensor.tolist() for tensor in tensors_in(changed)] == [[2, 2], [1, 1, 1]]
    assert pair.first == [one] and float(one.sum()) == 2
