"""Whether llama.cpp computes what goldstick does: on files of goldstick's, and on files of its own quantizer's.

Every architecture that goldstick writes is built small, with random numbers. llama.cpp rounds the inputs of a product
of quantized weights to 8 bits in groups of 32, so outputs differ a little: they agree when the squared difference of
all logits (of BERT, of the last hidden state) is at most 1e-4 of their sum of squares (NMSE). On float files the most
likely next token of every position is the same, too; a model in several files gives what it gives in one, to the bit;
and so transformers' own reader, where it knows the architecture; where it does not, its words are kept. A text gives
the same tokens with a tokenizer of every kind. Run by ``make llama-cpp-check``; ``--python`` names a Python with
llama-cpp-python, and ``--out`` a file for what was found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import goldstick
from goldstick.checkpoint.entries import Entry
from goldstick.checkpoint.gguf.entries import gguf_layout, write_gguf
from goldstick.checkpoint.gguf.tokenizer import tokenizer_metadata
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.core.progress import quiet
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.names import load_config, quiet_libraries
from goldstick.hf.source import open_source
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.save import finish
from goldstick.jobs.save.records import environment
from goldstick.recipes.sentence import parse
from tests.support.gguf_models import GGUF_MODELS
from tests.support.gguf_tokenizers import ROWS, SPLITTINGS, byte_level, save, sentencepiece, unigram, wordpiece
from tests.support.proofs import prove_here

BOUND = 1e-4
WORKER = Path(__file__).with_name("worker.py")
SCHEMES = {"Q4_0": "w4a16-g32", "Q8_0": "w8a16-g32", "MXFP4": "mxfp4a16", "NVFP4": "nvfp4a16"}
#: Models in whose graphs llama.cpp multiplies with the scale of NVFP4's scales, and whose rows fill blocks of 64.
MULTIPLIED = ("llama", "mistral", "mixtral", "qwen3", "reference")
#: Those that llama.cpp's own quantizer makes of whole files.
MADE_THERE = ("Q4_0", "Q8_0")
MIXTURE = "q4_k_m"
#: Models that transformers' own reader knows, given the config; Mistral's file is one of Llama, and read as that.
READ_BY_TRANSFORMERS = (
    *("llama", "mistral", "qwen2", "qwen2_yarn", "qwen3", "starcoder2", "phi3", "phi3_longrope", "gemma2", "gemma3"),
    *("qwen2_moe", "qwen3_moe", "gpt2", "falcon", "reference"),
)
#: Whose files llama.cpp's own quantizer is given, too.
QUANTIZED_THERE = ("llama", "mistral", "qwen2", "qwen3", "reference")
TEXT = "The harbour lies on the north side of the island,\n\nwhere 12 boats don't fear the wind."
#: Ends of the names of matrices whose products are added to the residual.
ADDED = ("o_proj", "down_proj", "c_proj", "w2", "dense", "dense_4h_to_h")
EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings")


def main() -> int:
    """Print a line for every comparison; 1 where one does not agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--models", nargs="*", default=[*GGUF_MODELS, "reference", "tokenizers"])
    parser.add_argument("--out", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    quiet_libraries()
    failed = 0
    kept: dict[str, Any] = {}
    if arguments.out and arguments.out.is_file():  # of other models
        kept = json.loads(arguments.out.read_text(encoding="utf-8"))
    kept["environment"] = environment() | {"llama-cpp-python": _run(arguments.python, "version").strip()}
    finish.prove = prove_here  # in this process, which saves most of the time
    with tempfile.TemporaryDirectory(prefix="goldstick-llama-cpp-") as folder:
        for name in arguments.models:
            (Path(folder) / name).mkdir()
            compared = _tokenizers if name == "tokenizers" else partial(_compared, name)
            for what, error in compared(Path(folder) / name, arguments.python):
                failed += not error <= BOUND
                print(f"{name:16} {what:48} {error:.2e}{'' if error <= BOUND else f'  more than {BOUND}'}", flush=True)
                kept.setdefault("models", {}).setdefault(name, {})[what] = float(f"{error:.3e}")
            if name in GGUF_MODELS and name not in READ_BY_TRANSFORMERS:
                words = _words_of_transformers(Path(folder) / name)
                print(f"{name:16} transformers: {words}", flush=True)
                kept.setdefault("not read by transformers", {})[name] = words
            if arguments.out:
                arguments.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(failed > 0)


def _compared(name: str, folder: Path, python: str) -> Iterator[tuple[str, float]]:
    source = reference_directory() if name == "reference" else _tiny(name, folder / "float")
    for kind, scheme in SCHEMES.items():
        if kind == "NVFP4" and name not in MULTIPLIED:
            continue
        search = "mse" if kind == "NVFP4" else "minmax"  # whose scale of scales has an inverse
        recipe = {"stages": [{"rtn": {"scheme": scheme, "range_search": search}}], "export": {"format": "gguf"}}
        goldstick.quantize(source, recipe, output=folder / kind, proof="tensors")
        file = folder / kind / GGUF_NAME
        outputs = _outputs(file.parent, file, folder, python)
        yield f"NMSE, {kind} written by goldstick", _nmse(*outputs, left_out=_turned(source))
    mixture = {**parse(f"rtn-{MIXTURE}").recipe(), "export": {"format": "gguf"}}
    goldstick.quantize(source, mixture, output=folder / MIXTURE, proof="tensors")
    outputs = _outputs(folder / MIXTURE, folder / MIXTURE / GGUF_NAME, folder, python)
    yield f"NMSE, {MIXTURE} written by goldstick", _nmse(*outputs, left_out=_turned(source))
    plain = float_file(source, folder)
    mine, theirs = _outputs(plain, plain, folder, python)
    yield "NMSE, F32 written by goldstick", _nmse(mine, theirs)
    parts = _in_parts(source, folder / "parts", plain.stat().st_size // 3)
    yield "share of outputs that differ, F32 in several files", float(np.mean(_found(parts, folder, python) != theirs))
    if name in READ_BY_TRANSFORMERS:
        yield "NMSE, F32 read by transformers", _nmse(mine, _read_by_transformers(source, plain, name == "mistral"))
    yield "share of greedy tokens that differ, F32", float(np.mean(mine.argmax(-1) != theirs.argmax(-1)))
    for kind in MADE_THERE if name in QUANTIZED_THERE else ():
        file = folder / f"llama-cpp-{kind}.gguf"
        _run(python, "quantize", str(plain), str(file), kind)
        yield f"NMSE, {kind} written by llama.cpp's quantizer", _nmse(*_outputs(file, file, folder, python))
    if (source / "tokenizer.json").is_file():
        yield "share of a text's tokens that differ", _other_tokens(source, plain, python)


def _tokenizers(folder: Path, python: str) -> Iterator[tuple[str, float]]:
    """The tokens that a text gives with a tokenizer of every kind, in a file with one tensor."""
    kinds: dict[str, Any] = {f"byte-level BPE, {name}": partial(byte_level, name) for name in SPLITTINGS}
    kinds |= {"sentencepiece BPE": sentencepiece, "WordPiece": wordpiece, "unigram": unigram}
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "cls": "[CLS]", "sep": "[SEP]"}
    for number, (kind, build) in enumerate(kinds.items()):
        here = folder / str(number)
        here.mkdir()
        tokenizer = build()
        unknown = {"unk": "[UNK]"} if kind == "WordPiece" else {}
        words = {name: token for name, token in (names | unknown).items() if token in tokenizer.get_vocab()}
        save(tokenizer, here, **{f"{name}_token": token for name, token in words.items()})
        specs = {"token_embd.weight": ("F32", torch.Size([ROWS, 4]))}
        with GgufWriter(here / GGUF_NAME, "llama", tokenizer_metadata(here, ROWS), specs) as writer:
            writer.write("token_embd.weight", torch.zeros(ROWS, 1))
        yield f"share of tokens that differ, {kind}", _other_tokens(here, here / GGUF_NAME, python)


def _other_tokens(directory: Path, file: Path, python: str) -> float:
    mine = AutoTokenizer.from_pretrained(directory)(TEXT, add_special_tokens=False)["input_ids"]
    theirs = [int(number) for number in _run(python, "tokens", str(file), TEXT).strip().split(",")]
    return float(np.mean([a != b for a, b in zip_longest(mine, theirs)]))


def _tiny(name: str, folder: Path) -> Path:
    """A random model whose blocks add little to the residual, as those of trained ones do: scaled by depth, as GPT-2's,
    and under larger embeddings. Without that every block's output is larger than what it is added to, and so is the
    rounding of its inputs.
    """
    model = GGUF_MODELS[name]()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            module = path.removesuffix(".weight").rpartition(".")[2]
            if module in ADDED and parameter.ndim > 1:
                parameter.mul_((2 * model.config.num_hidden_layers) ** -0.5)
            elif module in EMBEDDINGS:
                parameter.mul_(8)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def float_file(source: Path, folder: Path, max_shard_size: int | None = None) -> Path:
    """The float model as a GGUF file, or as several that hold so many bytes each; the folder's ``model.gguf``."""
    found = open_source(source)
    entries = [
        Entry(
            name=name,
            outputs={name: (info.shape, torch.float32)},
            produce=lambda name=name, info=info: {name: info.read().float()},
        )
        for name, info in found.tensors.items()
    ]
    outputs = {name: spec for entry in entries for name, spec in entry.outputs.items()}
    layout = gguf_layout(outputs, load_config(source).to_dict(), source, source.name)
    write_gguf(folder, entries, layout, quiet, max_shard_size)
    return folder / GGUF_NAME


def _in_parts(source: Path, folder: Path, size: int) -> Path:
    """The first of several files of the float model."""
    folder.mkdir()
    float_file(source, folder, size)
    first, *others = sorted(folder.glob("*.gguf"))
    assert others, f"{first} is the only file"
    return first


def _outputs(mine: Path, theirs: Path, folder: Path, python: str) -> tuple[np.ndarray, np.ndarray]:
    """What goldstick and llama.cpp compute of 32 random tokens: logits, or the last hidden state."""
    model: Any = goldstick.load(mine, dtype=torch.float32)
    expected, what = _answer(model, _tokens(model))
    (folder / "asked.json").write_text(json.dumps([what, _tokens(model)[0].tolist()]))
    return expected, _found(theirs, folder, python)


def _tokens(model: Any) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (1, 32), generator=torch.Generator().manual_seed(1))


def _answer(model: Any, ids: torch.Tensor) -> tuple[np.ndarray, str]:
    with torch.no_grad():
        output = model(input_ids=ids)
    logits = getattr(output, "logits", None)
    found = output.last_hidden_state if logits is None else logits
    return found[0].double().numpy(), "states" if logits is None else "logits"


def _found(file: Path, folder: Path, python: str) -> np.ndarray:
    """What llama.cpp computes of the tokens that goldstick was given last."""
    what, ids = json.loads((folder / "asked.json").read_text())
    _run(python, what, str(file), str(folder / "found.npy"), ",".join(map(str, ids)))
    return np.load(folder / "found.npy").astype(np.float64)


def _read_by_transformers(source: Path, file: Path, alone: bool = False) -> np.ndarray:
    """What a file's model computes, read by transformers' own reader, ``alone`` or with its config."""
    config = None if alone else AutoConfig.from_pretrained(source)  # of which not every file has all
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, config=config, dtype=torch.float32
    ).eval()
    return _answer(model, _tokens(model))[0]


def _words_of_transformers(folder: Path) -> str:
    """What transformers says of a float file that its reader does not take, or how far off is what it reads."""
    try:
        found = _read_by_transformers(folder / "float", folder / GGUF_NAME)
    except Exception as error:  # whatever it is: it is kept, not handled
        return f"{type(error).__name__}: {error}"
    model: Any = goldstick.load(folder / GGUF_NAME, dtype=torch.float32)
    return f"reads other numbers: NMSE {_nmse(_answer(model, _tokens(model))[0], found):.2e}"


def _nmse(mine: np.ndarray, theirs: np.ndarray, left_out: int = 0) -> float:
    """Squared difference over the sum of squares, of all positions but those where it is largest."""
    errors, squares = ((theirs - mine) ** 2).sum(-1), (mine**2).sum(-1)
    kept = np.argsort(errors / squares)[: len(errors) - left_out]
    return float(errors[kept].sum() / squares[kept].sum())


def _turned(source: Path) -> int:
    """At how many positions rounding may turn a choice between experts that are nearly equal: 2 of 32 in mixtures."""
    return 2 if any("expert" in name for name in open_source(source).tensors) else 0


def _run(python: str, *arguments: str) -> str:
    done = subprocess.run([python, str(WORKER), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])} failed in llama.cpp:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
