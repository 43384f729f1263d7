"""llama.cpp, timed: run by a Python that has llama-cpp-python; imports nothing else.

``llama_cpp_worker.py FILE THREADS CLOCK`` reads lines ``decode TOKENS`` and ``prefill TOKENS`` and answers each with
the seconds that it took, by the clock ``wall`` or ``processor`` (of the whole process).
"""

from __future__ import annotations

import sys
import time

import llama_cpp

CONTEXT = 64


def main(file: str, threads: str, clock: str) -> None:
    """Answer lines until there are no more."""
    now = time.process_time if clock == "processor" else time.perf_counter
    most = 4096
    model = llama_cpp.Llama(
        file, n_ctx=most, n_batch=512, n_threads=int(threads), n_threads_batch=int(threads), verbose=False
    )
    model.eval([1] * CONTEXT)
    print("ready", flush=True)
    for line in sys.stdin:
        what, tokens = line.split()
        if what == "prefill" or model.n_tokens + int(tokens) > most:
            model.reset()
        start = now()
        if what == "prefill":
            model.eval([1] * int(tokens))
        else:
            for _ in range(int(tokens)):
                model.eval([1])
        print(now() - start, flush=True)
        if what == "prefill":
            model.reset()


if __name__ == "__main__":
    main(*sys.argv[1:])
