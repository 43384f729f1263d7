"""llama.cpp beside the other networks of ``benchmarks/decode.py``: a file of the same shape, a process of its own."""

from __future__ import annotations

import atexit
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.gguf.writer import GgufWriter

WORKER = Path(__file__).with_name("llama_cpp_worker.py")
_BLOCK, _BLOCK_BYTES = 32, 18  # of Q4_0: a scale of 16 bits, then 32 codes of 4


class LlamaCpp:
    """A network in llama.cpp.

    Args:
        python: A Python that has llama-cpp-python.
        file: The network.
        threads: How many it may use.
        clock: ``wall`` or ``processor``.
    """

    def __init__(self, python: str, file: Path, threads: int, clock: str) -> None:
        self.process = subprocess.Popen(
            [python, str(WORKER), str(file), str(threads), clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        atexit.register(self.process.terminate)
        if self._answer() != "ready":
            raise SystemExit(f"{python} cannot run llama.cpp on {file}")

    def decode(self, tokens: int) -> float:
        """Seconds for some tokens more."""
        return self._seconds("decode", tokens)

    def prefill(self, tokens: int) -> float:
        """Seconds for a prompt."""
        return self._seconds("prefill", tokens)

    def _seconds(self, what: str, tokens: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {tokens}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def random_file(config: Any) -> Path:
    """A network with random weights, Q4_0 throughout, that is removed when this process ends.

    Args:
        config: The shape, as transformers holds it.
    """
    folder = tempfile.TemporaryDirectory(prefix="goldstick-llama-cpp-")
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "model.gguf"
    write_random(file, config)
    return file


def write_random(file: Path, config: Any) -> None:
    """A Llama with random weights in Q4_0, without a vocabulary."""
    heads, width = config.num_attention_heads, config.hidden_size
    metadata = {
        "general.file_type": 2,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": width,
        "llama.block_count": config.num_hidden_layers,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.dimension_count": width // heads,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "no_vocab",
    }
    shapes = _shapes(config)
    specs = {name: _stored(shape) for name, shape in shapes.items()}
    with GgufWriter(file, "llama", metadata, specs) as writer:
        for name, shape in shapes.items():
            writer.write(name, torch.ones(shape) if len(shape) == 1 else _random_blocks(shape))


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    width, wide = config.hidden_size, config.intermediate_size
    kept = width // config.num_attention_heads * config.num_key_value_heads
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab_size, width)}
    for block in range(config.num_hidden_layers):
        shapes |= {
            f"blk.{block}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (width,),
                "attn_q": (width, width),
                "attn_k": (kept, width),
                "attn_v": (kept, width),
                "attn_output": (width, width),
                "ffn_norm": (width,),
                "ffn_gate": (wide, width),
                "ffn_up": (wide, width),
                "ffn_down": (width, wide),
            }.items()
        }
    return shapes | {"output_norm.weight": (width,), "output.weight": (config.vocab_size, width)}


def _stored(shape: tuple[int, ...]) -> tuple[str, torch.Size]:
    if len(shape) == 1:
        return "F32", torch.Size([4 * shape[0]])
    return "Q4_0", torch.Size([shape[0], shape[1] // _BLOCK * _BLOCK_BYTES])


def _random_blocks(shape: tuple[int, ...]) -> Tensor:
    blocks = torch.randint(0, 256, (shape[0] * shape[1] // _BLOCK, _BLOCK_BYTES), dtype=torch.uint8)
    blocks[:, :2] = torch.tensor([0.02 * 7 / 16], dtype=torch.float16).view(torch.uint8)
    return blocks.view(shape[0], -1)
