"""A user without a home, as containers run programs: commands work, and leave nothing that is called ``~``."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify
from tests.support.commands import run
from tests.support.proofs import prove_here


@pytest.fixture(autouse=True)
def proof_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        patch.setattr(verify, "prove", prove_here)
        yield


@pytest.mark.parametrize("home", [None, "nonexistent"])
def test_commands_run(home: str | None, pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "GOLDSTICK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.chdir(tmp_path)
    for command in (
        f"quantize {pristine} -o out -r rtn-w4a16-g32",
        "verify out",
        f"compare {pristine} out",
        "evaluate reference --tasks text --limit 1",
        "inspect out",
        "doctor out",
        "doctor",
        "export out --format native -o exported",
    ):
        result = run(*command.split())
        assert result.exit_code == 0, f"{command}: {result.output}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "out"]
