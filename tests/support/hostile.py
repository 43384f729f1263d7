"""Checkpoints made to do harm, each by one function that spoils a sound one, and a process that opens them all.

``python -m tests.support.hostile FOLDER`` makes each, opens it and writes down what happened, how far memory grew and
how much processor time it took; the longest times are printed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import goldstick
from goldstick.checkpoint.source import INDEX_NAME
from goldstick.errors import GoldstickError
from goldstick.evaluation.language_model import LanguageModel
from goldstick.hf.source import open_source
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.verify.verify import verify_checkpoint
from goldstick.recipes.recipe import Recipe
from tests.support.small_checkpoints import WEIGHTS, copy_of, small_checkpoints

Q = "model.layers.0.self_attn.q_proj"
NORM = "model.norm.weight"
SECONDS = 20
ONE_WORD = torch.tensor(1, dtype=torch.int32)
#: Name → (the format of the checkpoint to be spoiled, how, what is done with it).
CASES: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object]]] = {}


def case(base: str = "compressed-tensors", opened: Callable[[Path], object] = goldstick.load) -> Callable[..., Any]:
    """Make a function that spoils a directory one of the cases, under its own name."""

    def add(spoil: Callable[[Path], object]) -> Callable[[Path], object]:
        CASES[spoil.__name__] = (base, spoil, opened)
        return spoil

    return add


def add_many(base: str, spoil: Callable[[Path, Any], object], values: dict[str, Any]) -> None:
    """A case for every value by its name."""
    for name, value in values.items():
        CASES[name] = (base, lambda folder, value=value: spoil(folder, value), goldstick.load)


def parts_of(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Header and payload of the weights."""
    content = (folder / WEIGHTS).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_parts(folder: Path, header: dict[str, Any] | bytes, payload: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + payload)


def change_entry(folder: Path, change: dict[str, Any]) -> None:
    header, payload = parts_of(folder)
    header[NORM].update(change)
    write_parts(folder, header, payload)


def change_json(path: Path, *keys: str, value: Any) -> None:
    table = json.loads(path.read_text())
    inner = table
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(table))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS)


# --- the file of weights

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "an_empty_file": lambda content: b"",
    "a_header_longer_than_the_file": lambda content: struct.pack("<Q", len(content)) + content[8:],
    "a_header_that_claims_100_gb": lambda content: struct.pack("<Q", 100 * 10**9) + content[8:],
    "a_header_whose_length_is_negative": lambda content: b"\xff" * 8 + content[8:],
    "a_file_cut_short": lambda content: content[:-10],
    "bytes_behind_the_last_tensor": lambda content: content + b"\0" * 8,
    "a_header_that_is_no_utf8": lambda content: content[:20] + b"\xff\xfe" + content[22:],
    "a_web_page_instead_of_weights": lambda content: b"<!DOCTYPE html><html>" * 40,
}
HEADERS: dict[str, Callable[[bytes], bytes]] = {
    "a_header_in_utf16": lambda text: text.decode().encode("utf-16"),
    "a_tensor_named_twice": lambda text: text.replace(b"{", b'{"%s":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
                                                      % NORM.encode(), 1),
    "a_header_nested_a_hundred_thousand_deep": lambda text: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a_header_of_a_million_empty_lists": lambda text: b'{"a":[' + b"[]," * 1_000_000 + b"[]]}",
    "a_number_of_a_million_digits": lambda text: text.replace(b"[0,", b"[" + b"9" * 1_000_000 + b","),
    "a_header_that_is_a_list": lambda text: b"[" + text + b"]",
}  # fmt: skip
ENTRIES: dict[str, dict[str, Any]] = {
    "a_tensor_that_claims_100_gb": {"shape": [25 * 10**9], "data_offsets": [0, 100 * 10**9]},
    "a_negative_shape": {"shape": [-64]},
    "a_shape_that_is_not_a_number": {"shape": [float("nan")]},
    "a_shape_that_is_infinite": {"shape": [float("inf")]},
    "a_fractional_shape": {"shape": [64.0]},
    "a_product_that_overflows": {"shape": [2**40, 2**40]},
    "a_product_that_overflows_behind_a_zero": {"shape": [0, 2**62, 2**62]},
    "two_hundred_dimensions": {"shape": [1] * 200 + [64]},
    "offsets_backwards": {"data_offsets": [128, 0]},
    "offsets_that_overlap": {"data_offsets": [2, 130]},
    "offsets_as_text": {"data_offsets": ["0", "128"]},
    "one_offset": {"data_offsets": [0]},
    "a_type_nobody_knows": {"dtype": "F128"},
    "a_type_that_is_a_list": {"dtype": ["F32"]},
    "another_type_than_the_bytes": {"dtype": "F64"},
    "an_entry_with_more_to_say": {"compression": "zip"},
}


def spoil_bytes(folder: Path, change: Callable[[bytes], bytes]) -> None:
    (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


def spoil_header(folder: Path, change: Callable[[bytes], bytes]) -> None:
    header, payload = parts_of(folder)
    write_parts(folder, change(json.dumps(header, separators=(",", ":")).encode()), payload)


add_many("compressed-tensors", spoil_bytes, BYTES)
add_many("compressed-tensors", spoil_header, HEADERS)
add_many("compressed-tensors", change_entry, ENTRIES)


def rename(folder: Path, name: str) -> None:
    header, payload = parts_of(folder)
    write_parts(folder, {name if key == NORM else key: value for key, value in header.items()}, payload)


add_many(
    "compressed-tensors",
    rename,
    {
        "a_name_that_turns_text_around": "model.\u202enorm.weight",
        "a_name_that_clears_the_screen": "model\x1b[2J.weight",
        "a_name_of_half_a_letter": "model.\ud800",
        "a_name_of_a_megabyte": "m" * 1_000_000,
        "a_tensor_the_model_does_not_have": "model.layers.7.surprise.weight",
    },
)


@case()
def metadata_that_are_no_texts(folder: Path) -> None:
    header, payload = parts_of(folder)
    write_parts(folder, {**header, "__metadata__": {"format": {"a": 1}}}, payload)


@case()
def weights_that_are_a_pipe(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


@case()
def weights_that_are_a_link_elsewhere(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "elsewhere.safetensors")
    (folder / WEIGHTS).symlink_to("../elsewhere.safetensors")


# --- the index, which is read where there is no model.safetensors

SHARD = "model-00001-of-00001.safetensors"
SHARDS = {
    "a_shard_in_the_directory_above": "../elsewhere.safetensors",
    "a_shard_with_an_absolute_path": "/etc/passwd",
    "a_shard_in_a_directory_below": "below/model.safetensors",
    "a_shard_with_an_empty_name": "",
    "a_shard_with_a_zero_byte": "model.safetensors\0",
    "a_shard_that_is_a_number": 7,
    "a_shard_that_is_not_there": "model-00001-of-00002.safetensors",
}


def spoil_index(folder: Path, shard: Any) -> None:
    header, _ = parts_of(folder)
    (folder / WEIGHTS).rename(folder / SHARD)
    names = {name: SHARD for name in header if name != "__metadata__"}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {**names, NORM: shard}}))


add_many("compressed-tensors", spoil_index, SHARDS)


@case()
def an_index_of_a_million_empty_tables(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / SHARD)
    (folder / INDEX_NAME).write_text('{"weight_map":{"a":[' + "{}," * 1_000_000 + "0]}}")


@case()
def an_index_that_is_deep(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / SHARD)
    (folder / INDEX_NAME).write_text('{"weight_map":' * 500 + "{}" + "}" * 500)


# --- config.json

CONFIGS: dict[str, tuple[str, Any]] = {
    "a_billion_layers": ("num_hidden_layers", 10**9),
    "nine_thousand_layers": ("num_hidden_layers", 9000),
    "a_billion_labels": ("num_labels", 10**9),
    "a_negative_width": ("hidden_size", -64),
    "a_width_of_zero": ("hidden_size", 0),
    "a_width_in_words": ("hidden_size", "sixty-four"),
    "a_width_that_is_infinite": ("hidden_size", float("inf")),
    "a_width_that_is_not_a_number": ("hidden_size", float("nan")),
    "a_width_of_another_model": ("hidden_size", 128),
    "a_vocabulary_of_2_to_the_62": ("vocab_size", 2**62),
    "no_heads": ("num_attention_heads", 0),
    "an_activation_that_is_a_path": ("hidden_act", "../../etc/passwd"),
    "a_class_that_is_no_model": ("architectures", ["AutoConfig"]),
    "a_class_that_is_a_number": ("architectures", [7]),
    "classes_as_a_number": ("architectures", 7),
    "a_model_type_that_is_a_list": ("model_type", ["llama"]),
    "code_that_comes_along": ("auto_map", {"AutoModel": "evil.Model"}),
    "a_dtype_that_is_a_function": ("dtype", "manual_seed"),
    "positions_that_are_a_table": ("rope_parameters", {"rope_type": {"a": 1}, "rope_theta": []}),
    "a_quantization_that_is_a_list": ("quantization_config", [1]),
    "a_quantization_that_is_empty": ("quantization_config", {}),
    "no_quantization_beside_packed_tensors": ("quantization_config", None),
}


def spoil_config(folder: Path, change: tuple[str, Any]) -> None:
    change_json(folder / "config.json", change[0], value=change[1])


add_many("compressed-tensors", spoil_config, CONFIGS)
TEXTS: dict[str, bytes] = {
    "a_config_nested_five_hundred_deep": b'{"a":' * 500 + b"1" + b"}" * 500,
    "a_config_of_a_million_lists": b'{"a":[' + b"[]," * 1_000_000 + b"0]}",
    "a_config_in_utf16": '{"model_type": "llama"}'.encode("utf-16"),
    "a_config_that_is_no_utf8": b'{"model_type": "\xff"}',
    "a_config_that_says_a_thing_twice": b'{"model_type": "llama", "model_type": "gpt2"}',
    "a_config_with_half_a_character": b'{"model_type": "llama", "name": "\\ud800"}',
    "a_config_with_half_a_character_in_a_key": b'{"model_type": "llama", "\\uDFFF": 1}',
    "a_config_with_a_huge_number": b'{"model_type": "llama", "hidden_size": ' + b"9" * 100_000 + b"}",
}
add_many("compressed-tensors", lambda folder, text: (folder / "config.json").write_bytes(text), TEXTS)


@case()
def a_config_that_is_a_link_elsewhere(folder: Path) -> None:
    (folder / "config.json").rename(folder.parent / "elsewhere.json")
    (folder / "config.json").symlink_to(folder.parent / "elsewhere.json")


@case(base="float", opened=open_source)
def a_tokenizer_that_is_a_link_to_a_secret(folder: Path) -> None:
    (folder.parent / "secret").write_text("my key")
    (folder / "tokenizer.json").symlink_to(folder.parent / "secret")


# --- quantization_config


def quantization(folder: Path, change: tuple[tuple[str, ...], Any]) -> None:
    change_json(folder / "config.json", "quantization_config", *change[0], value=change[1])


WEIGHT = ("config_groups", "group_0", "weights")
TARGETS = ("config_groups", "group_0", "targets")
add_many(
    "compressed-tensors",
    quantization,
    {
        "a_method_that_is_a_table": (("quant_method",), {"a": []}),
        "a_method_nobody_knows": (("quant_method",), "rot13"),
        "groups_that_are_a_list": (("config_groups",), ["group_0"]),
        "a_group_that_is_a_number": (("config_groups", "group_0"), 4),
        "other_bits_than_the_tensors": ((*WEIGHT, "num_bits"), 8),
        "a_hundred_bits": ((*WEIGHT, "num_bits"), 100),
        "true_bits": ((*WEIGHT, "num_bits"), True),
        "half_a_bit": ((*WEIGHT, "num_bits"), 0.5),
        "groups_of_nothing": ((*WEIGHT, "group_size"), 0),
        "groups_of_less_than_nothing": ((*WEIGHT, "group_size"), -32),
        "groups_of_2_to_the_60": ((*WEIGHT, "group_size"), 2**60),
        "groups_in_words": ((*WEIGHT, "group_size"), "32"),
        "a_symmetry_in_words": ((*WEIGHT, "symmetric"), "yes"),
        "zeros_that_are_not_stored": ((*WEIGHT, "symmetric"), False),
        "a_strategy_nobody_knows": ((*WEIGHT, "strategy"), "block"),
        "targets_that_are_numbers": (TARGETS, [1, 2]),
        "a_target_that_takes_for_ever": (TARGETS, ["re:(a+|.+)+(b+|.+)+$x"]),
        "a_target_of_many_wildcards": (TARGETS, ["re:" + ".*" * 30 + "x"]),
        "a_target_that_is_no_pattern": (TARGETS, ["re:((("]),
        "targets_that_meet_nothing": (TARGETS, ["re:^nothing$"]),
        "activations_that_are_a_number": (("config_groups", "group_0", "input_activations"), 8),
        "a_cache_that_is_a_number": (("kv_cache_scheme",), 8),
        "a_cache_without_its_scales": (
            ("kv_cache_scheme",),
            {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False},
        ),
    },
)
add_many(
    "native",
    quantization,
    {
        "a_version_of_the_future": (("version",), 99),
        "sites_that_are_a_list": (("sites",), [Q]),
        "sites_with_schemes_that_are_lists": (("sites", Q), []),
        "a_site_the_model_does_not_have": (("sites", "model.surprise"), "w4a16-g32-asym"),
        "a_scheme_of_its_own_kind": (("schemes", "w4a16-g32-asym"), {"weight": {"bits": 4.5}}),
        "a_scheme_with_a_strange_word": (("schemes", "w4a16-g32-asym", "weight", "__class__"), 1),
        "a_tie_to_nowhere": (("ties",), {"lm_head": "model.surprise"}),
        "ties_that_are_numbers": (("ties",), {"lm_head": 1}),
        "multiplied_by_tables": (("multiplied",), [{}]),
    },
)
add_many(
    "gptq",
    quantization,
    {
        "three_bits_in_files_of_four": (("bits",), 3),
        "bits_in_words": (("bits",), "4"),
        "a_format_that_is_a_list": (("checkpoint_format",), []),
        "words_of_another_size": (("pack_dtype",), {}),
        "a_dynamic_pattern_that_looks_back": (("dynamic",), {r"+:(.*)*\1x": {"bits": 4}}),
        "a_hundred_thousand_dynamic_patterns": (("dynamic",), {f"+:.*{place}x": {} for place in range(100_000)}),
        "dynamic_as_a_list": (("dynamic",), [1]),
        "dynamic_bits_in_words": (("dynamic",), {"+:.*": {"bits": "four"}}),
    },
)
add_many(
    "auto-round",
    quantization,
    {
        "a_packing_that_is_a_list": (("packing_format",), ["auto_round:auto_gptq"]),
        "extra_config_as_a_list": (("extra_config",), [1]),
        "a_layer_that_is_a_number": (("extra_config",), {"model.layers.0.mlp.up_proj": 4}),
        "a_layer_of_bits_in_words": (("extra_config",), {"model.layers.0.mlp.up_proj": {"bits": "four"}}),
        "a_pattern_that_looks_back": (("extra_config",), {r"(.*)*\1x": {"bits": 8}}),
        "a_hundred_thousand_patterns": (("extra_config",), {f".*{place}x": {} for place in range(100_000)}),
    },
)
add_many(
    "awq",
    quantization,
    {
        "another_layout_than_gemm": (("version",), "gemv"),
        "a_version_that_is_a_number": (("version",), 3),
        "a_group_size_that_is_a_list": (("group_size",), [32]),
    },
)

# --- tensors that contradict the config

CHANGES: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object]]] = {
    "a_scale_that_is_missing": ("compressed-tensors", lambda t: t.pop(f"{Q}.weight_scale")),
    "codes_that_are_missing": ("compressed-tensors", lambda t: t.pop(f"{Q}.weight_packed")),
    "a_norm_that_is_missing": ("compressed-tensors", lambda t: t.pop(NORM)),
    "a_norm_that_is_too_long": ("compressed-tensors", lambda t: t.update({NORM: torch.ones(65)})),
    "a_shape_that_lies": ("compressed-tensors", lambda t: t[f"{Q}.weight_shape"].fill_(2**40)),
    "scales_turned_around": (
        "compressed-tensors",
        lambda t: t.update({f"{Q}.weight_scale": t[f"{Q}.weight_scale"].T}),
    ),
    "codes_of_another_type": (
        "compressed-tensors",
        lambda t: t.update({f"{Q}.weight_packed": t[f"{Q}.weight_packed"].float()}),
    ),
    "codes_with_rows_too_few": (
        "compressed-tensors",
        lambda t: t.update({f"{Q}.weight_packed": t[f"{Q}.weight_packed"][:3]}),
    ),
    "codes_that_are_a_scalar": ("compressed-tensors", lambda t: t.update({f"{Q}.weight_packed": ONE_WORD})),
    "native_codes_that_are_a_scalar": ("native", lambda t: t.update({f"{Q}.weight_packed": ONE_WORD})),
    "zeros_that_are_missing": ("native", lambda t: t.pop(f"{Q}.weight_zero_point")),
    "groups_that_are_not_there": ("gptq", lambda t: t[f"{Q}.g_idx"].fill_(2**30)),
    "groups_below_zero": ("gptq", lambda t: t[f"{Q}.g_idx"].fill_(-1)),
    "groups_of_unequal_sizes": ("gptq", lambda t: t[f"{Q}.g_idx"][:3].fill_(1)),
    "zeros_of_an_asymmetric_layer": ("gptq", lambda t: t[f"{Q}.qzeros"].add_(1)),
    "words_that_are_missing": ("gptq", lambda t: t.pop(f"{Q}.qzeros")),
    "gptq_codes_of_no_inputs": ("gptq", lambda t: t.update({f"{Q}.qweight": torch.zeros(0, 64, dtype=torch.int32)})),
    "awq_codes_that_are_a_row": ("awq", lambda t: t.update({f"{Q}.qweight": t[f"{Q}.qweight"][0]})),
    "awq_zeros_that_are_missing": ("awq", lambda t: t.pop(f"{Q}.qzeros")),
    "awq_scales_of_another_type": ("awq", lambda t: t.update({f"{Q}.scales": t[f"{Q}.scales"].float()})),
}  # fmt: skip
for _name, (_base, _change) in CHANGES.items():
    add_many(_base, change_tensors, {_name: _change})


# --- what lies beside


@case()
def a_cache_file_with_scales_that_are_no_numbers(folder: Path) -> None:
    table = {"version": 1, "scheme": {}, "layers": {"0": {"keys": [[1e999]], "values": [[2**80]]}}}
    (folder / "goldstick_kv_cache.json").write_text(json.dumps(table).replace("Infinity", "1e999"))


@case()
def a_cache_file_that_is_deep(folder: Path) -> None:
    (folder / "goldstick_kv_cache.json").write_text('{"layers":' * 5000 + "1" + "}" * 5000)


@case(opened=verify_checkpoint)
def a_manifest_that_names_files_elsewhere(folder: Path) -> None:
    change_json(folder / "goldstick.json", "files", value={"../../../../etc/passwd": "0" * 64})


@case(opened=verify_checkpoint)
def a_manifest_without_files(folder: Path) -> None:
    change_json(folder / "goldstick.json", "files", value=[1])


@case(opened=verify_checkpoint)
def a_proof_that_takes_attention_from_the_hub(folder: Path) -> None:
    observed = {"sha256": "", "samples": [1.0], "numel": 1}
    proof = {"method": "outputs", "attention": "evil/attention", "observed": observed}
    change_json(folder / "goldstick.json", "proof", value=proof)


@case(opened=verify_checkpoint)
def a_proof_that_is_a_text(folder: Path) -> None:
    change_json(folder / "goldstick.json", "proof", value="passed")


@case(opened=read_report)
def a_report_with_a_layer_that_is_a_number(folder: Path) -> None:
    change_json(folder / "report.json", "layers", value=[1])


@case(opened=read_report)
def a_report_whose_sizes_are_words(folder: Path) -> None:
    change_json(folder / "report.json", "size", "bytes_after", value="small")


@case(opened=read_report)
def a_report_that_is_deep(folder: Path) -> None:
    (folder / "report.json").write_text("[" * 100_000)


@case(opened=lambda folder: LanguageModel.from_directory(torch.nn.Linear(1, 1), folder))
def a_tokenizer_that_is_no_json(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "tokenizer.json").write_text("{")


@case(opened=lambda folder: LanguageModel.from_directory(torch.nn.Linear(1, 1), folder))
def a_tokenizer_that_is_deep(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "tokenizer.json").write_text('{"model":' * 100_000)


@case(opened=lambda folder: LanguageModel.from_directory(torch.nn.Linear(1, 1), folder))
def a_tokenizer_that_brings_code(folder: Path) -> None:
    classes = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(classes))
    (folder / "evil.py").write_text("raise SystemExit('it ran')\n")


RECIPES = {
    "a_recipe_of_a_billion_laughs": "a: &a [x, x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)),
    "a_recipe_nested_a_thousand_deep": "stages: " + "[" * 1000 + "]" * 1000,
    "a_recipe_of_a_megabyte": "stages: [rtn]\n#" + "x" * 1_000_001,
    "a_recipe_of_a_hundred_thousand_keys": "".join(f"k{n}: 1\n" for n in range(100_000)),
    "a_recipe_with_a_date_that_is_none": "stages: [rtn]\ndescription: 2001-99-99\n",
    "a_recipe_with_a_number_of_ten_thousand_digits": "stages: [rtn]\ncalibration: {samples: " + "9" * 10_000 + "}\n",
    "a_recipe_with_a_list_for_a_key": "? [a]\n: b\n",
    "a_recipe_that_runs_code": "stages: !!python/object/apply:os.system [ls]\n",
}
for _name, _text in RECIPES.items():
    CASES[_name] = (
        "float",
        lambda folder, text=_text: (folder / "recipe.yaml").write_text(text),
        lambda folder: Recipe.load(folder / "recipe.yaml"),
    )


def main(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Open every case; what came of it, the memory it took and the size of its files."""
    torch.set_num_threads(1)
    sound = small_checkpoints(folder / "sound")
    for form, directory in sound.items():  # what is imported at first use is not a case's memory
        goldstick.load(directory)
        yield f"sound {form}", {}
    read_report(sound["native"])

    def watchdog(*_: object) -> None:
        raise TimeoutError(f"still not refused after {SECONDS} seconds")

    signal.signal(signal.SIGALRM, watchdog)
    for name, (base, spoil, opened) in CASES.items():
        spoiled = copy_of(sound[base], folder / name / "checkpoint")
        spoil(spoiled)
        size = sum(path.stat().st_size for path in spoiled.iterdir() if path.is_file())
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        signal.alarm(SECONDS)
        try:
            opened(spoiled)
            found = {"error": None, "message": "it was opened"}
        except GoldstickError as error:
            found = {"error": "GoldstickError", "message": str(error)}
        except Exception as error:
            found = {"error": type(error).__name__, "message": str(error)[:500]}
        finally:
            signal.alarm(0)
        growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        yield name, {**found, "growth": growth, "size": size, "seconds": round(time.process_time() - started, 4)}


if __name__ == "__main__":
    results = dict(main(Path(sys.argv[1])))
    (Path(sys.argv[1]) / "results.json").write_text(json.dumps(results))
    times = sorted(((found["seconds"], name) for name, found in results.items() if found), reverse=True)
    print(f"{len(times)} files; the longest: " + ", ".join(f"{name} {seconds:.3f} s" for seconds, name in times[:5]))
