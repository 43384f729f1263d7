"""Fixtures of the command-line tests: checkpoints to spoil, and a way to run a command and look at what it says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support.commands import run
from tests.support.tiny_models import FAMILIES


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Layers this small lose more to waking threads than they win."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound checkpoint of a tiny Llama in several shards; never to be changed."""
    directory = tmp_path_factory.mktemp("pristine") / "llama"
    FAMILIES["llama_gqa"]().save_pretrained(directory, max_shard_size="100KB")
    return directory


@pytest.fixture
def source(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the sound checkpoint, to be spoiled."""
    return Path(shutil.copytree(pristine, tmp_path / "llama"))


@pytest.fixture(scope="session")
def made(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished compressed checkpoint; never to be changed."""
    output = tmp_path_factory.mktemp("made") / "out"
    result = run("quantize", str(pristine), "-o", str(output), "--recipe", "rtn-w4a16-g32")
    assert result.exit_code == 0, result.output
    return output


@pytest.fixture
def assert_refused(tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail; check how it says so, and that it leaves nothing behind."""

    def check(*arguments: str, code: int = 1, says: tuple[str, ...] = ()) -> str:
        before = sorted(tmp_path.rglob("*"))
        result = run(*arguments)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        message = result.stderr[result.stderr.index("Error: ") :]
        assert message.count("\n") == 1, "not one paragraph"
        assert "did not expect" not in message
        assert 40 < len(message) < 1000
        for part in says:
            assert part in message, f"{part!r} is not in: {message}"
        assert sorted(tmp_path.rglob("*")) == before, "something was left behind"
        return message

    return check
