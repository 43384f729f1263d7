"""goldstick bench: every kind of layer gets a line, and no line calls what is slower an improvement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import save_file

import goldstick
from goldstick.cli import main
from goldstick.core.scheme import Scheme
from goldstick.errors import UsageError
from goldstick.jobs.bench import bench, stopwatch
from goldstick.jobs.bench import decode as bench_decode
from goldstick.jobs.bench.bench import LayerTime, bench_checkpoint, bench_kernels
from goldstick.jobs.bench.forward import bench_forward
from goldstick.kernels.cpu import _C
from tests.support.tiny_models import FAMILIES


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory is gone through."""
    monkeypatch.setattr(stopwatch, "beyond_caches", lambda: 1 << 16)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    FAMILIES["llama_gqa"]().save_pretrained(folder / "float")
    goldstick.quantize(folder / "float", "rtn-w4a16-g32", output=folder / "out", proof="tensors")
    return folder / "out"


def layer_time(times_float: float) -> LayerTime:
    return LayerTime(
        scheme="w4a16-g128",
        shape=(8, 8),
        tokens=1,
        backend="cpu-integer",
        ms=1.0,
        weight_gb_s=1.0,
        of_read=0.5,
        times_float=times_float,
    )


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.5, "SLOWER"), (0.97, "SLOWER"), (0.99, "as fast"), (1.01, "as fast"), (1.03, "faster")]
)
def test_only_what_is_faster_is_called_so(ratio: float, words: str) -> None:
    assert layer_time(ratio).verdict == words


def test_random_layers_of_every_scheme_are_timed() -> None:
    found = bench_kernels(16, 128, [1, 3], 0.0)
    names = [Scheme.parse(name).label for name in bench.SCHEMES]
    assert [(time.scheme, time.tokens) for time in found] == [(name, n) for name in names for n in (1, 3)]
    for time in found:
        assert time.shape == (16, 128)
        assert time.ms > 0
        assert time.weight_gb_s > 0
        assert time.of_read > 0
    with pytest.raises(UsageError, match="multiple of 128"):
        bench_kernels(16, 100, [1], 0.0)


@pytest.mark.skipif(_C is None or _C.isa() == "scalar", reason="weights are prepacked for vectors")
def test_layers_are_timed_as_optimized_models_have_them_or_as_loaded() -> None:
    assert {time.backend for time in bench_kernels(16, 128, [1], 0.0)} == {"cpu-integer, interleaved"}
    assert {time.backend for time in bench_kernels(16, 128, [1], 0.0, interleave=False)} == {"cpu-integer"}


def test_each_kind_of_layer_of_a_checkpoint_is_timed_once_and_decoding_too(checkpoint: Path) -> None:
    times, decoding = bench_checkpoint(checkpoint, [1], 0.0)
    assert sorted(time.shape for time in times) == [(32, 64), (64, 64), (64, 128), (128, 64)]
    assert decoding is not None
    assert decoding.plain > 0
    assert decoding.optimized > 0


def test_decoding_of_random_networks_is_timed_beside_the_float_one() -> None:
    found = bench_decode.bench_decode(128, 256, 1, 0.0)
    assert [time.network for time in found] == ["float32", *bench_decode.SCHEMES]
    assert [time.verdict == "float" for time in found] == [True, False, False]
    assert found[0].times_float == 1
    for time in found:
        assert time.tokens_s > 0
        assert time.of_read > 0
    weights = [time.weight_gb_s / time.tokens_s for time in found]  # bytes a token
    assert weights[0] == pytest.approx(4 * (2 * 128 * 128 * 2 + 3 * 128 * 256 + 4096 * 128) / 1e9)
    assert weights[0] / 8 < weights[1] < weights[0] / 7  # 4 bits and their scales
    assert weights[0] / 4 < weights[2] < weights[0] / 3.8
    with pytest.raises(UsageError, match="multiples of 128"):
        bench_decode.bench_decode(100, 256, 1, 0.0)


def test_a_float_checkpoint_has_nothing_to_time(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="no quantized layer"):
        bench_checkpoint(checkpoint.parent / "float", [1], 0.0)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MobileNet, which holds nothing but convolutions in its blocks, and inputs that it takes."""
    folder = tmp_path_factory.mktemp("forward")
    torch.manual_seed(0)
    config = transformers.MobileNetV1Config(image_size=32, depth_multiplier=0.25, num_labels=3)
    model: Any = transformers.MobileNetV1ForImageClassification(config)
    model.save_pretrained(folder / "float")
    goldstick.quantize(folder / "float", "rtn-w8a8-dynamic", output=folder / "out", proof="tensors")
    save_file({"pixel_values": torch.randn(2, 3, 48, 48)}, folder / "inputs.safetensors")
    return folder


def test_a_forward_pass_of_other_networks_is_timed_beside_the_float_model(classifier: Path) -> None:
    alone = bench_forward(classifier / "out", 0.0)
    assert [(time.network, time.times_float, time.verdict) for time in alone] == [
        ("as loaded", None, None),
        ("optimized", None, None),
    ]
    found = bench_forward(classifier / "out", 0.0, baseline=classifier / "float")
    assert [time.network for time in found] == ["as loaded", "optimized", "float"]
    assert found[2].times_float == 1 and found[2].verdict is None and found[0].verdict is not None
    assert all(time.ms > 0 for time in found)
    with pytest.raises(UsageError, match="is quantized"):
        bench_forward(classifier / "out", 0.0, baseline=classifier / "out")


def test_the_command_times_a_forward_on_given_inputs(run: Any, classifier: Path) -> None:
    out = ["bench", str(classifier / "out"), "--seconds", "0", "--tokens", "1"]
    found = run.invoke(main, [*out, "--baseline", str(classifier / "float")])
    assert found.exit_code == 0, found.output
    assert found.output.count("forward pass, ") == 3 and found.output.count("× float (") == 3
    found = run.invoke(main, [*out, "--inputs", str(classifier / "inputs.safetensors"), "--json"])
    assert [one["network"] for one in json.loads(found.output)["forward"]] == ["as loaded", "optimized"]
    found = run.invoke(main, ["bench", "kernels", "--inputs", str(classifier / "inputs.safetensors")])
    assert found.exit_code == 2 and "belong to a checkpoint" in found.output


@pytest.fixture
def run() -> Any:
    threads = torch.get_num_threads()
    yield CliRunner()
    torch.set_num_threads(threads)


def test_the_command_prints_lines_or_json(run: Any, checkpoint: Path) -> None:
    arguments = ["bench", "kernels", "--shape", "8x128", "--seconds", "0", "--tokens", "2", "--threads", "1"]
    found = run.invoke(main, arguments)
    assert found.exit_code == 0, found.output
    assert found.output.count("× float") == len(bench.SCHEMES)
    assert found.output.count("cpu-integer") + found.output.count("reference)") == len(bench.SCHEMES)
    assert "interleaved" not in run.invoke(main, [*arguments, "--as-loaded"]).output
    found = run.invoke(main, ["bench", str(checkpoint), "--seconds", "0", "--tokens", "1", "--json"])
    assert {"plain", "optimized", "times_plain"} == set(json.loads(found.output)["decode"])
    for what in ("kernels", "decode"):
        assert run.invoke(main, ["bench", what, "--shape", "big"]).exit_code == 2
    found = run.invoke(main, ["bench", "decode", "--shape", "128x128", "--blocks", "1", "--seconds", "0"])
    assert found.exit_code == 0, found.output
    assert found.output.count("tokens/s") == 3


def test_the_speed_of_writing_is_tokens_over_the_median_time_and_the_text_grows_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = FAMILIES["llama_gqa"]().eval()
    lengths, times = [], iter([9.0, 0.5, 0.25, 2.0])

    def timed(call: Any) -> float:
        call()
        lengths.append(call.args[1].get_seq_length())
        return next(times)

    monkeypatch.setattr(bench_decode, "seconds_of", timed)
    assert bench_decode.tokens_a_second(model, 0.0) == 8.0  # four in half a second; the first round warms up
    assert lengths == [20] * 4
    assert bench_decode.can_write(model) and not bench_decode.can_write(torch.nn.Linear(2, 2))
