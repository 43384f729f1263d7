"""Attribution: putting everything back leaves nothing, and each part's figure is that of a model built for it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import goldstick
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.cli import main
from goldstick.core.kv_cache import KVScheme, KVSettings
from goldstick.core.scheme import Scheme
from goldstick.errors import UsageError
from goldstick.evaluation.kl import token_kl
from goldstick.hf.cache import quantized_cache_of, use_quantized_cache
from goldstick.jobs.compare.side_by_side_generation import compare_generation
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.jobs.sensitivity import attribution as module
from goldstick.jobs.sensitivity.attribution import attribute
from goldstick.jobs.sensitivity.block_runs import BlockRuns
from goldstick.nn import QuantizedLinear
from goldstick.nn.derived import in_place_of
from goldstick.recipes.calibration import Calibration
from tests.support.pages import check_alone

DYNAMIC = KVSettings(scheme=KVScheme(mode="dynamic", keys="head"), scales={})


@pytest.fixture(scope="module")
def text(source_with_text: Path) -> Calibration:
    return Calibration(dataset=str(source_with_text / "text.txt"), samples=3, seq_len=20)


class Case:
    """A float model, one compressed in memory, and the loaders that hand them out in the place of checkpoints."""

    def __init__(self, source_with_text: Path, scheme: str) -> None:
        self.source, self.other_directory = source_with_text, Path("compressed")
        self.model: Any = goldstick.load(source_with_text)
        self.other: Any = goldstick.apply(self.model, {"stages": [{"rtn": {"scheme": scheme}}]}).model
        self.scheme = scheme
        use_quantized_cache(self.other, DYNAMIC)

    def load(self, directory: Path) -> Any:
        return self.model if directory == self.source else self.other

    def kl(self, text: Calibration, tried: Any) -> float:
        ids = calibration_data(text, self.source, None)(self.model).ids
        with torch.no_grad():
            right, other = (one(input_ids=ids, use_cache=False).logits for one in (self.model, tried))
        return float(token_kl(right, other).mean())


def with_weights_of(case: Case) -> Any:
    """The float model with the compressed one's weights, and its cache."""
    made = copy.deepcopy(case.model)
    for name, layer in case.other.named_modules():
        if hasattr(layer, "dequantized"):
            made.get_submodule(name).weight = nn.Parameter(layer.dequantized())
    use_quantized_cache(made, DYNAMIC)
    return made


def with_rounded_inputs(case: Case) -> Any:
    """The float model with inputs that are rounded as the compressed one's are, and its cache."""
    made = copy.deepcopy(case.model)

    def rounded(module: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
        (x,) = args
        most = x.abs().amax(-1, keepdim=True)
        if case.scheme.startswith("fp8"):
            return (x / (most / 448)).to(torch.float8_e4m3fn).to(x.dtype) * (most / 448)
        return (x / (most / 127.5)).round().clamp(-128, 127) * (most / 127.5)

    for name, layer in case.other.named_modules():
        if hasattr(layer, "dequantized"):
            made.get_submodule(name).register_forward_pre_hook(rounded)
    use_quantized_cache(made, DYNAMIC)
    return made


@pytest.fixture(params=["w4a16-g32", "w8a8-dynamic", "fp8-dynamic"])
def case(request: pytest.FixtureRequest, source_with_text: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    made = Case(source_with_text, request.param)
    monkeypatch.setattr(module, "load", made.load)
    monkeypatch.setattr(module, "_stages", lambda _: ["rtn", "kv_cache"])
    return made


def test_each_part_s_figure_is_that_of_a_model_built_without_it(case: Case, text: Calibration) -> None:
    before = case.kl(text, case.other)
    found = attribute(case.source, case.other_directory, text)
    assert found.total == pytest.approx(before)
    assert case.kl(text, case.other) == before  # everything is as it was
    assert quantized_cache_of(case.other) == DYNAMIC
    ids = [{"input_ids": calibration_data(text, case.source, None)(case.model).ids}]
    assert BlockRuns(case.other, ids, ("model.layers.0", "model.layers.1")).blocks  # runs begin at the changed block
    sources = {part.name: part.left for part in found.sources}
    rounded_inputs = case.other.model.layers[0].mlp.up_proj.scheme.activation is not None
    assert list(sources) == ["weights", *(["activations"] if rounded_inputs else []), "KV cache"]
    float_cache = copy.deepcopy(case.other)
    for name in list(float_cache.model._forward_pre_hooks):
        del float_cache.model._forward_pre_hooks[name]
    assert sources["KV cache"] == pytest.approx(case.kl(text, float_cache))
    if not rounded_inputs:
        only_cache = copy.deepcopy(case.model)
        use_quantized_cache(only_cache, DYNAMIC)
        assert sources["weights"] == pytest.approx(case.kl(text, only_cache))
        assert 0 < sources["weights"] < 0.2 * found.total
    else:
        assert sources["activations"] == pytest.approx(case.kl(text, with_weights_of(case)), rel=1e-4)
        assert sources["weights"] == pytest.approx(case.kl(text, with_rounded_inputs(case)), rel=1e-4)
        assert max(sources["weights"], sources["activations"]) < found.total
    assert len(found.places) == 14
    for part in (found.places[3], found.places[13]):
        without = copy.deepcopy(case.other)
        parent, _, name = part.name.rpartition(".")
        setattr(without.get_submodule(parent), name, case.model.get_submodule(part.name))
        assert part.left == pytest.approx(case.kl(text, without), rel=1e-6)
        assert found.share(part) == pytest.approx(100 * (1 - part.left / found.total))


def test_blocks_are_put_back_whole_where_layers_were_scaled_against_each_other(
    case: Case, text: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_stages", lambda _: ["awq", "rtn"])
    found = attribute(case.source, case.other_directory, text)
    assert [part.name for part in found.places] == ["model.layers.0", "model.layers.1"]
    assert any("Blocks are put back whole" in note for note in found.notes)
    without = copy.deepcopy(case.other)
    without.model.layers[1] = case.model.model.layers[1]
    assert found.places[1].left == pytest.approx(case.kl(text, without), rel=1e-6)
    assert case.kl(text, case.other) == pytest.approx(found.total)


def test_a_rounded_weight_behind_a_multiplier_is_put_in_place_as_the_float_layer_would_have_it() -> None:
    layer, x, scheme = nn.Linear(64, 8), torch.randn(5, 64), Scheme.parse("w8a8-dynamic")
    factors = torch.logspace(-1, 1, 64)
    tensor = quantize_with_search(layer.weight.detach() / factors, scheme.weight, "minmax")
    quantized = in_place_of(QuantizedLinear, layer, tensor, scheme, input_multiplier=factors)
    found = module._with_weight_of(quantized, layer)
    expected = (x * factors) @ tensor.dequantize().T + layer.bias
    torch.testing.assert_close(found(input=x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("stages", "turned", "said"), [(["rotate", "rtn"], False, "was rotated"), (["rtn"], True, "is compressed itself")]
)
def test_what_cannot_be_split_is_refused(
    case: Case, text: Calibration, monkeypatch: pytest.MonkeyPatch, stages: list[str], turned: bool, said: str
) -> None:
    monkeypatch.setattr(module, "_stages", lambda _: stages)
    pair = (case.other_directory, case.source) if turned else (case.source, case.other_directory)
    with pytest.raises(UsageError, match=said):
        attribute(*pair, text)


def test_two_float_models_have_no_loss_to_attribute(source_with_text: Path, text: Calibration) -> None:
    with pytest.raises(UsageError, match=r"Nothing in .* is compressed"):
        attribute(source_with_text, source_with_text, text)


def test_a_model_writes_on_beside_itself_without_parting(source_with_text: Path, text: Calibration) -> None:
    found = compare_generation(source_with_text, source_with_text, text, 5)
    assert found.words().startswith("The same token for token: 3 texts")
    assert found.mean_kl == [0.0] * len(found.mean_kl)
    assert found.texts[0].prompt.strip() in (source_with_text / "text.txt").read_text()


def test_compare_shows_both_in_the_terminal_the_page_and_the_json(
    source_with_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    run = CliRunner().invoke
    quantized = run(
        main, ["quantize", str(source_with_text), "-o", str(made), "-r", "rtn-w4a16-g32", "--proof", "tensors"]
    )
    assert quantized.exit_code == 0, quantized.output
    arguments = [
        "compare",
        str(source_with_text),
        str(made),
        "--dataset",
        str(source_with_text / "text.txt"),
        "--samples",
        "2",
    ]
    arguments += ["--seq-len", "16", "--attribute", "--generate", "4"]
    shown = run(main, [*arguments, "--html", str(tmp_path / "page.html")])
    assert shown.exit_code == 0, shown.output
    for words in ("Loss by source", "Loss by place", "Both models go on from 2 prompts of 16 tokens"):
        assert words in shown.stdout
    page = check_alone((tmp_path / "page.html").read_text(), scripts=1)
    assert "Where the loss comes from" in page.text
    drawings = [svg["class"] for svg in page.all("svg")]
    data = json.loads(run(main, [*arguments, "--json"]).stdout)
    assert len(data["attribution"]["places"]) == 14
    parts = len(data["attribution"]["sources"]) + 14
    assert drawings == ["bars"] * parts + ["lines"]  # a share for each source and place, and the divergence
    assert len(data["generation"]["texts"]) == 2
    refused = run(main, ["compare", str(source_with_text), str(made), "--attribute"])
    assert refused.exit_code == 2
    assert "give --dataset" in refused.output
