"""Importance matrices as GGUF files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from goldstick.checkpoint.gguf.importance import read_importance, write_importance
from goldstick.core.input_squares import InputSquares
from goldstick.errors import FormatError

NAMES = ("blk.0.attn_q.weight", "blk.0.ffn_down_exps.weight")


def _found() -> dict[str, InputSquares]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: InputSquares(
            sums=torch.rand(matrices, width, generator=generator), counts=torch.arange(matrices, dtype=torch.float32)
        )
        for name, matrices, width in ((NAMES[0], 1, 256), (NAMES[1], 3, 64))
    }


def _write(file: Path) -> None:
    write_importance(file, _found(), datasets=["stories"], chunks=128, chunk_size=256)


def test_an_importance_matrix_is_read_as_it_was_written(tmp_path: Path) -> None:
    _write(tmp_path / "i.gguf")
    found = read_importance(tmp_path / "i.gguf")
    assert list(found) == list(NAMES)
    for name, squares in _found().items():
        assert torch.equal(found[name].sums, squares.sums)
        assert torch.equal(found[name].counts, squares.counts)


def test_the_gguf_package_finds_what_llama_cpp_looks_for(tmp_path: Path) -> None:
    _write(tmp_path / "i.gguf")
    reader = gguf.GGUFReader(tmp_path / "i.gguf")
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["stories"]
    assert reader.fields["imatrix.chunk_count"].contents() == 128
    assert reader.fields["imatrix.chunk_size"].contents() == 256
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert np.array_equal(tensors[f"{NAMES[1]}.in_sum2"].data, _found()[NAMES[1]].sums.numpy())
    assert tensors[f"{NAMES[1]}.counts"].data.shape == (3, 1)


def test_a_file_written_by_the_gguf_package_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "i.gguf", "imatrix")
    writer.add_type("imatrix")
    writer.add_tensor("output.weight.in_sum2", np.full((1, 8), 6, dtype=np.float32))
    writer.add_tensor("output.weight.counts", np.full((1, 1), 3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (squares,) = read_importance(tmp_path / "i.gguf").values()
    assert torch.equal(squares.mean_square(), torch.full((1, 8), 2.0))


def test_all_columns_of_an_expert_without_tokens_count_alike() -> None:
    squares = InputSquares(sums=torch.tensor([[0.0, 0.0], [8.0, 2.0]]), counts=torch.tensor([0.0, 2.0]))
    assert torch.equal(squares.mean_square(), torch.tensor([[1.0, 1.0], [4.0, 1.0]]))


def _gguf(file: Path, kind: str, **tensors: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(file, "imatrix")
    writer.add_type(kind)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


_ONE = np.ones((1, 4), dtype=np.float32)


@pytest.mark.parametrize(
    ("kind", "tensors", "said"),
    [
        ("model", {"a.in_sum2": _ONE, "a.counts": _ONE[:, :1]}, "is no importance matrix"),
        ("imatrix", {"a.in_sum2": _ONE}, "without its other half"),
        ("imatrix", {"a.counts": _ONE[:, :1]}, "without its other half"),
        ("imatrix", {"a.in_sum2": _ONE, "a.counts": _ONE[:, :2]}, "sums of 1 matrices and counts of 2"),
        ("imatrix", {"a.in_sum2": -_ONE, "a.counts": _ONE[:, :1]}, "negative, NaN or infinite"),
        ("imatrix", {"a.in_sum2": _ONE.astype(np.float16), "a.counts": _ONE[:, :1]}, "importance matrices are F32"),
    ],
)
def test_what_is_no_importance_matrix_is_refused(
    tmp_path: Path, kind: str, tensors: dict[str, np.ndarray], said: str
) -> None:
    with pytest.raises(FormatError, match=said):
        read_importance(_gguf(tmp_path / "i.gguf", kind, **tensors))
