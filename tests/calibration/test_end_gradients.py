"""Gradients at the end: against autograd of the whole model, and what weighting by them means for the codes."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick.calibration import end_gradients as module
from goldstick.calibration.block_loop import starts
from goldstick.calibration.end_gradients import (
    InMemory,
    end_gradients,
    output_gradients,
    output_weights,
    relative_weights,
)
from goldstick.calibration.predictions import signs
from goldstick.calibration.spilled import Spilled
from goldstick.errors import OutputError, QuantizationError, StructureError
from goldstick.nn import QuantizedLinear
from goldstick.structure.network import Network
from tests.support.calibration import Batches, seeded_llama, token_batches
from tests.support.proofs import prove_here
from tests.support.temporary_files import TemporaryFiles
from tests.support.tiny_tokenizer import write_tokenizer, write_words

pytestmark = pytest.mark.usefixtures("reference_backend")

W2 = "w2a16-g16"


def some_data(count: int = 3) -> Batches:
    return token_batches(count)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return seeded_llama().eval()


def swept(model: nn.Module, data: list[dict[str, Tensor]], done: int = 0) -> dict[str, Any]:
    blocks = list(Network(model).blocks)
    with torch.no_grad():
        states, calls = starts(model, blocks, data)
        return dict(end_gradients(model, blocks, data, states, calls, InMemory(model), done=done))


def test_the_sweep_gives_the_gradients_of_the_whole_model(model: nn.Module) -> None:
    data = some_data()
    found = swept(model, data)
    for index, batch in enumerate(data):
        kept: dict[str, Tensor] = {}

        def keep(name: str, kept: dict[str, Tensor] = kept) -> Any:
            def hook(_: nn.Module, __: Any, given: Any) -> None:
                kept[name] = given[0] if isinstance(given, tuple) else given

            return hook

        handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in found]
        scores = model(**batch).logits
        for handle in handles:
            handle.remove()
        p = (scores.detach() / 3).softmax(-1)
        chance = signs(p, torch.Generator().manual_seed(index))
        slope = p.sqrt() * chance - p * (p.sqrt() * chance).sum(-1, keepdim=True)
        for name, output in kept.items():
            (expected,) = torch.autograd.grad(scores, output, slope, retain_graph=True)
            torch.testing.assert_close(found[name][index], expected, rtol=1e-4, atol=1e-6)


def test_what_padding_predicts_has_no_part(model: nn.Module) -> None:
    ids = some_data(1)[0]["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, 8:] = 0
    found = swept(model, [{"input_ids": ids, "attention_mask": mask}])
    last = found[list(found)[-1]][0]
    assert (last[:, 8:] == 0).all() and (last[:, :8] != 0).any()


def test_weights_are_mean_squares_of_the_gradients_of_each_part() -> None:
    layer, head = nn.Linear(6, 8), nn.Linear(8, 3)
    x, ahead = torch.randn(2, 5, 6), torch.randn(2, 5, 3)
    gradient = output_gradients({"layer": layer}, lambda: head(layer(x)), ahead)["layer"]
    squares = (ahead @ head.weight).square()
    torch.testing.assert_close(
        output_weights(gradient, 2), torch.stack([squares[..., :4].mean(-1), squares[..., 4:].mean(-1)], -1)
    )
    assert output_gradients({"layer": nn.Linear(6, 8)}, lambda: head(layer(x)), ahead) == {}


def test_a_share_of_one_leaves_all_tokens_alike() -> None:
    weights = [torch.rand(2, 5, 3) for _ in range(2)]
    assert all((root == 1).all() for root in relative_weights(weights, 1.0)[0])
    roots, sizes = relative_weights(weights, 0.0)
    for root, weight in zip(roots, weights, strict=True):
        torch.testing.assert_close(root.square() * torch.tensor(sizes), weight)
    means = torch.stack(weights).mean((0, 1, 2))
    assert all(size <= mean < 2 * size for size, mean in zip(sizes, means, strict=True))


@pytest.mark.parametrize("scheme", [W2, "nvfp4a16"])
@pytest.mark.parametrize("objective", ["output", "loss"])
def test_layers_are_solved_by_the_objective_and_notes_say_so(model: nn.Module, objective: str, scheme: str) -> None:
    options = {"scheme": scheme, "objective": objective, "gptaq": True}
    plain = goldstick.apply(model, {"stages": [{"gptq": {"scheme": scheme, "gptaq": True}}]}, data=some_data())
    found = goldstick.apply(model, {"stages": [{"gptq": options}]}, data=some_data())
    notes = [record.notes["objective"] for record in found.report.layers if "objective" in record.notes]
    assert notes and set(notes) == {objective}
    logits = [one.model(**some_data()[0]).logits for one in (plain, found)]
    assert not torch.equal(*logits)


@pytest.mark.parametrize("options", [{"objective": "output"}, {"objective": "loss", "two_sided": True}])
def test_rows_that_share_scales_are_solved_together(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    recipe = {"stages": [{"gptq": {"scheme": "fp8-block", **options}}]}
    found = goldstick.apply(LlamaForCausalLM(config).eval(), recipe, data=some_data(2))
    scales = [module.weight_scale for module in found.model.modules() if isinstance(module, QuantizedLinear)]
    assert scales
    for scale in scales:
        blocks = scale.reshape(-1, 128, scale.shape[-1])
        assert torch.equal(blocks, blocks[:, :1].expand_as(blocks))


def test_a_gradient_that_is_no_number_names_its_block(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = module._through
    monkeypatch.setattr(module, "_through", lambda *arguments: honest(*arguments) * torch.nan)
    with pytest.raises(QuantizationError, match=r"output of model\.layers\.\d+ is NaN"):
        goldstick.apply(model, {"stages": [{"gptq": {"scheme": W2, "objective": "loss"}}]}, data=some_data())


def test_a_model_without_scores_is_solved_for_the_square_of_what_it_gives(model: nn.Module) -> None:
    body = model.get_submodule("model")
    found = goldstick.apply(body, {"stages": [{"gptq": {"scheme": W2, "objective": "loss"}}]}, data=some_data())
    assert {record.notes["objective"] for record in found.report.layers if "objective" in record.notes} == {"loss"}


class Chosen(nn.Module):
    """A model that gives numbers of tokens, which no gradient passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        chosen: Tensor = self.model(input_ids=input_ids).logits.argmax(-1)
        return chosen


def test_a_model_that_gives_nothing_with_a_gradient_is_refused(model: nn.Module) -> None:
    with pytest.raises(StructureError, match="nothing that this Chosen gives has one"):
        goldstick.apply(Chosen(model), {"stages": [{"gptq": {"scheme": W2, "objective": "loss"}}]}, data=some_data())


def test_a_sweep_for_which_no_disk_has_room_is_refused_before_it_begins_and_takes_no_more_than_is_asked_for(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = some_data()
    tokens = sum(batch["input_ids"].numel() for batch in data)
    asked = (len(Network(model).blocks) + 1) * tokens * 4 * model.config.hidden_size  # type: ignore[union-attr, operator]
    disk = TemporaryFiles(monkeypatch, free=asked - 1)
    said = rf"'objective: loss', .* needs {asked:,} bytes for temporary files, and .* has {asked - 1:,} free.*TMPDIR"
    with pytest.raises(OutputError, match=said):
        swept(model, data)
    assert disk.peak == 0
    disk.free += 1
    swept(model, data)
    assert disk.peak == asked


def test_of_finished_blocks_no_gradients_are_found(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    data, (first, second) = some_data(), Network(model).blocks
    whole, disk = swept(model, data), TemporaryFiles(monkeypatch, free=1 << 40)
    peaks = []
    for done, blocks in ((0, [second, first]), (1, [second]), (2, [])):
        disk.peak = 0
        found = swept(model, data, done)
        peaks.append(disk.peak)
        assert list(found) == blocks
        pairs = [pair for block in blocks for pair in zip(found.pop(block), whole[block], strict=True)]
        assert all(torch.equal(one, other) for one, other in pairs)
    assert peaks == [peaks[0], peaks[0] * 2 // 3, 0]


def test_gradients_of_a_block_are_let_go_with_it(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, held = TemporaryFiles(monkeypatch, free=1 << 40), dict[str, int]()
    recipe = {"stages": [{"gptq": {"scheme": W2, "objective": "loss"}}]}
    goldstick.apply(model, recipe, data=some_data(), progress=lambda what, *_: held.update({what: disk.held()}))
    blocks = Network(model).blocks
    of_a_block = disk.peak // (len(blocks) + 1)
    assert [held[f"calibrating {block}"] for block in blocks] == [2 * of_a_block, of_a_block]
    assert held["calibrating"] == 0


def test_tensors_on_disk_come_back_as_they_were() -> None:
    tensors = [torch.randn(2, 3), torch.randn(4).bfloat16(), torch.arange(5)]
    found = Spilled(iter(tensors))
    assert len(found) == 3
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(found, tensors, strict=True))
    assert torch.equal(found[0:2][1], tensors[1])


def test_tensors_that_find_no_room_on_disk_say_where_and_what_to_do() -> None:
    found = Spilled([])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for write in (lambda: Spilled([torch.zeros(100_000)]), lambda: found.append(torch.zeros(100_000))):
            with pytest.raises(OutputError, match=r"file in /.* cannot be written: File too large\. .* by TMPDIR"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_way_by_blocks_gives_the_bytes_of_the_model_in_memory_with_any_number_of_threads(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.jobs.save.finish.prove", prove_here)
    monkeypatch.setattr("goldstick.jobs.quantize.quantize.require_memory", lambda *_: None)
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    write_tokenizer(tmp_path / "model")
    write_words(tmp_path / "text.txt")
    options = {"scheme": W2, "gptaq": True, "cycles": 1, "objective": "loss", "two_sided": True}
    stages = [{"awq": {"quantize": False, "grid": 3}}, {"gptq": options}]
    recipe = {"stages": stages, "calibration": {"dataset": str(tmp_path / "text.txt"), "samples": 8, "seq_len": 16}}
    found = []
    threads = torch.get_num_threads()
    for count, options in ((1, {"max_memory": 1}), (3, {})):
        torch.set_num_threads(count)
        goldstick.quantize(tmp_path / "model", recipe, output=tmp_path / f"out{count}", **options)
        found.append((tmp_path / f"out{count}" / "model.safetensors").read_bytes())
    torch.set_num_threads(threads)
    assert found[0] == found[1]
