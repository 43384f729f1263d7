"""What making GGUF files took: llama.cpp's time without and with the conversion that it needs."""

from __future__ import annotations

from benchmarks.gguf_making import summary
from tools.real_models.measured_run import Run


def _run(seconds: float, peak: int = 1) -> Run:
    return Run(seconds=seconds, processor_seconds=2 * seconds, peak_bytes=peak)


def test_the_conversion_is_counted_apart_and_the_proof_left_out_of_the_clock() -> None:
    found = summary(
        {
            "goldstick": [_run(12), _run(24), _run(15, 7)],
            "conversion": [_run(4), _run(6), _run(5)],
            "llama.cpp": [_run(16), _run(44), _run(20)],
        },
        [2, 2, 5],
    )
    assert found["seconds"] == {"goldstick": 15, "conversion": 5, "llama.cpp": 20, "llama.cpp with conversion": 25}
    assert (found["seconds_without_proof"], found["proof_seconds"]) == (10, 2)
    assert found["ratio_without_proof"] == {"quantizer alone": 0.5, "with conversion": 0.44}
    assert found["processor_ratio_with_proof"] == {"quantizer alone": 0.75, "with conversion": 0.6}
    assert found["peak_bytes"]["goldstick"] == 7
