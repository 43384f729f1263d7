"""The doctor: nothing on sound checkpoints of any format, and every planted fault found where it was planted."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

import goldstick
from goldstick import api
from goldstick.checkpoint.source import INDEX_NAME
from goldstick.cli import main
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import SourceError
from goldstick.jobs.doctor.finding import Finding, gathered
from goldstick.jobs.doctor.layer import count_codes
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here
from tests.support.small_checkpoints import SMALL, WEIGHTS, small_checkpoints

Q = "model.layers.0.self_attn.q_proj"
NORM, HEAD, EMBEDDING = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
CT = "compressed-tensors"
#: Eight 4-bit codes of 8, the zero of a symmetric grid.
ZEROS = 0x88888888 - (1 << 32)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return small_checkpoints(tmp_path_factory.mktemp("sound"))


Plant = Callable[[Path], object]


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Plant:
    def plant(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file({name: value.contiguous() for name, value in found.items()}, folder / WEIGHTS)

    return plant


def fill(name: str, value: float, rows: slice = slice(0, 1), columns: slice = slice(0, 1)) -> Plant:
    def change(found: dict[str, Tensor]) -> None:
        found[name][rows, columns] = value

    return tensors(change)


def config(*keys: str, value: Any) -> Plant:
    def plant(folder: Path) -> None:
        table = json.loads((folder / "config.json").read_text())
        inner = table
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        (folder / "config.json").write_text(json.dumps(table))

    return plant


def quantization(*keys: str, value: Any) -> Plant:
    return config("quantization_config", *keys, value=value)


def add(name: str, content: bytes) -> Plant:
    return lambda folder: (folder / name).write_bytes(content)


def both(*plants: Plant) -> Plant:
    return lambda folder: [plant(folder) for plant in plants]


def as_shard(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")


def fewer_rows(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value[:60] for name, value in found.items() if Q in name}


ALL = slice(None)
FITS = "they fit 4 bits with groups of 32"
GROUP = ("config_groups", "group_0", "weights")
PLANTED: dict[str, tuple[str, Plant, str, str, str]] = {
    # name: (format, what is planted, the check that must find it, its severity, where)
    "a_nan_scale": (CT, fill(f"{Q}.weight_scale", float("nan")), "nan-scales", "fault", f"{Q}.weight: 1 of 128"),
    "an_infinite_scale": ("gptq", fill(f"{Q}.scales", float("inf")), "nan-scales", "fault", f"{Q}.weight: 1 of 128"),
    "a_zero_scale": ("awq", fill(f"{Q}.scales", 0.0), "zero-scales", "fault", f"{Q}.weight: 1 of 128"),
    "a_negative_scale": (CT, fill(f"{Q}.weight_scale", -0.1), "negative-scales", "fault", f"{Q}.weight: 1 of"),
    "a_nan_zero": ("native", fill(f"{Q}.weight_zero_point", float("nan")), "nan-scales", "fault", Q),
    "a_dead_group": (CT, fill(f"{Q}.weight_packed", ZEROS, columns=slice(0, 4)), "dead-groups", "remark", "1 of 128"),
    "a_dead_layer": (CT, fill(f"{Q}.weight_packed", ZEROS, ALL, ALL), "dead-groups", "fault", "128 of 128"),
    "codes_never_written": (CT, fill(f"{Q}.weight_packed", 0, ALL, ALL), "saturated", "fault", "100 %"),
    "codes_all_at_the_top": ("gptq", fill(f"{Q}.qweight", -1, ALL, ALL), "saturated", "fault", "100 %"),
    "a_saturated_group": (CT, fill(f"{Q}.weight_packed", -1, columns=slice(0, 4)), "saturated", "remark", "1 groups"),
    "a_missing_scale": (CT, tensors(lambda t: t.pop(f"{Q}.weight_scale")), "missing-tensors", "fault", "weight_scale"),
    "a_missing_norm": ("gptq", tensors(lambda t: t.pop(NORM)), "missing-tensors", "fault", NORM),
    "missing_codes": (CT, tensors(lambda t: t.pop(f"{Q}.weight_packed")), "missing-tensors", "fault", f"{Q}.weight"),
    "missing_native_codes": ("native", tensors(lambda t: t.pop(f"{Q}.weight_packed")), "config", "fault", Q),
    "an_extra_tensor": ("awq", tensors(lambda t: t.update(x=torch.ones(2))), "extra-tensors", "fault", "x"),
    "an_extra_float": ("float", tensors(lambda t: t.update(x=torch.ones(2))), "extra-tensors", "remark", "x"),
    "a_norm_too_long": (CT, tensors(lambda t: t.update({NORM: torch.ones(65)})), "shapes", "fault", f"{NORM} is [65]"),
    "rows_too_few": ("native", tensors(lambda t: t.update(fewer_rows(t))), "shapes", "fault", "[60, 64]"),
    "other_bits": (CT, quantization(*GROUP, "num_bits", value=8), "config", "fault", FITS),
    "other_groups": ("awq", quantization("group_size", value=64), "config", "fault", FITS),
    "other_gptq_bits": ("gptq", quantization("bits", value=2), "config", "fault", FITS),
    "a_channel_scheme": (CT, quantization(*GROUP, "strategy", value="channel"), "config", "fault", "groups of 32"),
    "zeros_not_stored": (CT, quantization(*GROUP, "symmetric", value=False), "missing-tensors", "fault", "zero"),
    "zeros_against_the_config": ("gptq", fill(f"{Q}.qzeros", 5), "unreadable", "fault", "symmetric"),
    "a_shape_that_lies": (CT, tensors(lambda t: t[f"{Q}.weight_shape"].fill_(1)), "unreadable", "fault", "_shape"),
    "ignored_and_quantized": (CT, quantization("ignore", value=["lm_head", Q]), "exceptions", "fault", Q),
    "float_and_not_ignored": (CT, quantization("ignore", value=[]), "exceptions", "fault", "lm_head"),
    "excepted_by_awq": ("awq", quantization("modules_to_not_convert", value=["q_proj"]), "exceptions", "fault", Q),
    "excepted_by_gptq": ("gptq", quantization("dynamic", value={"-:.*q_proj": {}}), "config", "fault", Q),
    "a_head_that_gptq_promises": ("gptq", quantization("lm_head", value=True), "exceptions", "fault", "lm_head"),
    "an_untied_head": (CT, config("tie_word_embeddings", value=True), "ties", "fault", HEAD),
    "a_head_stored_twice": (
        "float",
        both(tensors(lambda t: t.update({HEAD: t[EMBEDDING].clone()})), config("tie_word_embeddings", value=True)),
        "ties",
        "remark",
        HEAD,
    ),
    "weights_beyond_float16": ("gptq", fill(f"{Q}.scales", 60_000.0), "float16", "fault", f"{Q}.weight: up to"),
    "bfloat16_beyond_float16": (CT, fill(f"{Q}.weight_scale", 1e5), "float16", "remark", f"{Q}.weight: up to"),
    "a_large_norm": ("float", tensors(lambda t: t[NORM].fill_(2.0**20)), "float16", "remark", "up to 1.05e+06"),
    "a_nan_norm": ("awq", tensors(lambda t: t[NORM][:3].fill_(float("nan"))), "non-finite", "fault", "3 of 64"),
    "a_head_of_zeros": ("float", tensors(lambda t: t[HEAD].zero_()), "zeros", "remark", HEAD),
    "the_same_file_twice": (
        CT,
        lambda folder: shutil.copy(folder / WEIGHTS, folder / "model-2.safetensors"),
        "equal-files",
        "fault",
        "model-2.safetensors = model.safetensors",
    ),
    "a_file_nobody_reads": (
        CT,
        lambda folder: save_file({"x": torch.ones(1)}, folder / "other.safetensors"),
        "unused-files",
        "remark",
        "other.safetensors",
    ),
    "a_pickle": ("float", add("pytorch_model.bin", b""), "pickles", "remark", "pytorch_model.bin"),
    "a_pointer_of_lfs": (CT, add("tokenizer.json", b"version"), "not-json", "fault", "Expecting value in line 1"),
    "settings_cut_short": ("float", add("tokenizer_config.json", b'{"a":'), "not-json", "fault", "tokenizer_"),
    "settings_in_no_object": ("gptq", add("generation_config.json", b"[]"), "not-json", "fault", "no JSON object"),
    "words_that_are_no_text": (CT, add("special_tokens_map.json", b"\xff"), "not-json", "fault", "special_"),
    "a_file_cut_short": (CT, add(WEIGHTS, b"\0" * 99), "unreadable", "fault", "safetensors"),
    "an_index_of_other_files": (CT, add(INDEX_NAME, b'{"weight_map": {"a": "b"}}'), "index", "fault", INDEX_NAME),
    "an_index_of_nothing": (CT, add(INDEX_NAME, b"{}"), "index", "fault", INDEX_NAME),
    "an_index_of_nothing_alone": (CT, both(as_shard, add(INDEX_NAME, b"{}")), "unreadable", "fault", "weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("form", ["float", CT, "native", "gptq", "awq", "gguf"])
def test_a_sound_checkpoint_gives_no_finding(form: str, sound: dict[str, Path]) -> None:
    found = api.doctor(sound[form])
    assert found.findings == ()
    assert found.healthy
    assert (found.format, found.layers) == (form, 0 if form == "float" else 7)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_where_it_is(name: str, sound: dict[str, Path], tmp_path: Path) -> None:
    form, plant, check, severity, where = PLANTED[name]
    folder = Path(shutil.copytree(sound[form], tmp_path / "spoiled"))
    plant(folder)
    diagnosis = api.doctor(folder)
    hits = [finding for finding in diagnosis.findings if finding.check == check]
    assert [finding.severity for finding in hits] == [severity], diagnosis.findings
    assert any(where in place for place in hits[0].where), hits[0].where
    assert len(hits[0].what) > 15
    assert len(hits[0].remedy) > 15
    assert diagnosis.healthy == all(finding.severity == "remark" for finding in diagnosis.findings)


def test_groups_that_no_split_holds_are_remarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    settings = copy.deepcopy(SMALL)
    settings.intermediate_size = 96
    LlamaForCausalLM(settings).save_pretrained(tmp_path / "float")
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}
    goldstick.quantize(tmp_path / "float", recipe, output=tmp_path / "made", proof="tensors")
    (finding,) = api.doctor(tmp_path / "made").findings
    assert (finding.check, finding.severity) == ("splits", "remark")
    assert finding.where == ("model.layers.0.mlp.down_proj.weight: 96 inputs in groups of 32",)


def test_a_gguf_file_of_another_tool_is_examined(sound: dict[str, Path], tmp_path: Path) -> None:
    file = Path(shutil.copy(sound["gguf"] / "model.gguf", tmp_path / "other.gguf"))
    found = api.doctor(file)
    assert (found.directory, found.format, found.layers, found.findings) == (str(file), "gguf", 7, ())
    file.write_bytes(file.read_bytes()[:-99])
    (finding,) = api.doctor(file).findings
    assert (finding.check, finding.severity) == ("unreadable", "fault")


def test_what_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no config\.json"):
        api.doctor(tmp_path)


def test_findings_of_one_kind_are_gathered_and_faults_come_first() -> None:
    def finding(severity: Any, where: str) -> Finding:
        return Finding(severity=severity, check="c", what="w", where=(where,), remedy="r")

    found = gathered([finding("remark", "a"), finding("fault", "b"), finding("remark", "c"), finding("fault", "d")])
    assert [(one.severity, one.where) for one in found] == [("fault", ("b", "d")), ("remark", ("a", "c"))]


@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_are_counted_as_a_slow_count_counts_them(symmetric: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    grid = Grid(bits=2, symmetric=symmetric, granularity="group", group_size=16)
    codes = torch.randint(0, 4, (6, 72), generator=generator, dtype=torch.uint8)  # the last group has 8 inputs
    codes[1, 16:32], codes[2, :16], codes[4, 64:] = 2, 3, 2
    scale = torch.rand(6, 5, generator=generator)
    zero = None if symmetric else torch.randint(0, 4, (6, 5), generator=generator).float()
    found = count_codes(QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid))
    dead = stuck = 0
    largest = 0.0
    for row in range(6):
        for group in range(5):
            values = codes[row, group * 16 : (group + 1) * 16].tolist()
            middle = 2.0 if zero is None else float(zero[row, group])
            dead += all(value == middle for value in values)
            stuck += len(values) == 16 and all(value in (0, 3) for value in values)
            largest = max(largest, *(abs(value - middle) * float(scale[row, group]) for value in values))
    ends = sum(value in (0, 3) for row in codes.tolist() for value in row)
    assert (found.codes, found.groups, found.ends, found.dead, found.stuck) == (6 * 72, 30, ends, dead, stuck)
    assert found.largest == pytest.approx(largest)
    assert stuck > 0


def test_the_command_prints_a_table_or_json_and_its_code_says_whether_there_are_faults(
    sound: dict[str, Path], tmp_path: Path
) -> None:
    healthy = CliRunner().invoke(main, ["doctor", str(sound["awq"])])
    assert (healthy.exit_code, healthy.stdout) == (0, "awq, 26 tensors, 7 quantized matrices: 0 faults, 0 remarks\n")
    folder = Path(shutil.copytree(sound[CT], tmp_path / "spoiled"))
    add("pytorch_model.bin", b"")(folder)
    remarked = CliRunner().invoke(main, ["doctor", str(folder)])
    assert remarked.exit_code == 0
    assert "pytorch_model.bin" in remarked.stdout and "0 faults, 1 remark\n" in remarked.stdout
    tensors(lambda t: [t[name].fill_(0) for name in t if name.endswith("_scale")])(folder)
    sick = CliRunner().invoke(main, ["doctor", str(folder)])
    assert sick.exit_code == 1
    assert "scales of zero" in sick.stdout
    assert "and 4 more" in sick.stdout
    assert "and 4 more" not in CliRunner().invoke(main, ["doctor", str(folder), "--verbose"]).stdout
    table = json.loads(CliRunner().invoke(main, ["doctor", str(folder), "--json"]).stdout)
    assert table["healthy"] is False
    assert len(next(one for one in table["findings"] if one["check"] == "zero-scales")["where"]) == 7
