"""K-quants in checkpoints: written, proven, read by goldstick, by the gguf package and by transformers, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick import api
from goldstick.core.mixture import MIXTURES
from goldstick.errors import FormatError
from goldstick.formats.gguf import GGUF_NAME
from goldstick.formats.gguf_superblocks import LAYOUTS
from goldstick.hf.checkpoint import open_quantized
from goldstick.jobs.doctor.examine import examine
from goldstick.recipes.sentence import parse
from tests.support.tiny_models import GROUPED, tiny

pytestmark = pytest.mark.usefixtures("all_proofs_here")

WIDE = {**GROUPED, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama whose rows divide into superblocks, in bfloat16, and its head tied to the embedding."""
    folder = tmp_path_factory.mktemp("float") / "wide"
    model = tiny(LlamaForCausalLM, LlamaConfig(**{**WIDE, "tie_word_embeddings": True}))()
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def ids() -> torch.Tensor:
    return torch.randint(0, WIDE["vocab_size"], (2, 24), generator=torch.Generator().manual_seed(5))


def recipe(words: str, format_: str) -> dict[str, Any]:
    return {**parse(words).recipe(), "export": {"format": format_}}


def types_of(file: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_type_is_stored_in_gguf_and_natively_with_the_same_weights(name: str, source: Path, tmp_path: Path) -> None:
    goldstick.quantize(source, recipe(f"rtn-{name}", "native"), output=tmp_path / "native")
    goldstick.quantize(source, recipe(f"rtn-{name}", "gguf"), output=tmp_path / "gguf")
    one, other = (goldstick.load(tmp_path / kind) for kind in ("native", "gguf"))
    assert torch.equal(one(ids()).logits, other(ids()).logits)
    api.export(tmp_path / "native", "gguf", output=tmp_path / "exported")
    assert (tmp_path / "exported" / GGUF_NAME).read_bytes() == (tmp_path / "gguf" / GGUF_NAME).read_bytes()
    api.export(tmp_path / "gguf", "native", output=tmp_path / "back")
    assert torch.equal(goldstick.load(tmp_path / "back")(ids()).logits, one(ids()).logits)
    assert {layer.scheme.label for layer in open_quantized(tmp_path / "gguf").stored.layers} == {name}
    for kind in ("native", "gguf"):
        assert [found.check for found in examine(tmp_path / kind).findings if found.severity == "fault"] == []


@pytest.mark.parametrize("name", ["q4_k_m", "q2_k_m", "iq4_nl_m"])
def test_a_mixture_is_a_file_that_transformers_reads(name: str, source: Path, tmp_path: Path) -> None:
    goldstick.quantize(source, recipe(f"rtn-{name}", "gguf"), output=tmp_path / "out")
    found = types_of(tmp_path / "out" / GGUF_NAME)
    mixture = MIXTURES[name]
    assert found["token_embd.weight"] == "Q6_K"
    assert found["blk.0.ffn_up.weight"] == mixture.general.upper()
    assert {kind for weight, kind in found.items() if "norm" in weight} == {"F32"}
    reader = gguf.GGUFReader(tmp_path / "out" / GGUF_NAME)
    assert reader.fields["general.file_type"].contents() == mixture.file_type
    mine = goldstick.load(tmp_path / "out", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file=GGUF_NAME, dtype=torch.float32)
    for weight, kind in found.items():
        assert kind in ("F32", "Q6_K", "Q4_K", "Q3_K", "Q2_K", "Q5_K", "IQ4_NL"), weight
    torch.testing.assert_close(mine(ids()).logits, theirs(ids()).logits, rtol=0, atol=2e-2)


def test_a_file_of_llama_cpps_own_blocks_is_packed_as_they_are(source: Path, tmp_path: Path) -> None:
    goldstick.quantize(source, recipe("rtn-q4_k", "gguf"), output=tmp_path / "out")
    stored = open_quantized(tmp_path / "out").stored
    blocks = {tensor.name: np.asarray(tensor.data) for tensor in gguf.GGUFReader(tmp_path / "out" / GGUF_NAME).tensors}
    layer = next(layer for layer in stored.layers if layer.name.endswith("layers.1.mlp.down_proj.weight"))
    parts = stored.read(layer)
    assert np.array_equal(parts["_q4_k"].numpy(), blocks["blk.1.ffn_down.weight"])
    weight = stored.format.unpack(parts, layer.scheme, layer.shape[-1]).dequantize()
    theirs = gguf.quants.dequantize(blocks["blk.1.ffn_down.weight"], gguf.GGMLQuantizationType.Q4_K)
    assert np.array_equal(weight.numpy(), theirs)


@pytest.mark.parametrize("format_", ["compressed-tensors", "gptq", "awq", "fp8", "modelopt"])
def test_other_formats_refuse_superblocks_while_planning(format_: str, source: Path) -> None:
    with pytest.raises(FormatError, match="cannot hold this"):
        api.plan(source, recipe("rtn-q4_k", format_))
