"""The tables of docs/comparison.md: goldstick beside other tools, from the results of the benchmarks alone."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from tools.docs.results import read, table

#: Entry of peers.json → what the table calls the model, the scheme, and what is not comparable in it.
CASES = {
    "reference gptq-w4": ("reference", "GPTQ, W4, groups of 128"),
    "reference smoothquant-w8a8": ("reference", "SmoothQuant and GPTQ, W8A8 dynamic"),
    "stories260k gptq-w4": ("stories260K", "GPTQ, W4, groups of 32"),
    "stories260k awq-w4": ("stories260K", "AWQ, W4, groups of 32"),
    "stories260k smoothquant-w8a8": ("stories260K", "SmoothQuant and GPTQ, W8A8 dynamic"),
    "random-160m-bfloat16 gptq-w4": ("160 M random weights, bfloat16", "GPTQ, W4, groups of 128"),
    "random-160m-bfloat16 awq-w4": ("160 M random weights, bfloat16", "AWQ, W4, groups of 128"),
    "random-160m-bfloat16 smoothquant-w8a8": ("160 M random weights, bfloat16", "SmoothQuant and GPTQ, W8A8 dynamic"),
    "random-160m gptq-w4": ("160 M random weights, float32", "GPTQ, W4, groups of 128"),
    "random-160m awq-w4": ("160 M random weights, float32", "AWQ, W4, groups of 128"),
    "random-160m smoothquant-w8a8": ("160 M random weights, float32", "SmoothQuant and GPTQ, W8A8 dynamic"),
    "reference gptq-w4-auto-round": ("reference", "W4, groups of 128; goldstick: GPTQ"),
    "reference finish-w2-auto-round": ("reference", "W2, groups of 128; goldstick: GPTQ and slb_finish"),
}
NETWORKS = ("goldstick W4 g128 optimized", "goldstick W8A8 optimized", "llama.cpp Q4_0", "torch dynamic int8",
            "transformers bfloat16", "transformers float32")  # fmt: skip


def _of(runs: list[dict[str, Any]], key: str) -> float:
    return float(median(run[key] for run in runs))


def _pair(values: Iterator[float | None], digits: int) -> str:
    return ", ".join("–" if value is None else f"{value:.{digits}f}" for value in values)


def peers(tool: str) -> str:
    """What one tool and goldstick make of the same model: accuracy, seconds, and memory; goldstick's figure first."""
    rows = []
    found = read("peers")
    for name, (model, scheme) in CASES.items():
        case = found[name]
        if case["peer"] != tool:
            continue
        accuracy, runs = case.get("accuracy", {}), case["runs"]
        both = ("goldstick", tool)
        timed = not case.get("disturbed")
        rows.append([
            model, scheme,
            _pair((accuracy.get(one, {}).get("perplexity") for one in both), 3),
            _pair((accuracy.get(one, {}).get("divergence") for one in both), 4),
            _pair((_of(runs[one], "process_seconds") for one in both), 0) if timed else "disturbed",
            _pair((_of(runs[one], "peak_process_bytes") / 1e6 for one in both), 0),
        ])  # fmt: skip
    head = ["model", "scheme", "perplexity", "mean KL", "seconds", "MB at most"]
    return table(head, rows)


def llm_compressor() -> str:
    """Beside llm-compressor."""
    return peers("llm-compressor")


def auto_round() -> str:
    """Beside auto-round."""
    return peers("auto-round")


def frontier() -> str:
    """Efforts beside auto-round on the reference model: mean KL in thousandths of a nat, processor seconds."""
    found = read("frontier")["reference"]
    tools = {
        "`--effort default`": "default", "`--effort best`": "best", "auto-round": "auto-round",
        "auto-round, 1000 iterations": "auto-round best",
    }  # fmt: skip
    rows = []
    for scheme in ("w4a16-g128", "w3a16-g128", "w2a16-g64", "nvfp4a16", "mxfp4a16"):
        cells = [found.get(f"{scheme} {tool}", {}).get("0") for tool in tools.values()]
        rows.append([f"`{scheme}`", *("–" if cell is None else _kl_and_time(cell) for cell in cells)])
    return table(["scheme", *tools], rows)


def _kl_and_time(cell: dict[str, Any]) -> str:
    low, high = (1000 * end for end in cell["kl_interval"])
    return f"{1000 * cell['kl']:.2f} ({low:.2f} … {high:.2f}); {cell['processor_seconds']:.0f} s"


def decoding() -> str:
    """Tokens a second, one at a time, on two machines."""
    machines = [
        {row["network"]: row for row in read(name)["1.1B, 22 blocks, 2 threads"]["decode"]}
        for name in ("decode", "decode-amx")
    ]
    rows = [[network, *(f"{machine[network]['tokens_s']:.1f}" for machine in machines)] for network in NETWORKS]
    return table(["network of 1.1 billion weights", "AVX2", "AVX-512 and AMX"], rows)


def gguf() -> str:
    """A file of Q4_K_M: made and run by both."""
    found = read("gguf-speed")["1.1B q4_k_m"]
    both = ("goldstick", "llama.cpp")
    run, make = found["runs"]["avx512"], found["make"]
    seconds = make["seconds"]
    return table(["Q4_K_M, 1.1 billion weights", *both], [
        ["tokens a second, one at a time", *(f"{run['decode']['tokens_s'][one]:.1f}" for one in both)],
        ["tokens a second of a prompt of 512", *(f"{run['prefill']['tokens_s'][one]:.1f}" for one in both)],
        ["seconds to make the file, goldstick's with the proof", *(f"{seconds[one]:.0f}" for one in both)],
        ["the same without the proof", f"{make['seconds_without_proof']:.0f}", f"{seconds['llama.cpp']:.0f}"],
        ["GB of memory for that", *(f"{make['peak_bytes'][one] / 1e9:.2f}" for one in both)],
    ])  # fmt: skip


def k_quants() -> str:
    """Mean KL of the reference model as GGUF files, in thousandths of a nat."""
    found = read("k-quants")["reference"]
    columns = ("rtn", "imatrix", "gptq", "gptaq")
    rows = [[f"`{name}`", *(f"{1000 * found[name][one]['kl']:.2f}" for one in columns)]
            for name in ("q4_k_m", "q3_k_m", "q2_k_m")]  # fmt: skip
    head = ["mixture", "llama.cpp's rounding", "with an importance matrix", "`gptq`", "`gptaq`"]
    return table(head, rows)


def reading() -> str:
    """How far GPTQModel's logits are from goldstick's on the files that goldstick writes."""
    found = read("cross-reading")["written_here"]
    rows = [[name, f"{one['in_float32']:.4f}", f"{one['largest_logit']:.1f}"] for name, one in found.items()]
    return table(["written by goldstick as", "largest difference of logits", "largest logit"], rows)


def kernels() -> str:
    """One layer of 4-bit weights beside torch's own int4 kernel: times as fast as float32, by tokens."""
    found = read("kernels")["shapes"]["11008x4096"]["rows"]
    tokens = sorted({row["tokens"] for row in found})
    rows = []
    for kernel in ("W4A16 g128", "torch int4 g128 bfloat16"):
        fast = {row["tokens"]: row["times_float32"] for row in found if row["kernel"] == kernel}
        rows.append([kernel, *(f"{fast[count]:.2f}" if count in fast else "–" for count in tokens)])
    return table(["kernel, [11008 × 4096], AVX2", *(str(count) for count in tokens)], rows)
