"""What every registered backend must do, and how one is chosen."""

from __future__ import annotations

import pytest
import torch

from goldstick.errors import KernelError
from goldstick.kernels import BACKENDS, Activation, Backend, select
from goldstick.kernels.cpu.integer import IntegerCpuBackend
from goldstick.kernels.reference import ReferenceBackend
from tests.support.packed_layers import Layer, normalized_error, random_layer, weight_slowly

CPU = torch.device("cpu")
every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)


def usable(backend: Backend, layer: Layer) -> Backend:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOLDSTICK_BACKEND", backend.name)  # Triton runs on the CPU only when asked for by name
        reason = backend.supports(layer.spec, CPU)
    if reason is not None:
        pytest.skip(f"{backend.name}: {reason}")
    return backend


@every_backend
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("activation", [None, "int8-token", "int4-token", "int8-tensor"])
@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 3), (2, 0, 3)], ids=str)
def test_inputs_of_any_rank_give_the_product_with_the_weight(
    backend: Backend, bits: int, activation: Activation, lead: tuple[int, ...]
) -> None:
    layer = random_layer(9, 40, bits=bits, group_size=8, asymmetric=True, activation=activation)
    backend = usable(backend, layer)
    x = torch.randn(*lead, 40)
    inputs = (layer.input_scale, layer.input_zero)
    y = backend.linear(x, layer.packed, layer.scale, layer.zero, layer.bias, layer.spec, *inputs)
    assert y.shape == (*lead, 9)
    exact = x.double() @ weight_slowly(layer).T + layer.bias.double()
    if x.numel():
        rounded = 1e-8 if isinstance(backend, IntegerCpuBackend) else 1e-12  # inputs to 16 bits
        allowed = {None: rounded, "int4-token": 2e-2}.get(activation, 1e-3)
        assert normalized_error(y, exact) < allowed


@every_backend
def test_results_are_fresh_memory(backend: Backend) -> None:
    layer = random_layer(8, 16)
    backend = usable(backend, layer)
    first = backend.dequantize(layer.packed, layer.scale, None, layer.spec)
    kept = first.clone()
    other = random_layer(8, 16, seed=1)
    backend.dequantize(other.packed, other.scale, None, other.spec)
    backend.linear(torch.randn(2, 16), other.packed, other.scale, None, None, other.spec)
    assert torch.equal(first, kept)


def _broken(layer: Layer, what: str) -> tuple[torch.Tensor | None, ...]:
    x, packed, scale, zero, bias = torch.randn(3, 40), layer.packed, layer.scale, layer.zero, layer.bias
    assert zero is not None
    return {
        "short input": (x[:, :39], packed, scale, zero, bias),
        "double input": (x.double(), packed, scale, zero, bias),
        "scalar input": (torch.tensor(1.0), packed, scale, zero, bias),
        "wide codes": (x, packed.long(), scale, zero, bias),
        "fewer words": (x, packed[:, :-1], scale, zero, bias),
        "fewer rows": (x, packed[:-1], scale, zero, bias),
        "fewer groups": (x, packed, scale[:, 1:], zero, bias),
        "half scales": (x, packed, scale.half(), zero, bias),
        "no zeros": (x, packed, scale, None, bias),
        "integer zeros": (x, packed, scale, zero.to(torch.int8), bias),
        "one zero": (x, packed, scale, zero[:1, :1], bias),
        "long bias": (x, packed, scale, zero, bias.repeat(2)),
        "double bias": (x, packed, scale, zero, bias.double()),
    }[what]


@every_backend
@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("short input", r"\[3, 39\] does not end in the 40 input features"),
        ("double input", "its input is torch.float64"),
        ("scalar input", "does not end in the 40"),
        ("wide codes", "must be int32, not torch.int64"),
        ("fewer words", r"packed codes of shape \[9, 4\].* needs \[9, 5\]"),
        ("fewer rows", r"packed codes of shape \[8, 5\]"),
        ("fewer groups", r"scales of shape \[9, 4\].* needs \[9, 5\]"),
        ("half scales", "must be torch.float32 as the layer is, not torch.float16"),
        ("no zeros", "zeros are missing"),
        ("integer zeros", "zeros must be floating point"),
        ("one zero", r"zeros of shape \[1, 1\]"),
        ("long bias", r"bias of shape \[18\]"),
        ("double bias", "bias must be torch.float32"),
    ],
)
def test_wrong_operands_are_refused(backend: Backend, what: str, complaint: str) -> None:
    layer = random_layer(9, 40, group_size=8, asymmetric=True)
    backend = usable(backend, layer)
    x, packed, scale, zero, bias = _broken(layer, what)
    with pytest.raises(KernelError, match=complaint):
        backend.linear(x, packed, scale, zero, bias, layer.spec)  # type: ignore[arg-type]


@every_backend
@pytest.mark.parametrize(
    ("activation", "scale", "zero", "complaint"),
    [
        ("int8-tensor", None, None, "belongs to the activation 'int8-tensor'"),
        ("int8-tensor", None, torch.zeros(1, dtype=torch.int8), "belongs to the activation 'int8-tensor'"),
        ("int8-token", torch.ones(1), None, "only to it; this is 'int8-token'"),
        (None, None, torch.zeros(1, dtype=torch.int8), "only to it; this is None"),
        ("int8-tensor", torch.ones(2), None, r"input scale of shape \[2\]"),
        ("int8-tensor", torch.tensor(1.0), None, r"input scale of shape \[\]"),
        ("int8-tensor", torch.ones(1).double(), None, "input scale must be torch.float32"),
        ("int8-tensor", torch.ones(1), torch.zeros(1), "input zero must be int8, not torch.float32"),
        ("int8-tensor", torch.ones(1), torch.zeros(2, dtype=torch.int8), r"input zero of shape \[2\]"),
    ],
)
def test_a_static_input_has_one_scale_and_no_other_input_has_any(
    backend: Backend,
    activation: Activation,
    scale: torch.Tensor | None,
    zero: torch.Tensor | None,
    complaint: str,
) -> None:
    layer = random_layer(9, 40, group_size=8, activation=activation)
    backend = usable(backend, layer)
    with pytest.raises(KernelError, match=complaint):
        backend.linear(torch.randn(3, 40), layer.packed, layer.scale, None, None, layer.spec, scale, zero)


def test_backend_names_are_unique_and_only_what_runs_by_name_stands_behind_the_one_that_takes_everything() -> None:
    names = [backend.name for backend in BACKENDS]
    assert len(set(names)) == len(names)
    assert type(BACKENDS[-2]) is ReferenceBackend
    assert names[-1] == "scaled-mm"


def test_the_first_backend_that_can_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOLDSTICK_BACKEND", raising=False)
    layer = random_layer(8, 16)
    usable(BACKENDS[0], layer)
    assert select(layer.spec, CPU).name == "cpu-integer"
    assert select(random_layer(8, 16, dtype=torch.float64).spec, CPU).name == "reference"
    assert select(layer.spec, torch.device("meta")).name == "reference"


def test_the_environment_overrides_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = random_layer(8, 16)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert select(layer.spec, CPU).name == "reference"
    monkeypatch.setenv("GOLDSTICK_BACKEND", "abacus")
    with pytest.raises(
        KernelError,
        match="'abacus', which is no backend; known: cpu-integer, cpu, cpu-float, triton, reference, scaled-mm",
    ):
        select(layer.spec, CPU)


def test_an_override_that_cannot_run_the_layer_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = random_layer(8, 16, dtype=torch.float64)
    usable(BACKENDS[0], random_layer(8, 16))
    monkeypatch.setenv("GOLDSTICK_BACKEND", "cpu")
    with pytest.raises(
        KernelError, match=r"cpu: it computes in float32, bfloat16, float16, not.*unset GOLDSTICK_BACKEND"
    ):
        select(layer.spec, CPU)
