"""What users do with an optimized model afterwards, hooks and other parts, other weights and caches, has its effect."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick.errors import UsageError
from goldstick.kernels.cpu import _C
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.skipif(_C is None, reason="faster forwards are C++ operations")

IDS = torch.arange(24).reshape(2, 12)
INSIDE = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}" for name in ("gate_proj", "up_proj", "act_fn")]


def models(*, interleave: bool = True) -> tuple[Any, Any]:
    """One that was optimized, and the same before."""
    plain: Any = goldstick.apply(FAMILIES["llama_gqa"](), "rtn-w4a16-g32", inplace=True).model.eval()
    optimized = copy.deepcopy(plain)
    goldstick.optimize(optimized, interleave=interleave)
    return optimized, plain


@torch.no_grad()
def decoded(model: Any, cache: Any = None) -> Tensor:
    """Logits of a prompt and of two tokens behind it."""
    output = model(input_ids=IDS[:, :4], past_key_values=cache, use_cache=True)
    found = [output.logits]
    for place in (4, 5):
        found.append(model(input_ids=IDS[:, place : place + 1], past_key_values=output.past_key_values).logits)
    return torch.cat(found, dim=1)


class Halved(nn.Module):
    """Something around a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) * 0.5  # type: ignore[no-any-return]


def hooked(block: nn.Module, path: str) -> None:
    block.get_submodule(path).register_forward_hook(lambda module, args, output: output * 0.5)


def replaced(block: nn.Module, path: str) -> None:
    parent, _, name = path.rpartition(".")
    setattr(block.get_submodule(parent), name, Halved(block.get_submodule(path)))


def given_another_forward(block: nn.Module, path: str) -> None:
    module: Any = block.get_submodule(path)
    own = module.forward
    module.forward = lambda x: own(x) * 0.5


@pytest.mark.parametrize("change", [hooked, replaced, given_another_forward])
@pytest.mark.parametrize("path", [*INSIDE, "mlp.down_proj", "mlp", "input_layernorm"])
def test_what_is_put_on_or_around_a_part_is_run(change: Callable[[nn.Module, str], None], path: str) -> None:
    optimized, plain = models()
    for model in (optimized, plain):
        change(model.model.layers[0], path)
    torch.testing.assert_close(decoded(optimized), decoded(plain), rtol=1e-3, atol=1e-3)


def test_hooks_of_all_modules_see_as_many_calls_as_before() -> None:
    calls: list[list[str]] = []
    for model in models():
        seen: list[str] = []
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, output, seen=seen: seen.append(type(module).__name__)
        )
        decoded(model)
        handle.remove()
        calls.append(seen)
    assert calls[0] == calls[1]


@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("path", ["mlp.down_proj", "self_attn.q_proj"])
def test_weights_whose_memory_moved_are_read_where_they_lie_now(path: str, interleave: bool) -> None:
    optimized, plain = models(interleave=interleave)
    decoded(optimized)
    for model in (optimized, plain):
        layer: Any = model.model.layers[0].get_submodule(path)
        layer.weight_scale.data = layer.weight_scale.data * 2
        layer.weight_packed.data = layer.weight_packed.data.clone()
    gc.collect()
    torch.testing.assert_close(decoded(optimized), decoded(plain), rtol=1e-3, atol=1e-3)


def test_weights_are_not_kept_alive_by_a_block_that_runs_elsewhere_now() -> None:
    optimized, _ = models()
    decoded(optimized)
    layer = optimized.model.layers[0].mlp.down_proj
    held = weakref.ref(layer.weight_packed)
    optimized.to("meta")
    gc.collect()
    assert held() is None


def offload(model: nn.Module, *, buffers: bool) -> None:
    """Keep parameters elsewhere but while their module runs, as accelerate does, by a forward around its own.

    Args:
        model: Changed in place.
        buffers: Whether buffers are kept there, too.
    """
    for module in model.modules():
        own = {**module._parameters, **(module._buffers if buffers else {})}
        values = {name: tensor.detach().clone() for name, tensor in own.items() if tensor is not None}
        if not values:
            continue

        def put(tensors: dict[str, Tensor], module: nn.Module = module) -> None:
            for name, tensor in tensors.items():
                if name in module._buffers:
                    module._buffers[name] = tensor
                else:
                    module._parameters[name] = nn.Parameter(tensor, requires_grad=False)

        absent = {name: value.to("meta") for name, value in values.items()}
        before: Any = module.forward

        def forward(
            *args: Any, before: Any = before, put: Any = put, own: Any = (values, absent), **options: Any
        ) -> Any:
            put(own[0])
            output = before(*args, **options)
            put(own[1])
            return output

        put(absent)
        module.__dict__["forward"] = forward


@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("buffers", [True, False])
def test_weights_that_are_put_into_memory_for_a_call_are_read_in_it(interleave: bool, buffers: bool) -> None:
    optimized, plain = models(interleave=interleave)
    expected = decoded(plain)
    for model in (optimized, plain):
        offload(model, buffers=buffers)
    assert torch.equal(decoded(plain), expected)
    torch.testing.assert_close(decoded(optimized), expected, rtol=1e-3, atol=1e-3)


def test_a_model_whose_weights_lie_elsewhere_is_not_optimized() -> None:
    _, plain = models()
    offload(plain, buffers=False)
    before = decoded(plain)
    with pytest.raises(
        UsageError, match=r"tensors of this LlamaForCausalLM, model\.embed.* the first, are on the device"
    ):
        goldstick.optimize(plain)
    assert torch.equal(decoded(plain), before)


class Counting(DynamicCache):
    """A cache that does more than to keep."""

    calls = 0

    def update(self, *args: Any, **kwargs: Any) -> Any:
        Counting.calls += 1
        return super().update(*args, **kwargs)


def test_a_cache_with_an_update_of_its_own_is_written_through_it() -> None:
    for model in models():
        Counting.calls = 0
        decoded(model, Counting(config=model.config))
        assert Counting.calls == 3 * len(model.model.layers)


def test_another_way_to_attend_is_the_one_that_runs() -> None:
    calls: list[int] = []

    def mine(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any) -> tuple[Tensor, None]:
        calls.append(query.shape[2])
        return torch.zeros_like(query).transpose(1, 2), None

    AttentionInterface.register("mine", mine)
    optimized, plain = models()
    for model in (optimized, plain):
        model.set_attn_implementation("mine")
    torch.testing.assert_close(decoded(optimized), decoded(plain), rtol=1e-4, atol=1e-4)
    assert len(calls) == 2 * 3 * len(plain.model.layers)


def test_more_query_heads_than_attention_takes_are_left_with_the_reason() -> None:
    config = LlamaConfig(
        vocab_size=32, hidden_size=96 * 2, intermediate_size=32, num_hidden_layers=1, num_attention_heads=96,
        num_key_value_heads=1, head_dim=2,
    )  # fmt: skip
    model: Any = goldstick.apply(LlamaForCausalLM(config), "rtn-w4a16-g32", inplace=True).model.eval()
    reasons = {change.reason for change in goldstick.optimize(model).left}
    assert "more than 64 query heads share a key" in reasons
