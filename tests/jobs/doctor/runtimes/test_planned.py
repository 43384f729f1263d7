"""``quantize --for``: a format that the runtime runs, or an error before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import goldstick
from goldstick import api
from goldstick.cli import main
from goldstick.errors import FormatError, UsageError
from goldstick.jobs.doctor.examined import open_examined
from goldstick.jobs.doctor.runtimes import RUNTIMES
from goldstick.jobs.doctor.runtimes.looked_at import subject_of
from goldstick.jobs.doctor.runtimes.planned import planned_subject
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here
from tests.support.runtime_checkpoints import Workshop


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("planned"))


@pytest.mark.parametrize(
    ("runtime", "recipe", "form"),
    [
        ("vllm", "rtn-w4a16-g128", "compressed-tensors"),
        ("vllm", "rtn-w3a16-g128", "compressed-tensors"),
        ("sglang", "rtn-w4a16-g16", "awq"),  # whose own kernels take groups that Marlin does not
        ("transformers", "rtn-w4a16-g128-asym", "compressed-tensors"),
        ("sglang", "rtn-fp8-block", "compressed-tensors"),
    ],
)
def test_the_first_format_that_runs_is_taken(runtime: str, recipe: str, form: str, workshop: Workshop) -> None:
    assert api.plan(workshop.float("llama"), recipe, runtime=runtime).format.name == form


@pytest.mark.parametrize(
    ("runtime", "recipe", "words"),
    [
        ("vllm", "rtn-mxfp6a16", "no scheme of it is float of 6 bits"),
        ("sglang", "rtn-w3a16-g128", "4 or 8 bits"),
        ("llama.cpp", "rtn-w8a8-dynamic", "No format that llama.cpp"),
        ("vllm", "rtn-w4a8-static-g128", "no scheme of it"),
    ],
)
def test_what_it_does_not_run_is_refused_with_the_reason(
    runtime: str, recipe: str, words: str, workshop: Workshop
) -> None:
    with pytest.raises(FormatError, match=words):
        api.plan(workshop.float("llama"), recipe, runtime=runtime)


def test_a_split_that_cuts_groups_is_refused(workshop: Workshop) -> None:
    api.plan(workshop.float("llama"), "rtn-w4a16-g128", runtime="vllm")
    with pytest.raises(FormatError, match=r"not whole groups.*256 inputs over 4 devices in groups of 128"):
        api.plan(workshop.float("llama"), "rtn-w4a16-g128", runtime="vllm", tensor_parallel=4)
    assert api.plan(workshop.float("llama"), "rtn-w4a16-g32", runtime="vllm", tensor_parallel=4).format.name


@pytest.mark.parametrize(
    ("runtime", "devices", "says"),
    [
        (None, 2, "where no runtime is named"),
        ("goldstick", 2, "no rules of goldstick"),
        ("transformers", 4, "name one of vllm, sglang"),
        ("vllm", 0, "1 device or more"),
    ],
)
def test_devices_that_no_rule_looks_at_are_refused(
    runtime: str | None, devices: int, says: str, workshop: Workshop, tmp_path: Path
) -> None:
    """A plan that passed without a look would promise that every layer can be split."""
    source = workshop.float("llama")
    with pytest.raises(UsageError, match=says):
        api.plan(source, "rtn-w4a16-g128", runtime=runtime, tensor_parallel=devices)
    with pytest.raises(UsageError, match=says):
        api.quantize(source, "rtn-w4a16-g128", output=tmp_path / "out", runtime=runtime, tensor_parallel=devices)
    with pytest.raises(UsageError, match=says):
        api.doctor(source, runtime=runtime, tensor_parallel=devices)


def test_the_command_writes_nothing_of_what_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["quantize", str(workshop.float("llama")), "-o", str(output), "--recipe", "rtn-w4a16-g16"]
    refused = CliRunner().invoke(main, [*arguments, "--format", "gptq", "--for", "vllm"])
    assert refused.exit_code == 1
    assert "would not run this as gptq" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_planned_is_what_doctor_sees(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules look at the same modules, with the same schemes, before and after the checkpoint is written."""
    monkeypatch.setattr(finish, "prove", prove_here)
    for model in ("llama", "mixtral", "deepseek"):
        planned = api.plan(workshop.float(model), "rtn-w4a16-g64", runtime="vllm")
        before = planned_subject(planned, planned.format, 1)
        goldstick.quantize(
            workshop.float(model), "rtn-w4a16-g64", output=tmp_path / model, proof="tensors", runtime="vllm"
        )
        after = subject_of(tmp_path / model, open_examined(tmp_path / model), 1)
        assert before.table == after.table
        assert {(one.name, one.shape, one.scheme, one.role) for one in before.modules} == {
            (one.name, one.shape, one.scheme, one.role) for one in after.modules
        }


def test_llama_cpp_gets_a_gguf_file(workshop: Workshop) -> None:
    assert api.plan(workshop.float("llama"), "rtn-iq4_nl", runtime="llama.cpp").format.name == "gguf"


def test_a_runtime_that_is_not_known_is_a_usage_error(workshop: Workshop) -> None:
    with pytest.raises(UsageError, match=r"There are vllm, sglang, transformers, llama\.cpp"):
        api.plan(workshop.float("llama"), "rtn-w4a16-g32", runtime="nothing")


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_rule_says_what_is_wrong_what_to_do_and_where_it_was_read(name: str) -> None:
    runtime = RUNTIMES[name]
    assert runtime.version[0].isdigit()
    for rule in runtime.rules:
        assert min(len(rule.what), len(rule.remedy)) > 15
        assert "/" in rule.read_in
