"""Our reader and writer of safetensors against the library's, and headers nobody should believe."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from goldstick.checkpoint.safetensors_file import DTYPES, SafetensorsWriter, file_head, read_header
from goldstick.errors import FormatError, OutputError


def examples() -> dict[str, Tensor]:
    """A tensor of every dtype, an empty one, a scalar, one that is no contiguous memory."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 2, (3, 5), generator=generator)
    tensors = {f"x.{name}": numbers.to(dtype) for name, dtype in DTYPES.items()}
    transposed = torch.randn(4, 6, generator=generator).T
    return {**tensors, "empty": torch.empty(0, 4), "scalar": torch.tensor(2.5), "transposed": transposed}


def write(path: Path, tensors: dict[str, Tensor]) -> SafetensorsWriter:
    with SafetensorsWriter(path, {name: (value.shape, value.dtype) for name, value in tensors.items()}) as writer:
        for name, value in tensors.items():
            writer.write(name, value)
    return writer


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and as_bytes(one) == as_bytes(other)


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    tensors = examples()
    writer = write(tmp_path / "x.safetensors", tensors)
    found = load_file(tmp_path / "x.safetensors")
    assert set(found) == set(tensors)
    assert all(same(found[name], value) for name, value in tensors.items())
    assert writer.sha256.hexdigest() == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {name: value.contiguous() for name, value in examples().items()}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    infos = read_header(tmp_path / "x.safetensors")
    assert set(infos) == set(tensors)
    assert all(same(infos[name].read(), value) for name, value in tensors.items())


def test_reading_every_tensor_in_order_hashes_the_whole_file(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", examples())
    infos = read_header(tmp_path / "x.safetensors")
    digest = hashlib.sha256(file_head(tmp_path / "x.safetensors"))
    for info in infos.values():
        info.read(digest)
    assert digest.hexdigest() == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()


def test_tensors_must_come_as_they_were_promised(tmp_path: Path) -> None:
    specs = {"a": (torch.Size([2]), torch.float32), "b": (torch.Size([3]), torch.float32)}
    for name, value in (
        ("b", torch.zeros(3)),
        ("a", torch.zeros(3)),
        ("a", torch.zeros(2).half()),
        ("c", torch.zeros(1)),
    ):
        with (
            pytest.raises(FormatError, match="was due"),
            SafetensorsWriter(tmp_path / f"{name}{value.dtype}{len(value)}", specs) as writer,
        ):
            writer.write(name, value)
    with (
        pytest.raises(FormatError, match="before 1 tensors came"),
        SafetensorsWriter(tmp_path / "short", specs) as writer,
    ):
        writer.write("a", torch.zeros(2))


def test_a_file_that_exists_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(FileExistsError):
        SafetensorsWriter(tmp_path / "x", {})
    assert (tmp_path / "x").read_text() == "mine"


def test_a_full_disk_is_an_output_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")

    class Full(SafetensorsWriter):
        def __init__(self) -> None:
            self.file = Path("/dev/full")
            self.sha256 = hashlib.sha256()
            self._specs = {"a": (torch.Size([2]), torch.float32)}
            self._waiting = ["a"]
            self._stream = self.file.open("wb", buffering=0)

    with pytest.raises(OutputError, match="No space left on device"), Full() as writer:
        writer.write("a", torch.zeros(2))


def spoil(path: Path, header: Any, data: bytes = b"\0" * 16) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
NEXT = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}
LIES: dict[str, Any] = {
    "no_json": b"{nonsense",
    "a_list": [1, 2],
    "a_name_twice": b'{"a": %s, "a": %s}' % (json.dumps(GOOD).encode(), json.dumps(NEXT).encode()),
    "an_unknown_dtype": {"a": {**GOOD, "dtype": "F12"}, "b": NEXT},
    "no_shape": {"a": {"dtype": "F32", "data_offsets": [0, 8]}, "b": NEXT},
    "a_negative_size": {"a": {**GOOD, "shape": [-2]}, "b": NEXT},
    "a_fractional_size": {"a": {**GOOD, "shape": [2.0]}, "b": NEXT},
    "a_boolean_size": {"a": {**GOOD, "shape": [True, 2]}, "b": NEXT},
    "a_size_that_overflows": {"a": {**GOOD, "shape": [2**62, 4]}, "b": NEXT},
    "text_for_a_shape": {"a": {**GOOD, "shape": "22"}, "b": NEXT},
    "one_offset": {"a": {**GOOD, "data_offsets": [0]}, "b": NEXT},
    "more_bytes_than_the_shape": {"a": {**GOOD, "data_offsets": [0, 16]}},
    "bytes_backwards": {"a": {**GOOD, "data_offsets": [8, 0]}, "b": NEXT},
    "an_overlap": {"a": GOOD, "b": {**GOOD, "data_offsets": [4, 12]}},
    "a_gap": {"b": NEXT},
    "too_few_bytes_covered": {"a": GOOD},
    "more_than_the_file": {"a": GOOD, "b": NEXT, "c": {**GOOD, "data_offsets": [16, 24]}},
    "nine_dimensions": {"a": {**GOOD, "shape": [1] * 8 + [2]}, "b": NEXT},
    "a_control_character": {"a\n": GOOD, "b": NEXT},
    "no_name": {"": GOOD, "b": NEXT},
    "deep_nesting": b'{"a":' * 5000 + b"1" + b"}" * 5000,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(lie: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="liar"):
        read_header(spoil(tmp_path / "liar.safetensors", LIES[lie]))


def test_the_honest_header_next_to_them_is_read(tmp_path: Path) -> None:
    assert list(read_header(spoil(tmp_path / "x", {"b": NEXT, "a": GOOD, "__metadata__": {"format": "pt"}}))) == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"\xff" * 8, b"\xff" * 64, struct.pack("<Q", 2**40) + b"{}", b"\0" * 8]
)
def test_what_is_no_safetensors_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FormatError, match="not a safetensors file"):
        read_header(tmp_path / "x")


def test_a_file_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100)}, tmp_path / "x")
    info = read_header(tmp_path / "x")["a"]
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-4])
    with pytest.raises(FormatError, match="ends inside the tensor 'a'"):
        info.read()


@given(flips=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=8))
def test_bytes_changed_at_random_are_refused_or_read_never_worse(
    flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x"
    save_file({"a": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.int64)}, path)
    content = bytearray(path.read_bytes())
    for position, value in flips:
        content[position % len(content)] = value
    path.write_bytes(content)
    try:
        infos = read_header(path)
    except FormatError:
        return
    assert sum(info.nbytes for info in infos.values()) <= len(content)
    for info in infos.values():
        assert info.read().shape == info.shape
