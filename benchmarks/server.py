"""``goldstick serve`` under load, and its tokens a second beside llama.cpp's.

    python -m benchmarks.server load [--clients 64] [--seconds 120]
    python -m benchmarks.server speed [--shape 160M|1.1B|reference] [--llama-cpp PYTHON | --llama-server PROGRAM]

*load*: the bundled model in 4 bits, asked by the official client. Every greedy answer, whole or streamed, is compared
with what the same server gave when it was asked alone; some clients leave in the middle, and some ask what is refused.
The server's memory is noted while it goes on, after a minute of the same load for warming up.

*speed*: a Llama with random weights, or the bundled model, in Q4_0, one file for both servers, asked by 1, 4 and 8
clients at a time, the servers in turn. llama.cpp's is ``llama_cpp.server`` of llama-cpp-python, which answers one
request after the other, or a ``llama-server``, which batches. Writes ``benchmarks/results/server.json``; what is not
run stays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import torch
from openai import AsyncOpenAI
from transformers import AutoTokenizer

import goldstick
from benchmarks.random_llama import SHAPES
from goldstick.core.json_files import dump_json
from goldstick.hf.random_models import float_llama, llama_config
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.save.records import environment

RESULTS = Path(__file__).resolve().parent / "results" / "server.json"
MADE = Path("build") / "server"
PORT = 8471
WARMING_UP = 60.0
BUNDLED = "reference"
#: goldstick's command line, whose server finds no model to bear a pass of several sequences.
IN_TURN = (
    "from goldstick.jobs.serve.decoder import Decoder; Decoder._same_together = lambda self: False; "
    "from goldstick.cli import main; main()"
)
PROMPTS = [
    "The harbour lies", "The island", "In the square of Ostrel", "Once upon a time", "The duck " * 40, "A tree",
    "River " * 70 + "Luna", "The region", "The duck " * 40 + "swims", "It was", "Walden", "Zoe does not",
]  # fmt: skip


@contextmanager
def serving(command: list[str], threads: int) -> Iterator[psutil.Process]:
    """A server, as soon as it answers."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ)
    client = openai.OpenAI(base_url=_address(command), api_key="none", max_retries=0, timeout=600)
    try:
        for _ in range(600):
            try:
                client.models.list()
                break
            except openai.APIError:
                assert process.poll() is None, f"{command} ended with {process.returncode}"
                time.sleep(0.5)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(command: list[str]) -> str:
    return f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1"


def goldstick_command(model: Path, threads: int) -> list[str]:
    """Serves a checkpoint by goldstick, under the name ``model``."""
    words = ["serve", str(model), "--port", str(PORT), "--name", "model", "--threads", str(threads)]
    return [sys.executable, "-m", "goldstick", *words]


class Load:
    """Clients that ask, leave and ask what is wrong, and what came of it."""

    def __init__(self, client: AsyncOpenAI, alone: dict[str, str]) -> None:
        self.client, self.alone = client, alone
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.tokens = 0

    async def asks(self, number: int, end: float) -> None:
        """One client, until the time is over."""
        chance = random.Random(number)
        while time.monotonic() < end:
            prompt = chance.choice(PROMPTS)
            kind = chance.choices(["whole", "streamed", "left", "refused"], [45, 40, 10, 5])[0]
            try:
                await getattr(self, f"_{kind}")(prompt)
                self.counts[kind] += 1
            except Exception as error:
                self.problems.append(f"{kind}: {type(error).__name__}: {error}"[:300])

    async def _whole(self, prompt: str) -> None:
        found = await self.client.completions.create(model="model", prompt=prompt, max_tokens=24, temperature=0)
        assert found.usage is not None
        self.tokens += found.usage.completion_tokens
        self._compare(prompt, found.choices[0].text)

    async def _streamed(self, prompt: str) -> None:
        text = ""
        async for chunk in await self.client.completions.create(
            model="model", prompt=prompt, max_tokens=24, temperature=0, stream=True
        ):
            text += chunk.choices[0].text
        self.tokens += 24
        self._compare(prompt, text)

    async def _left(self, prompt: str) -> None:
        stream = await self.client.completions.create(
            model="model", prompt=prompt, max_tokens=300, temperature=1.5, stream=True
        )
        async for _ in stream:
            break
        await stream.close()

    async def _refused(self, prompt: str) -> None:
        try:
            await self.client.completions.create(model="model", prompt=prompt, max_tokens=10_000)
        except openai.BadRequestError:
            return
        raise AssertionError("it was not refused")

    def _compare(self, prompt: str, text: str) -> None:
        if text != self.alone[prompt]:
            self.problems.append(f"another answer to {prompt[:30]!r}: {text!r}")


async def _under_load(process: psutil.Process, clients: int, seconds: float) -> dict[str, Any]:
    limits = {"base_url": f"http://127.0.0.1:{PORT}/v1", "api_key": "none", "max_retries": 0, "timeout": 600}
    async with AsyncOpenAI(**limits) as client:  # type: ignore[arg-type]
        alone = {}
        for prompt in PROMPTS:
            found = await client.completions.create(model="model", prompt=prompt, max_tokens=24, temperature=0)
            alone[prompt] = found.choices[0].text
        load = Load(client, alone)
        before = process.memory_info().rss
        await asyncio.gather(*(load.asks(number, time.monotonic() + WARMING_UP) for number in range(clients)))
        warm, sizes = process.memory_info().rss, []
        load.counts.clear()
        load.tokens, started = 0, time.monotonic()

        async def watch() -> None:
            while True:
                await asyncio.sleep(10)
                sizes.append(process.memory_info().rss)
                print(f"{sizes[-1] / 2**20:.1f} MiB, {dict(load.counts)}, {len(load.problems)} problems", flush=True)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(load.asks(clients + number, started + seconds) for number in range(clients)))
        watching.cancel()
        took = time.monotonic() - started
        await asyncio.sleep(1)
        return {
            "clients": clients,
            "seconds": round(took, 1),
            "requests": dict(load.counts),
            "problems": load.problems[:20],
            "number_of_problems": len(load.problems),
            "greedy_answers_equal_to_alone": load.counts["whole"] + load.counts["streamed"],
            "tokens_s": round(load.tokens / took, 1),
            "mib": {
                "before_any_load": _mib(before),
                "after_warming_up": _mib(warm),
                "every_10_s": [_mib(size) for size in sizes],
                "at_the_end": _mib(process.memory_info().rss),
            },
        }


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


def load(arguments: argparse.Namespace) -> dict[str, Any]:
    """The server under load."""
    model = MADE / "reference-w4"
    if not model.exists():
        goldstick.quantize(reference_directory(), "rtn-w4a16-g128", output=model)
    with serving(goldstick_command(model, arguments.threads), arguments.threads) as process:
        return asyncio.run(_under_load(process, arguments.clients, arguments.seconds))


def _checkpoint(shape: str) -> Path:
    """The bundled model, or a Llama with random weights and its tokenizer, in Q4_0."""
    made, source = MADE / f"{shape}-q4_0", MADE / shape
    recipe = {"stages": [{"rtn": {"scheme": "q4_0"}}], "export": {"format": "gguf"}}
    if made.exists():
        return made
    if shape == BUNDLED:
        goldstick.quantize(reference_directory(), recipe, output=made, proof="tensors")
        return made
    tokenizer = AutoTokenizer.from_pretrained(reference_directory())
    sizes = {**SHAPES[shape], "vocab_size": len(tokenizer), "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
    torch.manual_seed(0)
    model = float_llama(llama_config(**sizes)).to(torch.float16)
    model.config.dtype = torch.float16
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    goldstick.quantize(source, recipe, output=made, proof="tensors")
    return made


async def _rate(clients: int, tokens: int) -> float:
    """Tokens a second of clients who ask at a time, each with a prompt of its own."""
    options = {"base_url": f"http://127.0.0.1:{PORT}/v1", "api_key": "none", "max_retries": 0, "timeout": 600}
    async with AsyncOpenAI(**options) as client:  # type: ignore[arg-type]

        async def asks(number: int) -> int:
            found = await client.completions.create(
                model="model", prompt=f"{number} The harbour lies", max_tokens=tokens, temperature=0
            )
            assert found.usage is not None
            return found.usage.completion_tokens

        started = time.monotonic()
        written = await asyncio.gather(*map(asks, range(clients)))
        return sum(written) / (time.monotonic() - started)


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of both servers, in turn."""
    model = _checkpoint(arguments.shape)
    file, threads = str(model / "model.gguf"), str(arguments.threads)
    commands = {"goldstick serve": goldstick_command(model, arguments.threads)}
    if arguments.in_turn:
        words = goldstick_command(model, arguments.threads)[3:]
        commands["goldstick serve, a pass for each answer"] = [sys.executable, "-c", IN_TURN, *words]
    common = ["--port", str(PORT), "--model", file, "--host", "127.0.0.1"]
    if arguments.llama_cpp:
        name = "llama_cpp.server of llama-cpp-python (one request after the other)"
        more = ["--n_threads", threads, "--n_ctx", "2048", "--model_alias", "model"]
        commands[name] = [arguments.llama_cpp, "-m", "llama_cpp.server", *common, *more]
    if arguments.llama_server:
        more = ["--threads", threads, "--ctx-size", "8192", "--parallel", "8", "--alias", "model"]
        commands["llama-server"] = [arguments.llama_server, *common, *more]
    found: dict[str, dict[str, list[float]]] = {name: {} for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            with serving(command, arguments.threads):
                asyncio.run(_rate(1, 8))
                for clients in (1, 4, 8):
                    rate = asyncio.run(_rate(clients, arguments.tokens))
                    found[name].setdefault(str(clients), []).append(round(rate, 2))
                    print(f"{name}: {clients} clients, {rate:.1f} tokens/s", flush=True)
    return {
        "shape": arguments.shape,
        "file": "Q4_0, the same for both",
        "tokens_of_each_answer": arguments.tokens,
        "tokens_s_by_clients": {
            name: {clients: {"median": statistics.median(rates), "rounds": rates} for clients, rates in rows.items()}
            for name, rows in found.items()
        },
    }


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["load", "speed"])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=[*SHAPES, BUNDLED], default="160M")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="A Python with llama-cpp-python[server].")
    parser.add_argument("--llama-server", metavar="PROGRAM")
    parser.add_argument("--in-turn", action="store_true", help="goldstick's server without joint passes, too.")
    parser.add_argument("--machine", default="x86 with AVX-512 and VNNI, 2 cores, shared with other work meanwhile")
    arguments = parser.parse_args()
    result = {"load": load, "speed": speed}[arguments.what](arguments)
    made = {**result, "threads": arguments.threads, "machine": arguments.machine, "versions": environment()}
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(dump_json({**kept, arguments.what: made}))
    print(dump_json(made))


if __name__ == "__main__":
    main()
