"""The tables of docs/k-quants.md: GGUF files of a model of 1.1 billion weights, made and run by both tools."""

from __future__ import annotations

from tools.docs.results import read, table

SHAPE = "1.1B"
#: What goldstick calls a type → llama.cpp's name, in the order of the tables.
TYPES = {"q4_k_m": "Q4_K_M", "q6_k": "Q6_K", "q4_0": "Q4_0"}
INSTRUCTIONS = {
    "amx": "AMX", "avx512": "AVX-512", "avx512, 8 bits": "AVX-512, 8-bit inputs",
    "avx2": "AVX2", "avx2, 8 bits": "AVX2, 8-bit inputs",
}  # fmt: skip


def running() -> str:
    """Tokens a second of every type and instruction set that was measured, and the floor of a token."""
    rows = []
    for name, published in TYPES.items():
        runs = read("gguf-speed").get(f"{SHAPE} {name}", {}).get("runs", {})
        for isa, run in sorted(runs.items(), key=lambda each: [*INSTRUCTIONS].index(each[0])):
            decode, prompt = run["decode"], run.get("prefill")
            rows.append([
                f"{published}, {INSTRUCTIONS[isa]}",
                _pair(decode["tokens_s"], 1, 1), f"{decode['times_llama_cpp']:.2f}",
                f"{decode['floor_ms']:.1f} ms, {decode['fraction']:.2f}",
                _pair(prompt["tokens_s"], 1, 1) if prompt else "–",
                f"{prompt['times_llama_cpp']:.2f}" if prompt else "–",
            ])  # fmt: skip
    head = ["file, goldstick's instructions", "tokens a second", "×", "floor of a token, share of it reached",
            "a prompt of 512", "×"]  # fmt: skip
    return table(head, rows)


def making() -> str:
    """Seconds and memory of making the files, the conversion that llama.cpp needs counted where it was measured."""
    rows = []
    for name, published in TYPES.items():
        made = read("gguf-speed").get(f"{SHAPE} {name}", {}).get("make")
        if made is None:
            continue
        seconds, peak = made["seconds"], made["peak_bytes"]
        whole = seconds.get("llama.cpp with conversion")
        rows.append([
            published, f"{made['seconds_without_proof']:.0f}",
            f"{seconds['goldstick'] - made['seconds_without_proof']:.0f}",
            f"{seconds['llama.cpp']:.0f}", f"{whole:.0f}" if whole else "–", _pair(peak, 1e-9, 2),
        ])  # fmt: skip
    head = ["file", "goldstick, seconds", "and its proof", "llama.cpp's quantizer", "with the conversion to float32",
            "peak memory, GB"]  # fmt: skip
    return table(head, rows)


def _pair(figures: dict[str, float], scale: float, digits: int) -> str:
    return ", ".join(f"{scale * figures[one]:.{digits}f}" for one in ("goldstick", "llama.cpp"))
