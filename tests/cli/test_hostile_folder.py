"""Where the current directory is a stranger's, nothing of it is imported, by the commands or by their helpers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer

#: What a stranger's folder may call its files, for a program that starts in it to import them.
NAMES = (
    "click", "datasets", "fresh_start", "goldstick", "huggingface_hub", "jinja2", "json", "lm_eval", "numpy", "random",
    "rich", "safetensors", "sitecustomize", "tokenizers", "torch", "transformers", "triton", "usercustomize", "yaml",
)  # fmt: skip

#: The console script as pip writes it, but that it runs one command after another, and not one alone. An empty part of
#: PYTHONPATH, as `PYTHONPATH=$PYTHONPATH:/lib` leaves it, is the current directory; only helpers can be kept from that.
SCRIPT = """
import os, shlex, sys
os.environ["PYTHONPATH"] = ":"
from goldstick.cli import main
for command in sys.argv[1:]:
    try:
        main(shlex.split(command))
    except SystemExit as end:
        if end.code:
            sys.exit(f"{command}: {end.code}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stranger's folder with a model in it; whatever is imported from it leaves a file ``imported-…``."""
    FAMILIES["llama_gqa"]().save_pretrained(tmp_path / "llama")
    write_tokenizer(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("the cat sat on a mat and sang. " * 20)
    code = "import pathlib; pathlib.Path(__file__).with_name('imported-' + __name__).touch(); raise SystemExit('evil')"
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(code)
    for package in ("goldstick", "llama/custom_generate", "wikitext"):  # a folder of the name wins against the file
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "__init__.py").write_text(code)
        (tmp_path / package / "generate.py").write_text(code)
        (tmp_path / package / "wikitext.py").write_text(code)
    return tmp_path


def test_nothing_of_the_current_directory_is_imported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("bin") / "goldstick"
    script.write_text(SCRIPT)
    commands = (
        "quantize llama -o out --recipe gptq-w4a16-g32 --dataset text.txt --samples 2 --seq-len 16 --threads 1 --json",
        "verify out",
        "inspect out --json",
        "doctor out",
        "generate out --prompt cat --max-new-tokens 2",
        "export out --format native -o exported --proof tensors --json",
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, str(script), *commands]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert sorted(path.name for path in folder.rglob("imported-*")) == []
    assert done.returncode == 0, done.stderr
    assert "equal to the bit" in done.stdout
