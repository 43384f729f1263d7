"""A process that dies at its n-th step of writing: what came before is on disk, nothing that comes after is."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import goldstick
from goldstick.checkpoint.shards import ShardedWriter, write_entries
from goldstick.core import rename
from goldstick.jobs.quantize import by_blocks, quantize, write
from goldstick.jobs.quantize.quantize import Quantized
from goldstick.jobs.save import finish
from tests.support.gguf_tokenizers import byte_level, save
from tests.support.tiny_tokenizer import write_tokenizer

#: Bytes of a file of weights; recipes ask for a megabyte at least, which these models do not have.
LIMIT = 20_000


class Died(BaseException):
    """The process is dead: no code may take this for an error that it can handle."""


class CrashPoints:
    """Counts every step that changes a folder, and dies at one of them.

    Steps are opening a file for writing, writing (two: before the first byte and after half of them), truncating,
    syncing, renaming, removing and making directories. After its death each further step dies, too, so that no
    clean-up does anything.

    Args:
        root: The folder.
        last: The step that is not done; none where ``None``.
    """

    def __init__(self, root: Path, last: int | None) -> None:
        self._root, self._last = os.path.realpath(root), last
        self.steps: list[str] = []

    @property
    def dead(self) -> bool:
        """Whether the step was reached."""
        return self._last is not None and len(self.steps) >= self._last

    def step(self, what: str) -> None:
        """Count a step, or die."""
        if self.dead:
            raise Died(what)
        self.steps.append(what)
        if self.dead:
            raise Died(what)

    def within(self, path: Any) -> bool:
        """Whether a path lies in the folder."""
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self._root)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Everything this process writes in the folder counts."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("rename", "replace", "unlink", "remove", "rmdir", "mkdir"):
                patch.setattr(os, name, self._counted(name, getattr(os, name)))
            patch.setattr(rename, "_renameat2", self._counted("renameat2", rename._renameat2))
            patch.setattr(os, "fsync", lambda _: self.step("fsync"))  # this process dies, not the machine
            patch.setattr(io, "open", self._opening(io.open))
            patch.setattr(builtins, "open", self._opening(builtins.open))
            yield

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self.within(path) or kwargs.get("dir_fd") is not None:
                self.step(f"{name} {path}")
            return real(path, *args, **kwargs)

        return call

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not self.within(file) or not set(mode) & set("wxa+"):
                return real(file, mode, *args, **kwargs)
            self.step(f"open {file} {mode}")
            return _Written(real(file, mode, *args, **kwargs), self, str(file))

        return call


class _Written:
    """An open file whose writes are steps."""

    def __init__(self, file: Any, points: CrashPoints, name: str) -> None:
        self._file, self._points, self._name = file, points, name

    def write(self, data: Any) -> int:
        self._points.step(f"write {self._name}")
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._points.step(f"write the other half of {self._name}")
        self._file.write(data[half:])
        return len(data)

    def truncate(self, length: int) -> int:
        self._points.step(f"truncate {self._name}")
        size: int = self._file.truncate(length)
        return size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def tiny_checkpoint(folder: Path, blocks: int, *, merges: bool = False) -> Path:
    """A llama of a few blocks, hidden 32, with a tokenizer; one with ``merges`` as GGUF files need them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(blocks)
    config = LlamaConfig(
        vocab_size=300 if merges else 128, hidden_size=32, intermediate_size=64, num_hidden_layers=blocks,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
        pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    if merges:
        save(byte_level(), folder)
    else:
        write_tokenizer(folder)
    return folder


def write_text(file: Path) -> Path:
    """Enough text for a few samples."""
    file.write_text("".join(f"{number} cats sat on {number * 7} mats, and sang. " for number in range(40)))
    return file


STAGES: dict[str, list[Any]] = {
    "gptq": [{"gptq": {"scheme": "w4a16-g32"}}],
    "awq": [{"awq": {"scheme": "w4a16-g32", "grid": 2}}],
    "awq-gptq": [{"awq": {"quantize": False, "grid": 2}}, {"gptq": {"scheme": "w4a16-g32"}}],
    "smoothquant-gptq-w8a8": [{"smoothquant": {}}, {"gptq": {"scheme": "w8a8-dynamic"}}],
    "imatrix": [{"rtn": {"scheme": "w4a16-g32", "range_search": "imatrix"}}],
    "gptq-w8a8-static": [{"gptq": {"scheme": "w8a8-static"}}],
    "rotate-gptq": ["rotate", {"gptq": {"scheme": "w4a16-g32"}}],
    "rotate-online-gptq": [{"rotate": {"online": True}}, {"gptq": {"scheme": "w8a8-dynamic"}}],
    "rotate": ["rotate", {"rtn": {"scheme": "w4a16-g32"}}],
    "gptq-kv8": [{"gptq": {"scheme": "w4a16-g32"}}, "kv_cache"],
    "gptq-slb_finish": [{"gptq": {"scheme": "w2a16-g32"}}, {"slb_finish": {"steps": 2}}],
    "gptq-learn": [
        {"gptq": {"scheme": "w3a16-g32", "cycles": 1}},
        {"learn": {"steps": 2, "holdout": 0, "objective": "loss"}},
    ],
    "awq-imatrix-loss": [
        {"awq": {"quantize": False, "grid": 2, "objective": "loss"}},
        {"rtn": {"scheme": "w3a16-g32", "range_search": "imatrix", "objective": "output"}},
    ],
    "gptq-loss": [{"gptq": {"scheme": "w3a16-g32", "objective": "loss"}}],
    "descent": [{"descent": {"scheme": "nvfp4a16"}}],
    "gptaq-validate": [{"gptq": {"scheme": "w3a16-g32", "gptaq": True}}, {"validate": {"holdout": 0.5}}],
    "rtn": [{"rtn": {"scheme": "w4a16-g32"}}],
    "gptq as gguf": [{"gptq": {"scheme": "q4_0", "range_search": "ggml-imatrix"}}],
}

#: The end of a word that is stored in a GGUF file.
GGUF = " as gguf"

#: Recipes whose stages look at no data.
DATA_FREE = ("rotate", "rtn")


def run(source: Path, text: Path, output: Path, stages: str, **options: Any) -> Quantized:
    """Quantize, into files of 20 kB; the proof, which reads only, is taken for granted."""
    recipe: dict[str, Any] = {"stages": STAGES[stages]}
    if stages.endswith(GGUF):
        recipe["export"] = {"format": "gguf"}
    if stages not in DATA_FREE:
        recipe["calibration"] = {"dataset": str(text), "samples": 2, "seq_len": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", lambda *_: {"passed": True})
        patch.setattr(quantize, "structure_of_source", lambda _: {})
        patch.setattr(
            by_blocks, "ShardedWriter", lambda folder, groups, _, state: ShardedWriter(folder, groups, LIMIT, state)
        )
        patch.setattr(
            write, "write_entries", lambda folder, entries, _, tell: write_entries(folder, entries, LIMIT, tell)
        )
        return goldstick.quantize(source, recipe, output=output, **options)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory but the reports, which hold times."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.stem != "report")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def steps_of(source: Path, text: Path, folder: Path, stages: str, **options: Any) -> tuple[int, dict[str, bytes]]:
    """How many steps an undisturbed run into ``folder / "out"`` takes, and what it writes."""
    points = CrashPoints(folder, None)
    with points.watching():
        run(source, text, folder / "out", stages, **options)
    return len(points.steps), contents(folder / "out")


def die_and_go_on(source: Path, text: Path, folder: Path, stages: str, step: int, **options: Any) -> dict[str, bytes]:
    """Die at a step, run again with ``resume``; everything then in ``folder``, the report left out.

    A run that goes from tensor to tensor is not gone on with: it has put everything in place, or it starts anew.
    """
    points = CrashPoints(folder, step)
    with pytest.raises(Died), points.watching():
        run(source, text, folder / "out", stages, **options)
    run(source, text, folder / "out", stages, **(options | {"resume": True}))
    return contents(folder)
