"""Headers of GGUF files: what a slow writer spells out is found, and what cannot be is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from goldstick.checkpoint.gguf.file import GGML_TYPES, read_gguf
from goldstick.checkpoint.gguf.tensors import gguf_tensors
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.errors import FormatError

CODES = {"u8": (0, "B"), "u32": (4, "I"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q")}
LLAMA: list[tuple[str, str, Any]] = [
    ("general.architecture", "str", "llama"),
    ("llama.attention.head_count", "u32", 2),
    ("llama.attention.head_count_kv", "u32", 1),
]
#: name, dimensions from the innermost, type, offset.
VECTOR: tuple[str, list[int], int, int] = ("output_norm.weight", [4], 0, 0)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: str, value: Any) -> bytes:
    if kind == "str":
        return text(key) + struct.pack("<I", 8) + text(value)
    if kind == "texts":
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    number, code = CODES[kind]
    return text(key) + struct.pack(f"<I{code}", number, value)


def tensor(name: str, dimensions: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def file_of(
    entries: list[tuple[str, str, Any]], tensors: list[tuple[str, list[int], int, int]], data: int, version: int = 3
) -> bytes:
    """A GGUF file whose data are ``data`` bytes, counting up."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    head += b"".join(entry(*item) for item in entries) + b"".join(tensor(*item) for item in tensors)
    return head + b"\0" * (-len(head) % 32) + bytes(number % 251 for number in range(data))


def write(folder: Path, data: bytes) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(data)
    return file


def test_a_header_is_read_as_it_was_spelled_out(tmp_path: Path) -> None:
    entries = [*LLAMA, ("a.flag", "bool", True), ("a.number", "f32", 0.5), ("a.words", "texts", ["x", "", "é"])]
    found = read_gguf(write(tmp_path, file_of(entries, [VECTOR, ("token_embd.weight", [2, 3], 1, 32)], 32 + 12)))
    assert found.metadata["a.flag"] is True
    assert found.metadata["a.number"] == 0.5
    assert found.metadata["a.words"] == ["x", "", "é"]
    embedding = found.tensors["token_embd.weight"]
    assert (embedding.type, embedding.shape, embedding.nbytes) == ("F16", torch.Size([3, 2]), 12)
    assert embedding.start % 32 == 0


def test_types_have_the_sizes_that_the_gguf_package_gives_them() -> None:
    for number, (name, block, nbytes) in GGML_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (block, nbytes)


GOOD = file_of(LLAMA, [VECTOR], 16)
BAD: dict[str, tuple[bytes, str]] = {
    "another file": (b"PK\3\4" + GOOD[4:], "does not begin with the letters GGUF"),
    "nothing": (b"", "was cut short"),
    "version": (file_of(LLAMA, [VECTOR], 16, version=1), "version 1"),
    "big-endian": (file_of(LLAMA, [VECTOR], 16, version=3 << 24), "little-endian"),
    "cut in the header": (GOOD[:90], "ends inside the header"),
    "cut in the data": (GOOD[:-1], "cut short or damaged"),
    "more than promised": (GOOD + bytes(64), "cut short or damaged"),
    "too many tensors": (GOOD[:8] + struct.pack("<Q", 1 << 40) + GOOD[16:], "claims 1,099,511,627,776 tensors"),
    "too many entries": (GOOD[:16] + struct.pack("<Q", 1 << 40) + GOOD[24:], "metadata entries"),
    "a long key": (GOOD[:24] + struct.pack("<Q", 1 << 40) + GOOD[32:], "a string of 1,099,511,627,776 bytes"),
    "no text": (GOOD[:32] + b"\xff" + GOOD[33:], "no UTF-8"),
    "the same key twice": (file_of([*LLAMA, LLAMA[1]], [VECTOR], 16), "'llama.attention.head_count' twice"),
    "the same tensor twice": (file_of(LLAMA, [VECTOR, ("output_norm.weight", [4], 0, 32)], 48), "twice"),
    "overlap": (file_of(LLAMA, [VECTOR, ("output_norm.bias", [4], 0, 0)], 16), "overlap"),
    "gap": (file_of(LLAMA, [("output_norm.weight", [4], 0, 64)], 80), "leave a gap"),
    "offset": (file_of(LLAMA, [("output_norm.weight", [4], 0, 4)], 20), "do not fit the type"),
    "huge": (file_of(LLAMA, [("output_norm.weight", [1 << 62], 0, 0)], 16), "do not fit the type"),
    "no dimensions": (file_of(LLAMA, [("output_norm.weight", [], 0, 0)], 16), "claims 0 dimensions"),
    "empty": (file_of(LLAMA, [("output_norm.weight", [0], 0, 0)], 0), "do not fit the type"),
    "half a block": (file_of(LLAMA, [("token_embd.weight", [48, 1], 2, 0)], 27), "do not fit the type Q4_0"),
    "type": (file_of(LLAMA, [("output_norm.weight", [4], 77, 0)], 16), "unknown type 77"),
    "name": (file_of(LLAMA, [("../x y", [4], 0, 0)], 16), "odd name"),
    "alignment": (file_of([*LLAMA, ("general.alignment", "u32", 48)], [VECTOR], 16), "alignment 48"),
    "a long array": (
        GOOD[:24] + text("x") + struct.pack("<IIQ", 9, 0, 1 << 40) + GOOD[40:],
        "array of 1,099,511,627,776 values",
    ),
    "an array in an array": (GOOD[:24] + text("x") + struct.pack("<IIQ", 9, 9, 1) + GOOD[40:], "array of the type 9"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_damaged_or_hostile_header_is_refused(how: str, tmp_path: Path) -> None:
    data, complaint = BAD[how]
    assert read_gguf(write(tmp_path, GOOD)).tensors
    with pytest.raises(FormatError, match=complaint):
        read_gguf(write(tmp_path, data))


@pytest.mark.parametrize(
    ("entries", "tensors", "data", "complaint"),
    [
        (
            [("general.architecture", "str", "mamba")],
            [VECTOR],
            16,
            "architecture 'mamba', and goldstick reads llama, ",
        ),
        ([], [VECTOR], 16, "architecture None"),
        (LLAMA[:1], [VECTOR], 16, "declares None heads"),
        (LLAMA, [("blk.0.ssm_a", [4], 0, 0)], 16, "'blk.0.ssm_a', which the architecture 'llama' does not have"),
        (LLAMA, [("blk.00.attn_q.weight", [4, 4], 0, 0)], 64, "'blk.00.attn_q.weight', which"),
        (LLAMA, [("output.weight", [256, 1], 15, 0)], 292, r"'output.weight' is stored as Q8_K.*OUT Q4_K_M"),
        (
            LLAMA,
            [("output.weight", [256], 12, 0)],
            144,
            r"as Q4_K \[256\], and goldstick reads matrices of Q4_0, Q4_1, ",
        ),
        (LLAMA, [("blk.0.attn_q.weight", [4, 6], 0, 0)], 96, "6 rows of 'blk.0.attn_q.weight' do not divide into 2"),
    ],
)
def test_a_model_that_goldstick_does_not_read_is_refused_by_name(
    entries: list[tuple[str, str, Any]], tensors: list[Any], data: int, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=complaint):
        gguf_tensors(write(tmp_path, file_of(entries, tensors, data)))


def test_a_vector_that_is_no_number_of_the_models_dtype_is_not_rounded(tmp_path: Path) -> None:
    file = write(tmp_path, file_of(LLAMA, [VECTOR], 16))
    exact = gguf_tensors(file)["model.norm.weight"].read()
    assert exact.numpy().tobytes() == bytes(range(16))
    with pytest.raises(FormatError, match=r'no bfloat16 numbers.*Set "dtype" there to float32'):
        gguf_tensors(file, torch.bfloat16)["model.norm.weight"].read()


def test_the_writer_takes_what_was_promised_once(tmp_path: Path) -> None:
    specs = {"output_norm.weight": ("F32", torch.Size([16])), "output_norm.bias": ("F32", torch.Size([16]))}
    with GgufWriter(tmp_path / "a.gguf", "llama", {}, specs) as writer:
        writer.write("output_norm.bias", torch.zeros(4))
        with pytest.raises(FormatError, match=r"output_norm\.bias \[4\] came, of which 16 bytes .* and 16 are written"):
            writer.write("output_norm.bias", torch.zeros(4))
        with pytest.raises(FormatError, match=r"output_norm\.weight \[5\] came, of which 16 bytes were promised"):
            writer.write("output_norm.weight", torch.zeros(5))
        with pytest.raises(FormatError, match=r"token_embd\.weight \[1\] came, of which 0 bytes were promised"):
            writer.write("token_embd.weight", torch.zeros(1))
        writer.write("output_norm.weight", torch.ones(2), at=8)
        writer.write("output_norm.weight", torch.zeros(2))
    assert gguf.GGUFReader(tmp_path / "a.gguf").tensors[0].data.tolist() == [0, 0, 1, 1]
    with (
        pytest.raises(FormatError, match="closed before 1 tensors came"),
        GgufWriter(tmp_path / "b.gguf", "llama", {}, specs) as writer,
    ):
        writer.write("output_norm.weight", torch.zeros(4))
    with GgufWriter(tmp_path / "c.gguf", "llama", {"llama.x": 1.5, "y": True, "z": ["a", "b"]}, specs) as writer:
        writer.write("output_norm.weight", torch.ones(4))
        writer.write("output_norm.bias", torch.zeros(4))
    found = read_gguf(tmp_path / "c.gguf")
    assert found.metadata == {"general.architecture": "llama", "llama.x": 1.5, "y": True, "z": ["a", "b"]}
    assert gguf.GGUFReader(tmp_path / "c.gguf").tensors[0].data.tolist() == [1, 1, 1, 1]
