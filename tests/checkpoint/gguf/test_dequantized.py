"""GGUF files in block types that are not run: read as the numbers their blocks stand for, and taken as models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick.checkpoint.gguf.dequantized import DEQUANTIZED
from goldstick.checkpoint.gguf.file import GGML_TYPES, NUMBER_OF_TYPE, read_gguf
from goldstick.checkpoint.gguf.tensors import gguf_tensors
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.errors import FormatError
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here
from tests.support.small_checkpoints import small_tokenizer

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def half(data: bytes) -> float:
    return float(numpy.frombuffer(data, dtype=numpy.float16)[0])


def tq2_0(block: bytes) -> list[float]:
    """Two halves of 128: four codes of 2 bits in a byte, 32 weights apart, of −1, 0, 1 and 2."""
    d = half(block[64:])
    return [
        d * ((block[32 * part + column] >> 2 * quarter & 3) - 1)
        for part in (0, 1)
        for quarter in range(4)
        for column in range(32)
    ]


def nvfp4(block: bytes) -> list[float]:
    """Four FP8 scales, and for each 8 bytes of which the low halves come first."""
    numbers = []
    for part, scale in enumerate(torch.tensor(list(block[:4]), dtype=torch.uint8).view(torch.float8_e4m3fn).tolist()):
        data = block[4 + 8 * part : 12 + 8 * part]
        codes = [byte & 15 for byte in data] + [byte >> 4 for byte in data]
        numbers += [scale * FP4[code & 7] * (-1 if code & 8 else 1) for code in codes]
    return numbers


READ_BY_HAND = {"TQ2_0": tq2_0, "NVFP4": nvfp4}


def random_blocks(kind: str, rows: int, columns: int) -> Tensor:
    """Blocks of random codes whose scales are small and finite."""
    _, weights, nbytes = GGML_TYPES[NUMBER_OF_TYPE[kind]]
    random = torch.Generator().manual_seed(7)
    blocks = torch.randint(0, 256, (rows * columns // weights, nbytes), generator=random, dtype=torch.uint8)
    if kind == "NVFP4":
        blocks[:, :4] = blocks[:, :4] % 16 + 1
    else:
        blocks[:, 64:] = (torch.rand(len(blocks), 1, generator=random).to(torch.float16) / 64).view(torch.uint8)
    return blocks.reshape(rows, -1)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with TQ2_0 and NVFP4 beside Q8_0."""
    folder = tmp_path_factory.mktemp("mixture")
    config = LlamaConfig(
        vocab_size=48, hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        torch.manual_seed(0)
        LlamaForCausalLM(config).to(torch.float16).save_pretrained(folder / "float")
        small_tokenizer(folder / "float")
        recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}], "export": {"format": "gguf"}}
        goldstick.quantize(folder / "float", recipe, output=folder / "q8", proof="tensors")
    found, data = read_gguf(folder / "q8" / "model.gguf"), (folder / "q8" / "model.gguf").read_bytes()
    kinds = {"attn_q.weight": "NVFP4", "ffn_up.weight": "TQ2_0", "ffn_down.weight": "NVFP4"}
    written: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in found.tensors.items():
        kind = next((kind for ending, kind in kinds.items() if name.endswith(ending)), None)
        raw = torch.frombuffer(bytearray(data[tensor.start : tensor.start + tensor.nbytes]), dtype=torch.uint8)
        rows = raw.reshape(tensor.shape[0], -1) if len(tensor.shape) == 2 else raw
        written[name] = (tensor.type, rows) if kind is None else (kind, random_blocks(kind, *tensor.shape))
    metadata = {key: value for key, value in found.metadata.items() if key != "general.architecture"}
    specs = {name: (kind, rows.shape) for name, (kind, rows) in written.items()}
    with GgufWriter(folder / "mixture.gguf", "llama", metadata, specs) as writer:
        for name, (_, rows) in written.items():
            writer.write(name, rows)
    return folder / "mixture.gguf"


def test_numbers_are_those_of_loops_over_the_layout(mixture: Path) -> None:
    file, tensors = read_gguf(mixture), gguf_tensors(mixture, torch.bfloat16)
    names = {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    for name, parameter in names.items():
        stored = file.tensors[f"blk.0.{name}.weight"]
        read = READ_BY_HAND[stored.type]
        data = mixture.read_bytes()[stored.start : stored.start + stored.nbytes]
        nbytes = GGML_TYPES[NUMBER_OF_TYPE[stored.type]][2]
        by_hand = [number for start in range(0, len(data), nbytes) for number in read(data[start : start + nbytes])]
        info = tensors[f"model.layers.0.{parameter}.weight"]
        expected = torch.tensor(by_hand).reshape(stored.shape).to(torch.bfloat16)
        assert (info.dtype, info.shape, info.stored_as) == (torch.bfloat16, stored.shape, stored.type)
        torch.testing.assert_close(info.read(), expected, rtol=2**-7, atol=0)  # a product may round to a neighbour
        assert info.stored_nbytes == stored.nbytes


def test_rows_of_heads_come_in_transformers_order(mixture: Path) -> None:
    blocks = random_blocks("NVFP4", 256, 256).reshape(-1, 36)
    by_hand = torch.tensor([nvfp4(bytes(block.tolist())) for block in blocks]).reshape(256, 256)
    turned = by_hand.reshape(4, 32, 2, 256).transpose(1, 2).reshape(256, 256)
    found = gguf_tensors(mixture)["model.layers.0.self_attn.q_proj.weight"].read()
    torch.testing.assert_close(found, turned, rtol=1e-6, atol=0)


def test_every_type_is_one_that_the_package_reads() -> None:
    assert all(hasattr(gguf.GGMLQuantizationType, kind) for kind in DEQUANTIZED)
    for kind in DEQUANTIZED:
        _, weights, nbytes = GGML_TYPES[NUMBER_OF_TYPE[kind]]
        found = gguf.quants.dequantize(
            numpy.zeros((1, nbytes), dtype=numpy.uint8), gguf.GGMLQuantizationType(NUMBER_OF_TYPE[kind])
        )
        assert found.shape == (1, weights)


def test_it_is_a_model_and_a_source(mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    model: Any = goldstick.load(mixture)
    up = model.model.layers[0].mlp.up_proj
    assert type(up.weight) is torch.nn.Parameter and up.weight.dtype is torch.float32
    assert examine(mixture).findings == ()
    with pytest.raises(FormatError, match=r"is stored as .*, which no other format holds without loss"):
        goldstick.export(mixture, "native", output=tmp_path / "out")
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}
    done = goldstick.quantize(mixture, recipe, output=tmp_path / "w4")
    assert done.report.warnings[0].startswith("Quantized from gguf (w8a16-g32, ")
    assert "TQ2_0" in done.report.warnings[0] and "NVFP4" in done.report.warnings[0]
    ids = torch.arange(16)[None]
    with torch.no_grad():
        expected = goldstick.apply(
            model, {"stages": [{"rtn": {"scheme": "w4a16-g32", "targets": {"include": ["*up_proj"]}}}]}
        )
        found: Any = goldstick.load(tmp_path / "w4")
        one, other = found.model.layers[0].mlp.up_proj, expected.model.model.layers[0].mlp.up_proj
        x = torch.randn(3, 256)
        assert torch.equal(one(x), other(x))
        assert bool(found(ids).logits.isfinite().all())


def test_an_infinite_scale_is_refused(mixture: Path, tmp_path: Path) -> None:
    stored, data = read_gguf(mixture).tensors["blk.0.ffn_up.weight"], bytearray(mixture.read_bytes())
    data[stored.start + 64 : stored.start + 66] = b"\x00\x7c"
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(FormatError, match=r"up_proj\.weight in .* holds TQ2_0 blocks whose scales are NaN or infinite"):
        gguf_tensors(tmp_path / "model.gguf")["model.layers.0.mlp.up_proj.weight"].read()
