"""A quantized layer is the layer that it replaces in all but its numbers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, jacfwd, jacrev, jvp
from torch.fx import symbolic_trace
from transformers.pytorch_utils import Conv1D

import goldstick
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.layout import Layout
from goldstick.core.scheme import Scheme
from goldstick.errors import KernelError, StructureError
from goldstick.nn import PackedWeight, QuantizedConvolution, QuantizedEmbedding, QuantizedLinear
from goldstick.nn.derived import in_place_of
from goldstick.nn.own_names import own_names
from goldstick.structure.network import layout_of

pytestmark = pytest.mark.usefixtures("reference_backend")


class SamePadding(nn.Conv2d):
    """As in ports of EfficientNet: it pads by itself, more behind than before."""

    def forward(self, x: Tensor) -> Tensor:
        more = [
            max((-(-side // step) - 1) * step + k - side, 0)
            for side, step, k in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
        ]
        x = F.pad(x, [more[1] // 2, more[1] - more[1] // 2, more[0] // 2, more[0] - more[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Standardized(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Longhand(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found = x.matmul(self.weight.t())
        return found if self.bias is None else found + self.bias


class Scaled(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.full((sizes[1],), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)) * self.gain


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(x, self.weight.abs())


class ScaledEmbedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 8.0


def images() -> Tensor:
    return torch.randn(2, 4, 13, 14)


def rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


LAYERS: list[tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = [
    (partial(nn.Linear, 32, 24), rows(3, 32)),
    (partial(nn.Linear, 32, 24, bias=False), rows(2, 5, 32)),
    (partial(Longhand, 32, 24), rows(2, 5, 32)),
    (partial(Scaled, 32, 24), rows(2, 5, 32)),
    (partial(Twice, 32, 24), rows(5, 32)),
    (partial(Conv1D, 24, 32), rows(2, 5, 32)),
    (partial(nn.Conv1d, 4, 8, 4, stride=2, padding=1), rows(2, 4, 15)),
    (partial(nn.Conv2d, 4, 8, 3, padding="same", padding_mode="reflect"), images),
    (partial(nn.Conv2d, 4, 8, 3, groups=4), images),
    (partial(nn.Conv3d, 4, 8, 2), rows(2, 4, 5, 6, 7)),
    (partial(SamePadding, 4, 8, 3, stride=2), images),
    (partial(SamePadding, 4, 4, 5, stride=2, groups=4), images),
    (partial(Standardized, 4, 8, 3, padding=1), images),
    (partial(nn.ConvTranspose1d, 4, 8, 4, stride=2), rows(2, 4, 15)),
    (partial(nn.ConvTranspose2d, 4, 8, 3, stride=2, output_padding=1), images),
    (partial(nn.ConvTranspose2d, 4, 8, 3, groups=2), images),
    (partial(nn.Embedding, 30, 32, padding_idx=2), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
    (partial(nn.Embedding, 30, 32, max_norm=1.0), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
    (partial(ScaledEmbedding, 30, 32), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
    (partial(nn.EmbeddingBag, 30, 32, mode="sum"), lambda: torch.tensor([[0, 29, 2], [3, 3, 7]])),
]


def quantized(layer: nn.Module, scheme: str = "w8a16") -> PackedWeight:
    """The layer quantized; its own weight becomes the dequantized one."""
    weight: Any = layer.weight
    layout = layout_of(layer, "weight", weight)
    assert layout is not None
    parsed = Scheme.parse(scheme)
    tensor = quantize_with_search(layout.to_matrix(weight.detach()), parsed.weight, "minmax")
    kinds = {Layout.LINEAR: QuantizedLinear, Layout.TRANSPOSED: QuantizedLinear, Layout.EMBEDDING: QuantizedEmbedding}
    new = in_place_of(kinds.get(layout, PackedWeight), layer, tensor, parsed, layout)
    with torch.no_grad():
        weight.copy_(layout.from_matrix(tensor.dequantize(), weight.shape))
    return new


every_layer = pytest.mark.parametrize(
    ("build", "inputs"), LAYERS, ids=[f"{build.func.__name__}{build.args}{build.keywords}" for build, _ in LAYERS]
)


@every_layer
def test_it_gives_what_the_layer_gives_with_the_dequantized_weight(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    layer, x = build(), inputs()
    new = quantized(layer)
    with torch.no_grad():
        torch.testing.assert_close(new(x), layer(x), rtol=1e-5, atol=1e-5)


@every_layer
def test_it_is_a_layer_of_the_class_that_it_replaces(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    layer = build().to(torch.bfloat16)
    new = quantized(layer)
    assert isinstance(new, type(layer)) and type(new).__name__ == f"Quantized{type(layer).__name__}"
    for name in ("in_features", "out_features", "nf", "kernel_size", "stride", "padding", "groups", "num_embeddings"):
        assert getattr(new, name, None) == getattr(layer, name, getattr(new, name, None))
    weight: Any = layer.weight
    for one in (weight, new.weight):
        assert (one.shape, one.dtype, one.device, one.ndim, len(one)) == (
            weight.shape,
            torch.bfloat16,
            torch.device("cpu"),
            weight.ndim,
            len(weight),
        )
    assert next(new.parameters()).dtype is torch.bfloat16
    assert torch.equal(new.weight.float(), weight.float())
    assert new.to(torch.float32).weight.dtype is torch.float32


@every_layer
@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_of_it_is_equal(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor], again: Callable[[nn.Module], nn.Module]
) -> None:
    new, x = quantized(build()), inputs()
    twin = again(new)
    assert type(twin) is type(new)
    with torch.no_grad():
        assert torch.equal(twin(x), new(x))
    assert all(mine.data_ptr() != theirs.data_ptr() for mine, theirs in zip(new.buffers(), twin.buffers(), strict=True))


def test_the_layer_that_is_replaced_is_left_as_it_is_and_its_other_parameters_are_kept() -> None:
    layer = Scaled(32, 24)
    new = quantized(layer)
    assert set(dict(layer.named_parameters())) == {"weight", "bias", "gain"}
    assert set(dict(new.named_parameters())) == {"weight_scale", "bias", "gain"}
    assert new.gain is layer.gain


@every_layer
def test_another_one_of_its_class_is_a_float_layer(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    """As peft makes the two convolutions of an adapter, by the class of the layer."""
    new = quantized(build())
    another = type(new)(*build.args, **build.keywords)  # type: ignore[attr-defined]
    assert type(another) is type(build())
    replica: Any = new._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    assert type(replica) is type(new), "blank copies stay what they are"
    assert another(inputs()).shape == build()(inputs()).shape


def test_fx_takes_layers_of_torch_for_one_call_each() -> None:
    model = goldstick.apply(nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(72, 24)), "rtn-w8a8").model.eval()
    traced, x = symbolic_trace(model), torch.randn(2, 4, 5, 5)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1", "2"]
    assert torch.equal(traced(x), model(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")  # torch itself
@pytest.mark.parametrize(("layer", "x"), [(nn.Linear(32, 24), rows(2, 32)), (nn.Conv2d(4, 8, 3), images)])
def test_derivatives_in_forward_mode_are_refused(layer: nn.Module, x: Callable[[], Tensor]) -> None:
    """torch takes those of an operator without a rule for 0."""
    model, at = goldstick.apply(nn.Sequential(layer), "rtn-w8a16").model, x()
    for derivative in (jacfwd, lambda model: lambda at: jvp(model, (at,), (at,))):
        with pytest.raises(KernelError, match="no derivatives in forward mode"):
            derivative(model)(at)
    rule = torch.autograd.functional.jacobian(model, at)
    assert bool(rule.count_nonzero())


@pytest.mark.parametrize(("layer", "x"), [(nn.Linear(32, 24), rows(2, 32)), (nn.Conv2d(4, 8, 3), images)])
def test_derivatives_by_torch_func_are_refused_with_a_way_that_works(layer: nn.Module, x: Callable[[], Tensor]) -> None:
    model, at = goldstick.apply(nn.Sequential(layer), "rtn-w8a16").model, x()
    loss = lambda at: model(at).sum()  # noqa: E731
    of_samples = torch.func.vmap(lambda one: model(one[None]).sum())
    for by_func in (grad(loss), jacrev(loss), torch.func.hessian(loss), grad(lambda at: of_samples(at).sum())):
        with pytest.raises(KernelError, match="no derivatives by torch"):
            by_func(at)
    assert grad(lambda factor: loss(at) * factor)(torch.ones(())) == loss(at), "of what no layer is given"
    assert bool(torch.autograd.functional.jacobian(loss, at).count_nonzero())


def test_hooks_stay_and_whoever_set_one_can_take_it_off() -> None:
    layer, seen = nn.Linear(32, 24), []
    handle = layer.register_forward_hook(lambda *_: seen.append(1))
    new = quantized(layer)
    new(torch.randn(1, 32))
    handle.remove()
    new(torch.randn(1, 32))
    assert seen == [1]


def test_a_forward_that_one_layer_was_given_is_kept_or_refused() -> None:
    bound = nn.Linear(32, 24)
    bound.forward = Longhand.forward.__get__(bound)  # type: ignore[method-assign]
    new, x = quantized(bound), torch.randn(3, 32)
    torch.testing.assert_close(new(x), bound(x))
    foreign = nn.Linear(32, 24)
    plain = foreign.forward
    foreign.forward = lambda x: plain(x)  # type: ignore[method-assign]
    with pytest.raises(StructureError, match=r"stands in the place of the forward of a layer, a Linear.*Take it off"):
        quantized(foreign)


def test_functions_in_the_place_of_forwards_are_named_before_anything_runs() -> None:
    """As hooks of other libraries are, which bring weights to a device and take them away behind the layer."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    for layer in (model[1], model[2]):
        layer.forward = lambda x: x if x.is_meta else pytest.fail("it was run")
    with pytest.raises(StructureError, match=r"forward of 1 \(and of 1 more\), a Linear"):
        goldstick.apply(model, "gptq-w4a16-g32", data=[torch.randn(4, 32)])
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g32", "targets": {"include": ["0"]}}}]}
    model[1].forward = model[2].forward = lambda x: x
    made = goldstick.apply(model, recipe, data=[torch.randn(4, 32)]).model
    assert [isinstance(module, PackedWeight) for module in made.children()] == [True, False, False]


def test_a_quantized_layer_is_not_quantized_again() -> None:
    tensor, scheme = quantized(nn.Linear(32, 24)).quantized_tensor(), Scheme.parse("w8a16")
    new = quantized(nn.Linear(32, 24))
    new._parameters["weight"] = nn.Parameter(torch.empty(24, 32))
    with pytest.raises(StructureError, match="quantized already"):
        in_place_of(QuantizedLinear, new, tensor, scheme)


def convolved() -> tuple[nn.Module, QuantizedConvolution]:
    layer, scheme = nn.Conv2d(4, 8, 3), Scheme.parse("w8a8-static")
    tensor = quantize_with_search(layer.weight.detach().flatten(1), scheme.weight, "minmax")
    new = in_place_of(QuantizedConvolution, layer, tensor, scheme, Layout.CONVOLUTION, input_scale=torch.tensor(0.1))
    assert isinstance(new, QuantizedConvolution)
    return layer, new


def turned() -> tuple[nn.Module, PackedWeight]:
    layer, scheme = nn.Linear(32, 24), Scheme.parse("nvfp4")
    tensor = quantize_with_search(layer.weight.detach(), scheme.weight, "minmax")
    return layer, in_place_of(QuantizedLinear, layer, tensor, scheme, input_scale=torch.tensor(0.1), rotated=8)


@pytest.mark.parametrize(
    "made", [convolved, turned, *(lambda build=build: ((old := build()), quantized(old)) for build, _ in LAYERS)]
)
def test_all_that_a_quantized_layer_holds_has_a_name_that_is_known_to_be_goldsticks(
    made: Callable[[], tuple[nn.Module, PackedWeight]],
) -> None:
    layer, new = made()
    kind = next(
        one for one in type(new).__mro__ if one.__module__.startswith("goldstick") and "_made_of" not in vars(one)
    )
    stores = ("__dict__", "_parameters", "_buffers", "_modules")
    added = {name for store in stores for name in {*getattr(new, store)} - {*getattr(layer, store)}}
    assert added - {"in_features", "out_features"} <= own_names(kind)  # those of the layer itself stay


def with_attribute(name: str, layer: nn.Module) -> nn.Module:
    setattr(layer, name, False)
    return layer


def with_buffer(name: str, layer: nn.Module) -> nn.Module:
    layer.register_buffer(name, torch.ones(1))
    return layer


def with_parameter(name: str, layer: nn.Module) -> nn.Module:
    layer.register_parameter(name, nn.Parameter(torch.ones(1)))
    return layer


def with_child(name: str, layer: nn.Module) -> nn.Module:
    layer.add_module(name, nn.Linear(2, 2))
    return layer


def with_method(name: str, layer: nn.Module) -> nn.Module:
    layer.__class__ = type("Own", (type(layer),), {name: lambda self: 1.0})
    return layer


def with_default(name: str, layer: nn.Module) -> nn.Module:
    layer.__class__ = type("Own", (type(layer),), {name: None})
    return layer


def with_delegate(name: str, layer: nn.Module) -> nn.Module:
    found: Any = lambda self, asked: 1.0 if asked == name else nn.Module.__getattr__(self, asked)  # noqa: E731
    layer.__class__ = type("Own", (type(layer),), {"__getattr__": found})
    return layer


@pytest.mark.parametrize(
    "put", [with_attribute, with_buffer, with_parameter, with_child, with_method, with_default, with_delegate]
)
@pytest.mark.parametrize(
    "build",
    [
        partial(nn.Linear, 32, 32),
        partial(nn.Conv2d, 4, 8, 3),
        partial(nn.ConvTranspose1d, 4, 8, 4),
        partial(nn.Embedding, 30, 32),
    ],
)
def test_a_layer_with_something_of_its_own_under_any_name_of_goldsticks_is_refused(
    put: Callable[[str, nn.Module], nn.Module], build: Callable[[], nn.Module]
) -> None:
    kinds: dict[type, type[PackedWeight]] = {
        nn.Linear: QuantizedLinear,
        nn.Conv2d: QuantizedConvolution,
        nn.Embedding: QuantizedEmbedding,
    }
    layer = build()
    names = own_names(kinds.get(type(layer), PackedWeight))
    assert {"scheme", "prepared", "product", "weight_packed"} <= names
    for name in names:
        with pytest.raises(StructureError, match=rf"keeps what it works with where this \w+ has an? {name} of its own"):
            goldstick.apply(
                nn.Sequential(put(name, build())),
                {"stages": [{"rtn": {"scheme": "w8a16", "targets": {"include": ["0"]}}}]},
            )


@pytest.mark.parametrize("name", ["scale", "zero", "codes", "bits", "group_size", "learned"])
def test_a_layer_keeps_what_it_has_under_other_names(name: str) -> None:
    assert getattr(quantized(with_attribute(name, Longhand(32, 24))), name) is False


def test_a_module_with_something_where_a_packed_parameter_would_be_is_refused() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = with_attribute("packed_in_proj_weight", nn.MultiheadAttention(32, 2))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.attention(x, x, x)[0]
            return found

    with pytest.raises(StructureError, match=r"this MultiheadAttention has a packed_in_proj_weight of its own"):
        goldstick.apply(Network(), "rtn-w8a16")
