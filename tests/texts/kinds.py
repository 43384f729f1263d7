"""Every kind of text that comes from a checkpoint or a user: a few sound ones, and what reads them."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import yaml
from pyarrow import parquet

from goldstick.algorithms import RTN
from goldstick.calibration.data.chat import chat_ids, read_messages
from goldstick.calibration.data.chat_template import ChatTemplates
from goldstick.calibration.data.sources import read_documents
from goldstick.checkpoint.gguf.tokenizer import tokenizer_metadata
from goldstick.checkpoint.kv_cache import read_kv
from goldstick.checkpoint.source import open_tensors
from goldstick.checkpoint.strict_json import parse_object
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.core.scheme import Scheme
from goldstick.errors import GoldstickError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.image_processor import ProcessorPreparation
from goldstick.evaluation.tasks import TASKS
from goldstick.evaluation.tasks.pages import detokenize
from goldstick.formats import FORMATS
from goldstick.formats.name_matching import NamePatterns
from goldstick.jobs.load.front_matter import front_matter
from goldstick.jobs.save.card import model_card
from goldstick.jobs.verify.verify import verify_checkpoint
from goldstick.recipes import Recipe
from goldstick.recipes.precision import Precision, with_precision
from goldstick.recipes.sentence import parse
from goldstick.recipes.words import RECOMMENDED
from goldstick.report import Report
from goldstick.report.sensitivity import read_sensitivity
from goldstick.structure.targets import matches
from tests.support.fuzz import Seedling, seedlings

LAYER_NAMES = [f"model.layers.{layer}.{part}" for layer in range(3) for part in ("self_attn.q_proj", "mlp.up_proj")]
NAMES = [*LAYER_NAMES, "lm_head", "model.layers.0.block_sparse_moe.experts.7.w1", "a" * 200]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of text.

    Attributes:
        texts: Sound ones, of which one is mutated at a time.
        read: What a user has it read with; it is given the text and a folder to write it in.
        weight: How many of all inputs are of this kind, beside the others.
    """

    texts: tuple[bytes, ...]
    read: Callable[[bytes, Path], object]
    weight: int = field(default=10)


def kinds(folder: Path, templates: ChatTemplates) -> dict[str, Kind]:
    """All of them; ``folder`` holds the checkpoints they are made with."""
    sound = seedlings(folder / "sound")
    found = {
        "patterns": Kind(texts=PATTERNS, read=_patterns, weight=150),
        "targets": Kind(texts=TARGETS, read=_targets, weight=80),
        "schemes": Kind(
            texts=SCHEMES, read=lambda text, _: Scheme.parse(text.decode(errors="surrogateescape")), weight=10
        ),
        "json": Kind(
            texts=(b'{"a": [1, 2.5, "b", null], "c": {"d": true}}',), read=lambda text, _: parse_object(text, "it")
        ),
        "rows": Kind(texts=ROWS, read=_file("rows.jsonl", lambda path: read_documents(str(path), None)), weight=60),
        "text": Kind(
            texts=(b"A text.\n\nAnd more.",), read=_file("a.txt", lambda path: read_documents(str(path), None))
        ),
        "compressed rows": Kind(
            texts=tuple(gzip.compress(text, mtime=0) for text in ROWS),
            read=_file("rows.jsonl.gz", lambda path: read_documents(str(path), None)),
        ),
        "parquet": Kind(
            texts=_parquet_files(), read=_file("rows.parquet", lambda path: read_documents(str(path), None)), weight=15
        ),
        "cards": Kind(texts=CARDS, read=_file("README.md", _card), weight=10),
        "recipes": Kind(
            texts=tuple(yaml.safe_dump(parse(name).recipe()).encode() for name in RECOMMENDED),
            read=_file("recipe.yaml", Recipe.load),
            weight=6,
        ),
        "sensitivity": Kind(texts=(_sensitivity(),), read=_file("found.json", _read_sensitivity), weight=20),
        "templates": Kind(texts=TEMPLATES, read=lambda text, _: _template(text, templates), weight=8),
        "preparation": Kind(
            texts=PREPARATIONS,
            read=_file("preprocessor_config.json", lambda path: ProcessorPreparation.from_directory(path.parent)),
        ),
        "detokenized pages": Kind(texts=PAGES, read=lambda text, _: detokenize(text.decode(errors="replace"))),
        "cache": Kind(
            texts=(CACHE,), read=_file("goldstick_kv_cache.json", lambda path: read_kv(path.parent, {})), weight=10
        ),
        **_tasks(),
        **_of_checkpoints(folder, sound),
    }
    return found


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def written(text: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(text)
        return read(path)

    return written


def _of_checkpoints(folder: Path, sound: Mapping[str, Seedling]) -> dict[str, Kind]:
    """Configs, manifests, reports, tokenizers and indexes of small checkpoints."""
    found = {}
    for form in ("compressed-tensors", "native", "gptq", "awq"):
        files, read = sound[form].files, sound[form].read
        place = folder / f"config-{form}"
        place.mkdir()
        (place / "model.safetensors").write_bytes(files["model.safetensors"])

        def with_config(text: bytes, _: Path, place: Path = place, read: Callable[[Path], object] = read) -> object:
            (place / "config.json").write_bytes(text)
            return read(place)

        found[f"config of {form}"] = Kind(texts=_configs(files["config.json"], form), read=with_config, weight=8)
    whole = folder / "sound" / "native"
    report = (whole / "report.json").read_bytes()
    found["reports"] = Kind(texts=(report,), read=_file("report.json", _report), weight=25)
    manifest = json.loads((whole / MANIFEST_NAME).read_bytes())
    manifest |= {
        "files": {"README.md": hashlib.sha256(b"").hexdigest()},
        "proof": {"method": "tensors", "passed": True},
    }
    found["manifests"] = Kind(texts=(json.dumps(manifest).encode(),), read=_file(MANIFEST_NAME, _manifest), weight=15)
    tokenizer = (folder / "sound" / "with-tokenizer" / "tokenizer.json").read_bytes()
    found["tokenizers"] = Kind(
        texts=(tokenizer, json.dumps(_byte_level()).encode()),
        read=_file("tokenizer.json", lambda path: tokenizer_metadata(path.parent, 48)),
        weight=20,
    )
    settings = b'{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true, "chat_template": "x"}'
    place = folder / "tokenizer-settings"
    place.mkdir()
    (place / "tokenizer.json").write_bytes(tokenizer)

    def with_settings(text: bytes, _: Path) -> object:
        (place / "tokenizer_config.json").write_bytes(text)
        return tokenizer_metadata(place, 48)

    found["tokenizer settings"] = Kind(texts=(settings,), read=with_settings, weight=10)
    header = sound["native"].files["model.safetensors"]
    shards = folder / "shards"
    shards.mkdir()
    (shards / "a.safetensors").write_bytes(header)
    names = list(open_tensors(whole))
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "a.safetensors")}).encode()

    def with_index(text: bytes, _: Path) -> object:
        (shards / "model.safetensors.index.json").write_bytes(text)
        return open_tensors(shards)

    found["indexes"] = Kind(texts=(index,), read=with_index, weight=25)
    end = 8 + int.from_bytes(header[:8], "little")
    headers = folder / "headers"
    headers.mkdir()

    def with_header(text: bytes, _: Path) -> object:
        (headers / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + header[end:])
        return open_tensors(headers)

    found["headers"] = Kind(texts=(header[8:end],), read=with_header, weight=25)
    return found


def _configs(config: bytes, form: str) -> tuple[bytes, ...]:
    """The config as it is, and with patterns in it."""
    table = json.loads(config)
    told = table["quantization_config"]
    if form == "gptq":
        told["dynamic"] = {"-:.*lm_head": {}, r"+:model\.layers\.\d+\.mlp\..*": {"bits": 4}, "(?!.*q_proj)x": {}}
    elif form == "awq":
        told["modules_to_not_convert"] = ["lm_head", "embed"]
    elif form == "compressed-tensors":
        told["ignore"] = ["re:.*lm_head", "lm_head"]
        next(iter(told["config_groups"].values()))["targets"] = [r"re:model\.layers\.\d+\..*", "Linear"]
    told["kv_cache_scheme"] = None
    return config, json.dumps(table).encode()


def _manifest(path: Path) -> object:
    """What verify does before it hashes: the manifest names no file of this folder."""
    (path.parent / "README.md").write_bytes(b"")
    return verify_checkpoint(path.parent)


def _report(path: Path) -> object:
    return Report.read(path.parent).to_json().encode()


def _card(path: Path) -> object:
    front_matter(path)
    return model_card("somebody/model", None, FORMATS["awq"], {"architectures": ["A"]}, source=path.parent).encode()


def _patterns(text: bytes, _: Path) -> object:
    lines = text.decode(errors="surrogateescape").split("\n")
    patterns = NamePatterns([f"re:{line}" for line in lines])
    return [patterns.first(name) for name in NAMES]


def _targets(text: bytes, _: Path) -> object:
    return [matches(line, name) for line in text.decode(errors="surrogateescape").split("\n")[:50] for name in NAMES]


def _template(text: bytes, templates: ChatTemplates) -> object:
    tokenizer = SimpleNamespace(
        chat_template="x",
        special_tokens_map={"bos_token": "<s>"},
        get_chat_template=lambda: text.decode(errors="replace"),
    )
    messages = read_messages([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "here")
    try:
        return chat_ids(_Counting(tokenizer), messages, "here", templates)
    except GoldstickError as error:
        str(error).encode()
        raise


class _Counting:
    """A tokenizer of characters around a template."""

    def __init__(self, inner: SimpleNamespace) -> None:
        self.chat_template, self.special_tokens_map = inner.chat_template, inner.special_tokens_map
        self.get_chat_template = inner.get_chat_template

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": list(map(ord, text))}


def _read_sensitivity(path: Path) -> object:
    found = None
    with contextlib.suppress(GoldstickError):
        found = read_sensitivity(path)
    with_precision([RTN(scheme="w4a16-g32")], Precision(sensitivity=str(path), bits_per_weight=4.5), path.parent)
    return found


def _tasks() -> dict[str, Kind]:
    """The data files of each task that reads text."""
    found = {}
    for name, (file, texts) in TASK_FILES.items():

        def load(text: bytes, folder: Path, name: str = name, file: str = file) -> object:
            path = folder / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text)
            loaded = TASKS[name].load(DataSource(folder))  # type: ignore[attr-defined]
            return [str(item).encode() for item in loaded]

        found[f"task {name}"] = Kind(texts=texts, read=load, weight=6)
    return found


PATTERNS = (
    rb".*mlp\.experts\.\d+\.(gate|up)_proj$",
    b"(?!.*lm_head)model.*\n^lm_head$\n(?i)MODEL",
    rb"^model\.layers\.(?:1[0-9]|2)\.[^.]+\.\w+$",
    b"(a+)+$\n(.*a){20}\n[a-z_.]*?b{2,5}",
)
TARGETS = (b"model.layers.*.mlp.*\nlm_head", b"*.q_proj\n*[!a-c]_proj\n?*", b"mlp.down_proj\n*a*a*a*a*b")
SCHEMES = (b"w4a16-g128", b"w8a8-static-shifted-channel-asym", b"w4a8-dynamic-g32")
ROWS = (
    b'{"text": "one"}\n{"text": "two \\u00e9 \\ud83d\\ude00"}\n{"text": null, "part": "val"}\n',
    b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [{}]}]}\n',
    b'{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}\n\n{"text": "x"}\n',
)
CARDS = (
    b"---\nlicense: other\nlicense_name: llama3\nlanguage:\n- en\ndatasets:\n- x\n---\n# Llama\n",
    b"---\nbase_model: meta/Llama\nbase_model_relation: quantized\nlanguage: [en, 'no']\nlicense: mit\n---\n",
)
TEMPLATES = (
    b"{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message['content'] | trim }}{% endfor %}",
    b"{%- set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    b"{% set ns.n = ns.n + 1 %}{% endif %}{% if loop.last and ns.n > 3 %}{{ raise_exception('no') }}{% endif %}"
    b"{% endfor %}{{ messages | tojson }}{{ 2 * ns.n }}",
    b"{% macro say(m) %}<{{ m.role | upper }}>{{ '%5d' % 3 }}{% endmacro %}"
    b"{% for i in range(3) %}{{ say(messages[0]) }}{% endfor %}",
)
PREPARATIONS = (
    b'{"image_processor_type": "ConvNextImageProcessor", "do_resize": true, "size": {"shortest_edge": 224}, '
    b'"crop_pct": 0.875, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3}',
    b'{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "do_center_crop": true, '
    b'"crop_size": 32, "do_normalize": false}',
)
PAGES = (b' Du Fu ( 712 \xe2\x80\x93 770 ) wrote " poems " . They had 1 @,@ 400 { lines } [ a ] .\n',)
CACHE = (
    b'{"version": 1, "scheme": {"mode": "static", "keys": "head", "values": "head"}, '
    b'"layers": {"0": {"keys": [[1.0], [2.0]], "values": [[0.5], [0.25]]}}}'
)
_SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "A",
            "paragraphs": [
                {
                    "context": "b c d",
                    "qas": [{"id": "1", "question": "e?", "answers": [{"text": "c", "answer_start": 2}]}],
                }
            ],
        }
    ],
}
_CEVAL = {"subject": "law", "question": "q", "A": "1", "B": "2", "C": "3", "D": "4", "answer": "B"}
TASK_FILES: Mapping[str, tuple[str, tuple[bytes, ...]]] = {
    "boolq": (
        "boolq/val.jsonl",
        (b'{"passage": "p", "question": "q", "label": 1}\n{"passage": "p", "question": "q", "answer": true}\n',),
    ),
    "boolq/goldenstick": ("boolq/val.jsonl", (b'{"passage": "p", "question": "q", "label": 0}\n',)),
    "squad": ("squad/dev-v1.1.json", (json.dumps(_SQUAD).encode(),)),
    "squad/goldenstick": ("squad/dev-v1.1.json", (json.dumps(_SQUAD).encode(),)),
    "ceval": ("ceval/val.jsonl", (json.dumps(_CEVAL).encode() + b"\n",)),
    "wikitext2/lm-eval": ("wikitext2/wiki.test.raw", (b" = A = \n b c \n = = D = = \n e \n = F = \n",)),
    "tinystories": (
        "tinystories/stories.jsonl",
        (b'{"text": "Once.", "part": "val"}\n{"text": "Twice.", "part": "val"}\n',),
    ),
}


def _byte_level() -> dict[str, Any]:
    vocabulary = {"<s>": 0, "a": 1, "b": 2, "ab": 3, "\u0120": 4}
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}+|\s+"}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {"type": "ByteLevel", "add_prefix_space": False}],
        },
        "post_processor": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"], "byte_fallback": False},
    }


def _sensitivity() -> bytes:
    layer = {
        "shape": [64, 64],
        "elements": 4096,
        "kl": {"2": 1.0, "4": 0.1, "8": 0.01},
        "bits_per_weight": {"2": 2.5, "4": 4.5, "8": 8.5},
    }
    layers = [{"name": name, **layer} for name in LAYER_NAMES]
    grid = {"granularity": "group", "group_size": 32, "symmetric": True}
    return json.dumps({"goldstick_sensitivity": 1, "grid": grid, "layers": layers}).encode()


def _parquet_files() -> tuple[bytes, ...]:
    rows = (
        {"text": ["one", None, "two"], "part": ["train", "val", None]},
        {"messages": [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]] * 3},
    )
    found = []
    for compression in ("none", "snappy"):
        for table in rows:
            file = io.BytesIO()
            parquet.write_table(pyarrow.table(table), file, compression=compression)
            found.append(file.getvalue())
    return tuple(found)
