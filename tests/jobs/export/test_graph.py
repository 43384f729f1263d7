"""A quantized encoder or classifier as a file of operators, run by a runtime that knows nothing of PyTorch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    MobileNetV1Config,
    MobileNetV1ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
)

import goldstick
from goldstick.errors import DataError, FormatError, NotRunError, OutputError, UsageError
from goldstick.jobs.export import graph
from goldstick.jobs.export.graph_layers import stand_in_for_layers
from tests.support.commands import run

pytestmark = pytest.mark.usefixtures("all_proofs_here")

BERT = BertConfig(
    vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=64, num_labels=3,
)  # fmt: skip
RESNET = ResNetConfig(embedding_size=8, hidden_sizes=[16], depths=[1], num_labels=4, layer_type="basic")

MOBILENET = MobileNetV1Config(depth_multiplier=0.25, image_size=32, num_labels=3)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("graph")
    torch.manual_seed(0)
    BertForSequenceClassification(BERT).save_pretrained(directory / "float")
    goldstick.quantize(directory / "float", "rtn-w8a8-dynamic", output=directory / "w8a8", proof="tensors")
    return directory


def session(directory: Path) -> Any:
    return onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])


def test_an_encoder_runs_with_any_batch_length_and_mask(bert: Path) -> None:
    shown = run("export", str(bert / "w8a8"), "--format", "onnx", "-o", str(bert / "onnx"))
    assert shown.exit_code == 0, shown.stderr
    files = {path.name for path in (bert / "onnx").iterdir()}
    assert files >= {"model.onnx", "config.json", "report.json"}
    assert "quantization_config" not in json.loads((bert / "onnx" / "config.json").read_text())
    report = json.loads((bert / "onnx" / "report.json").read_text())
    assert report["format"] == "onnx" and report["proof"]["operators"] == "8 MatMulInteger"
    assert report["proof"]["squared_error_share"] <= report["proof"]["bound"]
    ids = torch.randint(0, 64, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    found = session(bert / "onnx").run(["logits"], {name: value.numpy() for name, value in inputs.items()})[0]
    with torch.inference_mode():
        expected = goldstick.load(bert / "w8a8")(**inputs).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("network", "config", "side"),
    [
        (ResNetForImageClassification, RESNET, 224),
        (MobileNetV1ForImageClassification, MOBILENET, 32),  # its forward reads strides and kernel sizes of its layers
    ],
)
def test_a_classifier_of_convolutions_runs_with_any_batch(network: Any, config: Any, side: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network(config).save_pretrained(tmp_path / "float")
    goldstick.quantize(tmp_path / "float", "rtn-w8a16", output=tmp_path / "w8", proof="tensors")
    goldstick.export(tmp_path / "w8", "onnx", output=tmp_path / "onnx")
    picture = torch.randn(2, 3, side, side)
    found = session(tmp_path / "onnx").run(["logits"], {"pixel_values": picture.numpy()})[0]
    with torch.inference_mode():
        expected = goldstick.load(tmp_path / "w8")(pixel_values=picture).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_outputs_within_outputs_have_names_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(**{**BERT.to_dict(), "output_hidden_states": True})
    BertForSequenceClassification(config).save_pretrained(tmp_path / "float")
    goldstick.quantize(tmp_path / "float", "rtn-w8a16", output=tmp_path / "w8", proof="tensors")
    goldstick.export(tmp_path / "w8", "onnx", output=tmp_path / "onnx")
    ids = torch.randint(0, 64, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    ran = session(tmp_path / "onnx")
    assert [one.name for one in ran.get_outputs()] == ["logits", "hidden_states.0", "hidden_states.1"]
    logits, _, last = ran.run(None, {name: value.numpy() for name, value in inputs.items()})
    with torch.inference_mode():
        expected = goldstick.load(tmp_path / "w8")(**inputs)
    np.testing.assert_allclose(logits, expected.logits.numpy(), atol=1e-4)
    np.testing.assert_allclose(last, expected.hidden_states[1].numpy(), atol=1e-4)


def test_a_decoder_with_a_config_of_its_own_keeps_no_cache(tmp_path: Path) -> None:
    config = T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "float")
    goldstick.quantize(tmp_path / "float", "rtn-w8a16", output=tmp_path / "w8", proof="tensors")
    model: Any = graph._runnable(tmp_path / "w8")
    ids = torch.randint(0, 64, (1, 5))
    assert "past_key_values" not in model(input_ids=ids, decoder_input_ids=ids)


def test_inputs_that_a_checkpoint_carries_are_traced(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"input_ids": torch.randint(0, 64, (3, 7))}
    goldstick.quantize(bert / "float", "rtn-w8a16", output=tmp_path / "w8", proof="tensors", inputs=given)
    traced: list[Any] = []
    monkeypatch.setattr(graph, "traced_graph", lambda model, inputs, *_: traced.append(inputs) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        goldstick.export(tmp_path / "w8", "onnx", output=tmp_path / "onnx")
    assert torch.equal(traced[0]["input_ids"], given["input_ids"])


def test_a_network_that_nothing_says_how_to_run_is_refused_with_a_way_out(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(model: object) -> None:
        raise DataError("Give inputs for it: --inputs FILE.")

    monkeypatch.setattr(graph, "fixed_inputs", nothing)
    with pytest.raises(
        DataError, match=r"--inputs FILE\. An export takes those that its checkpoint was quantized with"
    ):
        goldstick.export(bert / "w8a8", "onnx", output=bert / "nothing")


def test_the_weights_of_an_attention_are_called_what_a_pattern_calls_them() -> None:
    compressed: Any = goldstick.apply(torch.nn.MultiheadAttention(32, 2), "rtn-w8a16").model
    with pytest.raises(FormatError, match=r"^in_proj_weight .*--exclude 'in_proj_weight'"):
        stand_in_for_layers(compressed)


def test_nodes_have_the_attributes_of_the_layers_they_stand_for() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, stride=2), torch.nn.Linear(8, 8, bias=False))
    compressed: Any = goldstick.apply(model, "rtn-w8a16").model
    stand_in_for_layers(compressed)
    convolution, linear = compressed
    assert convolution.stride == (2, 2) and convolution.padding_mode == "zeros" and convolution.in_channels == 4
    assert torch.equal(convolution.bias, model[0].bias)
    assert linear.bias is None and linear.in_features == linear.out_features == 8


def test_a_layer_without_operators_is_named_and_nothing_is_written(bert: Path, tmp_path: Path) -> None:
    recipe = {
        "stages": [{"rtn": {"scheme": "w8a16", "targets": {"include": ["@embedding"]}}}],
        "export": {"format": "native"},
    }
    goldstick.quantize(bert / "float", recipe, output=tmp_path / "rows", proof="tensors")
    with pytest.raises(FormatError, match=r"word_embeddings.*has no operators in a graph.*--exclude"):
        goldstick.export(tmp_path / "rows", "onnx", output=tmp_path / "onnx")
    goldstick.quantize(bert / "float", "rtn-fp8-dynamic", output=tmp_path / "fp8", proof="tensors")
    with pytest.raises(FormatError, match=r"onnx cannot hold this: bert\.encoder.*w8a8-dynamic"):
        goldstick.export(tmp_path / "fp8", "onnx", output=tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_of_a_network_that_torch_cannot_trace_the_first_cause_is_told(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        try:
            raise ValueError("Cannot view a tensor\n\nWhile executing %view")
        except ValueError as error:
            raise RuntimeError("Failed. \x1b[96mThis is step 2/3\x1b[0m of exporting. Next steps:") from error

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(NotRunError, match=r"cannot trace this BertForSequenceClassification \(Cannot view a tensor\);"):
        goldstick.export(bert / "w8a8", "onnx", output=tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_what_is_missing_is_said_with_the_command_that_installs_it(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(UsageError, match=r"onnxscript: not installed.*pip install 'goldstick\[onnx\]'"):
        goldstick.export(bert / "w8a8", "onnx", output=bert / "missing")


def test_what_lies_there_stays(bert: Path) -> None:
    (bert / "there").mkdir()
    (bert / "there" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError):
        goldstick.export(bert / "w8a8", "onnx", output=bert / "there")
    assert (bert / "there" / "mine.txt").read_text() == "mine"
