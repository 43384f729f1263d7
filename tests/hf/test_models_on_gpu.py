"""Whole models on a GPU, where there is one: the Triton kernels are chosen, and answer as the reference does.

TRITON_INTERPRET=0 runs them; with the interpreter, that other tests want, there is nothing to see here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import goldstick
from goldstick.jobs.inspect.layer_backends import backends_of
from goldstick.kernels import triton
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs

if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)
if triton._missing() or triton._module("tuning").interpreted:
    pytest.skip(triton._missing() or "compiled kernels want TRITON_INTERPRET=0", allow_module_level=True)

GPU = torch.device("cuda")
#: How far outputs may be apart, of their length: with float inputs, and with rounded ones, where sums that differ in
#: their last bits are rounded to another code now and then.
ALLOWED = {torch.float32: (1e-5, 0.02), torch.float16: (0.01, 0.05), torch.bfloat16: (0.05, 0.1)}
TAKEN = ("w4a16-g32", "w4a16-g32-asym", "w8a16", "w8a8-dynamic", "w4a8-dynamic-g32", "w4a4-dynamic-g32")
LEFT = ("w3a16-g32", "nvfp4a16", "fp8-dynamic")


@pytest.fixture(autouse=True)
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOLDSTICK_BACKEND", raising=False)


def compressed(family: str, scheme: str, dtype: torch.dtype) -> goldstick.Result:
    model: Any = FAMILIES[family]().to(dtype)
    stage: dict[str, Any] = {"scheme": scheme, "group_size_mismatch": "smaller"}
    if "a8" in scheme and family == "mixtral":  # fused experts take float inputs alone
        stage["targets"] = {"exclude": ["*experts*"]}
    return goldstick.apply(model, {"stages": [{"rtn": stage}]})


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("scheme", TAKEN)
@pytest.mark.parametrize("family", ["llama_gqa", "mixtral", "gpt2"])
def test_triton_answers_as_the_reference(
    family: str, scheme: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compressed(family, scheme, dtype)
    assert set(backends_of(result.report, GPU)) == {"triton"}
    inputs = {name: value.to(GPU) for name, value in sample_inputs(result.model).items()}  # type: ignore[arg-type]
    model: Any = result.model.to(GPU)
    with torch.no_grad():
        found = output_tensor(model, inputs).double()
        monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
        expected = output_tensor(model, inputs).double()
    assert (found - expected).norm() <= ALLOWED[dtype]["a8" in scheme] * expected.norm()


@pytest.mark.parametrize("scheme", LEFT)
def test_what_triton_does_not_read_is_dequantized(scheme: str) -> None:
    result = compressed("llama_gqa", scheme, torch.bfloat16)
    assert set(backends_of(result.report, GPU)) == {"reference"}
    inputs = sample_inputs(result.model)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = output_tensor(result.model, inputs).double()  # type: ignore[arg-type]
        there: Any = result.model.to(GPU)
        found = output_tensor(there, {name: value.to(GPU) for name, value in inputs.items()}).double().cpu()
    assert (found - expected).norm() <= 0.05 * expected.norm()


@pytest.mark.parametrize("scheme", TAKEN)
def test_text_is_generated_token_by_token_as_the_reference_does(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = compressed("llama_gqa", scheme, torch.float32).model.to(GPU)
    prompt = torch.arange(3, 9, device=GPU).unsqueeze(0)
    settings: dict[str, Any] = {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False}
    found = model.generate(prompt, **settings)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    assert torch.equal(found, model.generate(prompt, **settings))


def test_calls_are_captured_in_a_graph_and_replayed() -> None:
    model: Any = compressed("llama_gqa", "w4a16-g32", torch.bfloat16).model.to(GPU)
    layer, x = model.model.layers[0].mlp, torch.randn(3, model.config.hidden_size, device=GPU, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = layer(x)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(x)
        graph.replay()
    assert torch.equal(found, expected)
