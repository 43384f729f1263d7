"""The float64 copy: small, apart from the model, and nowhere shorter than float64."""

from __future__ import annotations

import torch
from torch import nn

from goldstick.structure import Network
from goldstick.structure.probe.double import double_copy, double_precision, small_inputs
from tests.support.tiny_models import FAMILIES, meta_model, output_tensor, sample_inputs


def test_code_that_asks_for_less_gets_float64() -> None:
    x = torch.randn(3, dtype=torch.float64)
    with double_precision():
        assert torch.equal(x.float(), x) and torch.equal(x.to(torch.float32), x)
        assert nn.functional.softmax(x, dim=-1, dtype=torch.float32).dtype == torch.float64
        assert torch.zeros(2, dtype=torch.bfloat16).dtype == torch.float64
    assert x.float().dtype == torch.float32


def test_the_copy_of_all_blocks_computes_what_the_model_does() -> None:
    model = FAMILIES["qwen3"]()
    network, inputs = Network(model), sample_inputs(model)
    copied = double_copy(network, network.blocks, rows=None)
    with double_precision():
        exact = output_tensor(copied, inputs)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), output_tensor(model, inputs), rtol=1e-3, atol=1e-4)
    for parameter in copied.parameters():
        parameter.data.zero_()
    assert all(bool(parameter.any()) for parameter in model.parameters())


def test_the_copy_keeps_one_block_under_its_name_and_a_few_rows_of_the_vocabulary() -> None:
    for model in (FAMILIES["opt"](), meta_model("opt")):
        copied = double_copy(Network(model), {"model.decoder.layers.1"}, rows=20)
        names = [name for name, _ in copied.named_parameters()]
        assert any(name.startswith("model.decoder.layers.1.") for name in names)
        assert not any(name.startswith("model.decoder.layers.0.") for name in names)
        assert copied.get_input_embeddings().weight.shape == copied.get_output_embeddings().weight.shape == (20, 64)
        assert copied.get_input_embeddings().weight is not copied.get_output_embeddings().weight
        ids = small_inputs({"input_ids": torch.arange(16).reshape(1, 16) * 7}, rows=20)
        with double_precision():
            assert output_tensor(copied, ids).shape == (1, 16, 20)
