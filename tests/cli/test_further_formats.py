"""``--format`` given more than once: what each directory holds, and what is refused before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import goldstick
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify
from tests.support.commands import run
from tests.support.proofs import answer, prove_here
from tests.support.tiny_models import sample_inputs

INT4 = ("--recipe", "rtn-w4a16-g32")


@pytest.fixture(autouse=True, scope="module")
def proofs_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        patch.setattr(verify, "prove", prove_here)
        yield


@pytest.fixture
def half(source: Path, tmp_path: Path) -> Path:
    """The checkpoint in bfloat16: GPTQ files hold float16 scales."""
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    return tmp_path / "half"


def test_every_further_format_lies_beside_and_gives_what_the_first_gives(half: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    made = run("quantize", str(half), "-o", str(output), *INT4, "--format", "auto", "--format", "gptq")
    assert made.exit_code == 0, made.output
    assert f"gptq: {output}-gptq" in made.stdout
    assert [read_report(path).format for path in (output, tmp_path / "out-gptq")] == ["compressed-tensors", "gptq"]
    first, second = (goldstick.load(path) for path in (output, tmp_path / "out-gptq"))
    inputs = sample_inputs(first)
    assert torch.equal(answer(first, inputs), answer(second, inputs))


@pytest.mark.parametrize(
    ("formats", "says"),
    [
        (("native", "native"), "--format native was given twice"),
        (("native", "auto"), "name the further ones"),
        (("auto", "compressed-tensors"), "is what the first format of this run comes to already"),
        (("auto", "awq"), "awq cannot hold this: "),
    ],
)
def test_what_no_run_could_end_well_with_is_refused_at_once(
    formats: tuple[str, str], says: str, half: Path, tmp_path: Path, assert_refused: Callable[..., str]
) -> None:
    given = [word for name in formats for word in ("--format", name)]
    recipe = "rtn-w8a16" if "awq" in formats else "rtn-w4a16-g32"
    message = assert_refused(
        "quantize", str(half), "-o", str(tmp_path / "out"), "--recipe", recipe, *given,
        code=1 if "awq" in formats else 2, says=(says,),
    )  # fmt: skip
    assert run("plan", str(half), "--recipe", recipe, *given).stderr.splitlines()[-1] in message


def test_a_further_directory_that_exists_is_refused_before_any_work(
    half: Path, tmp_path: Path, assert_refused: Callable[..., str]
) -> None:
    (tmp_path / "out-gptq").mkdir()
    (tmp_path / "out-gptq" / "mine.txt").write_text("mine")
    arguments = ("quantize", str(half), "-o", str(tmp_path / "out"), *INT4, "--format", "auto", "--format", "gptq")
    assert_refused(*arguments, says=("out-gptq",))


def test_numbers_that_a_further_format_cannot_hold_leave_the_first_finished(half: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(half, dtype=torch.bfloat16)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1e8)  # whose scales are beyond float16's largest number
    model.save_pretrained(tmp_path / "large")
    output = tmp_path / "out"
    formats = ("--format", "auto", "--format", "gptq")
    made = run("quantize", str(tmp_path / "large"), "-o", str(output), *INT4, *formats)
    assert made.exit_code == 1
    assert f"{output} is finished, and --format gptq is not made" in made.stderr
    assert read_report(output).format == "compressed-tensors"
    assert not (tmp_path / "out-gptq").exists()
