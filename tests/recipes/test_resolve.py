"""Resolving a recipe: what happens to which layer, what is refused, and why the rest stays as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers import PreTrainedModel

import goldstick
from goldstick.algorithms import AWQ, GPTQ, RTN, SCOP, Descent, Finetune, KVCache, RandomRotation, SmoothQuant
from goldstick.algorithms.stage import CacheQuantizer, Rotation
from goldstick.core.layout import Layout
from goldstick.core.notices import UnrecognisedWarning
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError, SourceError, StructureError
from goldstick.nn import PackedWeight, TiedQuantizedLinear
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import Resolution, resolve
from goldstick.recipes.run import run
from goldstick.structure.network import Network
from goldstick.structure.targets import Targets
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs


def meta(family: str) -> Network:
    return Network(FAMILIES[family]().to("meta"))


def only(*include: str) -> Targets:
    return Targets(include=include)


def accounted(network: Network, resolution: Resolution) -> None:
    """Every parameter and buffer is either quantized, tied to a quantized one, or left alone with a reason."""
    quantized = {network.by_name[name].parameter_name for name in (*resolution.assignments, *resolution.ties)}
    everything = {name for name, _ in network.model.named_parameters(remove_duplicate=False)}
    everything |= {name for name, _ in network.model.named_buffers()}
    assert quantized | set(resolution.ignored) == everything
    assert not quantized & set(resolution.ignored)
    assert all(resolution.ignored.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_and_buffer_is_accounted_for(family: str) -> None:
    network = meta(family)
    resolution = resolve([RTN(scheme="w4a16-g32", group_size_mismatch="channel")], network)
    accounted(network, resolution)
    assert set(resolution.assignments) == {site.name for site in network.sites if site.role == "inner"}


def test_the_reasons_say_what_was_decided() -> None:
    network = meta("qwen2")
    stage = RTN(scheme="w4a16-g48", group_size_mismatch="skip", targets=Targets(exclude=("*up_proj",)))
    rest = RTN(scheme="w8a16", targets=only("*q_proj"))
    reasons = resolve([stage], network).ignored
    layer = "model.layers.0"
    assert reasons[f"{layer}.mlp.up_proj.weight"] == "excluded by the pattern '*up_proj'"
    assert reasons[f"{layer}.mlp.gate_proj.weight"] == "skipped: 64 inputs do not divide into groups of 48"
    assert "bias, norm" in reasons[f"{layer}.self_attn.q_proj.bias"]
    assert reasons["model.embed_tokens.weight"].startswith("embedding: left alone")
    assert reasons["lm_head.weight"].startswith("output head: left alone")
    assert "buffer" in reasons["model.rotary_emb.inv_freq"]
    both = resolve([stage, rest], network)
    assert f"{layer}.self_attn.q_proj" in both.assignments, "what one stage skips another may take"
    accounted(network, both)
    assert resolve([rest], network).ignored[f"{layer}.mlp.up_proj.weight"] == "included by no stage"


def test_a_layer_that_two_stages_mean_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"stages\[1\]\.rtn: model\.layers\.0\.mlp\.down_proj, .*twice"):
        resolve([RTN(scheme="w4a16-g32"), RTN(scheme="w8a16", targets=only("*down_proj"))], meta("llama_gqa"))


def test_stages_that_only_balance_assign_nothing_but_their_patterns_are_checked() -> None:
    network = meta("llama_gqa")
    smoothing = [SmoothQuant(targets=Targets(exclude=("*down_proj",))), AWQ(quantize=False)]
    rounding = RTN(scheme="w4a16-g32")
    resolution = resolve([*smoothing, rounding], network)
    assert resolution.assignments == resolve([rounding], network).assignments
    assert resolution.ignored == resolve([rounding], network).ignored
    with pytest.raises(RecipeError, match=r"stages\[0\]\.smoothquant: .*down_projj"):
        resolve([SmoothQuant(targets=only("*down_projj")), rounding], network)


def test_stages_that_mean_different_layers_go_together() -> None:
    network = meta("llama_gqa")
    stages = [
        RTN(scheme="w4a16-g32", targets=Targets(exclude=("*down_proj",)), overrides={"*.1.*.q_proj": "w2a16-g32"}),
        RTN(scheme="w8a16", targets=only("*down_proj")),
    ]
    labels = {name: one.scheme.label for name, one in resolve(stages, network).assignments.items()}
    assert labels["model.layers.0.mlp.down_proj"] == "w8a16-channel"
    assert labels["model.layers.0.self_attn.q_proj"] == "w4a16-g32"
    assert labels["model.layers.1.self_attn.q_proj"] == "w2a16-g32"


def test_a_group_size_that_does_not_divide_stops_with_the_layers_and_the_ways_out() -> None:
    with pytest.raises(RecipeError, match="does not divide") as caught:
        resolve([RTN(scheme="w4a16-g48")], meta("llama_gqa"))
    text = str(caught.value)
    assert "model.layers.0.self_attn.q_proj (64 inputs" in text
    assert "10 more" in text
    assert "mismatch channel" in text and "mismatch skip" in text


def test_or_gives_such_layers_one_scale_per_channel_and_says_so() -> None:
    resolution = resolve([RTN(scheme="w4a16-g128", group_size_mismatch="channel")], meta("llama_gqa"))
    narrow = resolution.assignments["model.layers.0.self_attn.q_proj"]
    wide = resolution.assignments["model.layers.0.mlp.down_proj"]
    assert narrow.scheme == Scheme.parse("w4a16-channel")
    assert narrow.note == "by channel: 64 inputs do not divide into groups of 128"
    assert (wide.scheme, wide.note) == (Scheme.parse("w4a16-g128"), "")


@pytest.mark.parametrize(
    ("width", "label"),
    [(64, "w4a16-g64"), (172, "w4a16-channel"), (96, "w4a16-g32"), (48, "w4a16-g16"), (256, "w4a16-g128")],
)
def test_or_gives_them_the_largest_smaller_groups_that_divide_and_says_so(width: int, label: str) -> None:
    network = Network(nn.Sequential(nn.Linear(width, 8)).to("meta"))
    (found,) = resolve([RTN(scheme="w4a16-g128", group_size_mismatch="smaller")], network).assignments.values()
    assert found.scheme == Scheme.parse(label)
    how = "by channel" if label.endswith("channel") else f"groups of {found.scheme.weight.group_size}"
    assert found.note == ("" if width == 256 else f"{how}: {width} inputs do not divide into groups of 128")


def test_smaller_groups_keep_what_else_a_scheme_says() -> None:
    network = Network(nn.Sequential(nn.Linear(96, 8)).to("meta"))
    stage = RTN(scheme="w3a8-dynamic-g64-asym", group_size_mismatch="smaller")
    assert resolve([stage], network).assignments["0"].scheme == Scheme.parse("w3a8-dynamic-g32-asym")


@pytest.mark.parametrize("scheme", ["mxfp4a16", "nvfp4a16", "fp8-block", "q4_k"])
def test_blocks_of_number_formats_have_one_size_and_stay_an_error(scheme: str) -> None:
    network = Network(nn.Sequential(nn.Linear(172, 8)).to("meta"))
    with pytest.raises(RecipeError, match="group size does not divide the inputs of 0") as caught:
        resolve([RTN(scheme=scheme, group_size_mismatch="smaller")], network)
    assert "mismatch smaller" not in str(caught.value)  # which would not help
    assert "mismatch channel" in str(caught.value) and "mismatch skip" in str(caught.value)


def test_the_group_size_of_a_file_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("stages: [{rtn: {scheme: w4a16-g128}}]")
    with pytest.raises(RecipeError, match=r"--group-size-mismatch smaller.*--group-size-mismatch channel"):
        resolve(Recipe.load(file).stages, meta("llama_gqa"))


def test_or_leaves_them_float() -> None:
    resolution = resolve([RTN(scheme="w4a16-g128", group_size_mismatch="skip")], meta("llama_gqa"))
    assert set(resolution.assignments) == {f"model.layers.{index}.mlp.down_proj" for index in range(2)}


class SamePadding(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(nn.functional.pad(x, [0, 1, 0, 1]), self.weight, self.bias)


def test_8_bit_activations_are_for_linear_layers_and_plain_convolutions() -> None:
    resolution = resolve([RTN(scheme="w8a8-dynamic")], meta("resnet"))
    for found in resolution.assignments.values():
        assert (found.scheme.label, found.note) == ("w8a8-dynamic-channel", "")
    with torch.device("meta"):
        others = nn.Sequential(
            nn.Conv3d(4, 8, 3), SamePadding(4, 8, 3), nn.ConvTranspose2d(4, 8, 3, groups=2), nn.Linear(4, 8)
        )
    left = resolve([RTN(scheme="w8a8-dynamic")], Network(others)).assignments
    assert {name: found.scheme.label for name, found in left.items()} == {
        "0": "w8a16-channel", "1": "w8a16-channel", "2": "w8a16-channel", "3": "w8a8-dynamic-channel"
    }  # fmt: skip
    assert [left[name].note for name in "012"] == [
        "weight only: a convolution along three sides takes no 8-bit activations",
        "weight only: a convolution with a forward of its own takes no 8-bit activations",
        "its forward reads the numbers of the weight: rounded without data; "
        "weight only: such a forward takes no 8-bit activations",
    ]
    with pytest.raises(RecipeError, match="is a weight of fused experts and cannot take 8-bit activations"):
        resolve([RTN(scheme="w8a8-dynamic")], meta("mixtral"))
    with pytest.raises(RecipeError, match="is a weight of an embedding and cannot take 8-bit activations"):
        resolve([RTN(scheme="w8a8-dynamic", targets=only("@embedding"))], meta("gpt2"))
    resolve([RTN(scheme="w8a8-dynamic")], meta("gpt2"))


def test_4_bit_activations_are_for_linear_layers() -> None:
    for found in resolve([RTN(scheme="w4a4-dynamic")], meta("resnet")).assignments.values():
        plain, note = "w4a16-channel", "weight only: such a convolution takes no 4-bit activations"
        expected = ("w4a4-dynamic-channel", "") if found.site.layout is Layout.LINEAR else (plain, note)
        assert (found.scheme.label, found.note) == expected
    with pytest.raises(RecipeError, match="is a weight of fused experts and cannot take 4-bit activations"):
        resolve([RTN(scheme="w4a4-dynamic")], meta("mixtral"))


@pytest.mark.parametrize("end", ["lm_head", "transformer.wte"])
def test_a_tied_weight_needs_a_decision(end: str) -> None:
    with pytest.raises(RecipeError, match=r"lm_head shares its weight with transformer\.wte.*tie: keep.*tie: untie"):
        resolve([RTN(scheme="w8a16", targets=only(end))], meta("gpt2"))


@pytest.mark.parametrize("end", ["lm_head", "transformer.wte"])
def test_a_kept_tie_quantizes_both_ends_as_one(end: str) -> None:
    network = meta("gpt2")
    resolution = resolve([RTN(scheme="w8a16", targets=only(end), tie="keep")], network)
    assert list(resolution.assignments) == ["transformer.wte"]
    assert resolution.ties == {"lm_head": "transformer.wte"}
    assert not resolution.untied
    accounted(network, resolution)


@pytest.mark.parametrize("end", ["lm_head", "transformer.wte"])
def test_a_cut_tie_quantizes_only_what_is_targeted(end: str) -> None:
    network = meta("gpt2")
    resolution = resolve([RTN(scheme="w8a16", targets=only(end), tie="untie")], network)
    assert list(resolution.assignments) == [end]
    assert resolution.untied and not resolution.ties
    accounted(network, resolution)


def test_a_tie_that_no_stage_touches_needs_no_decision() -> None:
    resolution = resolve([RTN(scheme="w8a16")], meta("gpt2"))
    assert not resolution.ties and not resolution.untied
    assert resolution.ignored["lm_head.weight"] == "tied to transformer.wte.weight"


def test_a_kept_tie_cannot_become_two_things() -> None:
    stage = RTN(scheme="w8a16", targets=only("lm_head", "wte"), overrides={"wte": "w4a16-g32"}, tie="keep")
    with pytest.raises(RecipeError, match=r"one weight.*w8a16-channel here and w4a16-g32 there"):
        resolve([stage], meta("gpt2"))
    same = RTN(scheme="w8a16", targets=only("lm_head", "wte"), tie="keep")
    assert list(resolve([same], meta("gpt2")).assignments) == ["transformer.wte"]


def test_linear_layers_that_share_a_weight_become_one_quantized_weight() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    for tie in ("error", "keep"):
        found = resolve([RTN(scheme="w8a16", tie=tie)], Network(model))
        assert (list(found.assignments), found.ties) == (["0"], {"1": "0"})
    with pytest.raises(RecipeError, match="1 shares its weight with 0"):
        resolve([RTN(scheme="w8a16", targets=only("1"))], Network(model))
    with pytest.raises(RecipeError, match="one input only"):
        resolve([RTN(scheme="w8a8-static", tie="keep")], Network(model))


def test_a_kept_tie_between_layers_of_two_kinds_is_refused() -> None:
    model = nn.Sequential(nn.Conv1d(8, 8, 1), nn.ConvTranspose1d(8, 8, 1))
    model[1].weight = model[0].weight
    with pytest.raises(RecipeError, match="'tie: keep' is for embeddings and for layers of one kind"):
        resolve([RTN(scheme="w8a16", tie="keep")], Network(model))


def test_a_layer_that_shares_the_weight_of_an_embedding_is_a_head() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(8, 8), "inner": nn.Linear(8, 8), "out": nn.Linear(8, 8)})
    model["out"].weight = model["embed"].weight
    network = Network(model)
    assert [(site.name, site.role) for site in network.sites] == [
        ("embed", "embedding"), ("inner", "inner"), ("out", "head"),
    ]  # fmt: skip
    assert list(resolve([RTN(scheme="w8a16")], network).assignments) == ["inner"]


def test_what_a_parametrized_weight_is_made_of_stays_float_and_is_explained() -> None:
    old = torch.nn.utils.weight_norm  # not the decorated parametrization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(weight_norm(nn.Linear(8, 8)), old(nn.Linear(8, 8)), nn.Linear(8, 800))
    ignored = resolve([RTN(scheme="w8a16")], Network(model)).ignored
    for name, layer in (("0.parametrizations.weight.original1", "0"), ("1.weight_v", "1")):
        assert f"the weight of {layer} is computed from this" in ignored[name]
        assert "remove_parametrizations" in ignored[name]


def test_several_faults_are_said_at_once() -> None:
    stages = [RTN(scheme="w4a16-g48"), RTN(scheme="w8a16", targets=only("*.down_prj"))]
    with pytest.raises(RecipeError) as caught:
        resolve(stages, meta("llama_gqa"))
    assert "does not divide" in str(caught.value) and "down_proj" in str(caught.value)


class Unknown(nn.Module):
    """A layer whose matrix no layout recognises."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.randn(size, 64))
        self.known = nn.Linear(64, 64)


def test_a_big_matrix_that_is_not_recognised_stays_float_and_that_is_said() -> None:
    with pytest.warns(UnrecognisedWarning, match=r"50% .*\(mixing\); they stay float"):
        resolution = resolve([RTN(scheme="w8a16")], Network(Unknown(64)))
    assert "kind that is not quantized" in resolution.ignored["mixing"]
    with pytest.raises(StructureError, match=r"50% .*\(mixing\), and the recipe says 'unrecognised: error'.*exclude"):
        resolve([RTN(scheme="w8a16", unrecognised="error")], Network(Unknown(64)))


@pytest.mark.parametrize("targets", [Targets(exclude=("mixing",)), Targets(include=("known",))])
def test_what_is_excluded_or_not_included_counts_for_nothing(targets: Targets) -> None:
    resolution = resolve([RTN(scheme="w8a16", unrecognised="error", targets=targets)], Network(Unknown(64)))
    assert list(resolution.assignments) == ["known"]
    reason = "excluded by the pattern 'mixing'" if targets.exclude else "a parameter of a kind that is not quantized"
    assert resolution.ignored["mixing"] == reason


def test_it_may_stay_as_it_is_where_nothing_is_quantized() -> None:
    for stage in (Finetune(), SCOP()):
        resolution = resolve([stage], Network(Unknown(64)))
        assert "kind that is not quantized" in resolution.ignored["mixing"]


def test_a_small_one_is_left_alone_with_its_reason() -> None:
    network = Network(Unknown(8))
    resolution = resolve([RTN(scheme="w8a16")], network)
    accounted(network, resolution)
    assert "kind that is not quantized" in resolution.ignored["mixing"]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama_gqa", {"scheme": "w4a16-g32", "range_search": "mse"}),
        ("gpt2", {"scheme": "w8a16", "tie": "keep", "targets": Targets(include=("*", "lm_head"))}),
        ("gemma2", {"scheme": "w8a16", "tie": "untie", "targets": Targets(include=("*", "lm_head"))}),
        ("mixtral", {"scheme": "w4a16-g32-asym", "range_search": "hqq"}),
        ("resnet", {"scheme": "w8a16"}),
        ("bert", {"scheme": "w8a8-dynamic"}),
    ],
)
def test_running_a_resolution_quantizes_what_was_assigned_and_nothing_else(
    family: str, options: dict[str, Any]
) -> None:
    model: PreTrainedModel = FAMILIES[family]()
    inputs = sample_inputs(model)
    before = output_tensor(model, inputs)
    network = Network(model)
    resolution = resolve([RTN(**options)], network)
    weights = {name: network.weight(network.by_name[name]).clone() for name in resolution.assignments}
    told: list[tuple[int, int]] = []
    results = run(network, resolution, lambda description, done, total: told.append((done, total)))
    assert list(results) == [site.name for site in network.sites if site.name in resolution.assignments]
    assert told == [(count, len(results)) for count in range(len(results) + 1)]
    packed = {name: module for name, module in model.named_modules() if isinstance(module, PackedWeight)}
    assert packed.keys() == results.keys()
    for name, result in results.items():
        lost = (weights[name] - packed[name].dequantized()).double()
        assert result.error.noise == pytest.approx(lost.square().sum().item(), rel=1e-4)
        assert result.assignment == resolution.assignments[name]
    tied = [name for name, module in model.named_modules() if isinstance(module, TiedQuantizedLinear)]
    assert tied == list(resolution.ties)
    after = output_tensor(model, inputs)
    assert not torch.equal(after, before)
    correlation = torch.corrcoef(torch.stack([after.flatten(), before.flatten()]))[0, 1]
    assert correlation > 0.9


def test_a_weight_that_is_not_finite_is_named() -> None:
    model = FAMILIES["llama_gqa"]()
    model.model.layers[1].mlp.up_proj.weight.data[3, 5] = torch.nan
    network = Network(model)
    resolution = resolve([RTN(scheme="w8a16")], network)
    with pytest.raises(QuantizationError, match=r"model\.layers\.1\.mlp\.up_proj \(128, 64\) .*1 values.*exclude"):
        run(network, resolution)


def test_rotation_and_cache_are_found_among_the_stages() -> None:
    rotation, rounding, cache = RandomRotation(seed=3), RTN(scheme="w4a16-g32"), KVCache(mode="dynamic")
    network = meta("llama_gqa")
    plain, all_of_them = resolve([rounding], network), resolve([rotation, rounding, cache], network)
    assert plain.stages == (rounding,)
    assert (all_of_them.of(Rotation), all_of_them.first(CacheQuantizer)) == ((rotation,), cache)
    assert all_of_them.sites_of(Rotation) == frozenset()
    assert all_of_them.assignments == plain.assignments
    for alone in (rotation, cache):
        resolution = resolve([alone], network)
        assert resolution.assignments == {}
        accounted(network, resolution)


def test_a_rotation_comes_first_and_whole_network_stages_come_once() -> None:
    rounding, network = RTN(scheme="w4a16-g32"), meta("llama_gqa")
    with pytest.raises(RecipeError, match=r"stages\[1\]\.rotate: rtn comes before it .* make it the first stage"):
        resolve([rounding, RandomRotation()], network)
    with pytest.raises(RecipeError, match=r"stages\[1\]\.rotate: kv_cache comes before it"):
        resolve([KVCache(), RandomRotation()], network)
    with pytest.raises(RecipeError, match=r"stages\[1\]\.rotate: .*one such stage at most"):
        resolve([RandomRotation(), RandomRotation(seed=1)], network)
    with pytest.raises(RecipeError, match=r"stages\[2\]\.kv_cache: .*one such stage at most"):
        resolve([KVCache(), rounding, KVCache(mode="dynamic")], network)


def test_a_tie_that_the_rotation_cuts_is_no_tie() -> None:
    model = FAMILIES["opt"]().to("meta")
    head = RTN(scheme="w8a16", targets=only("lm_head"))
    with pytest.raises(RecipeError, match="shares its weight"):
        resolve([head], Network(model))
    cut = Network(model, cut=["lm_head.weight"])
    resolution = resolve([RandomRotation(), head], cut)
    assert set(resolution.assignments) == {"lm_head"}
    assert resolution.ties == {}
    assert resolution.untied
    with pytest.raises(RecipeError, match=r"stages\[1\]\.rtn: 'tie: keep' cannot be.*lm_head\.weight"):
        resolve([RandomRotation(), RTN(scheme="w8a16", tie="keep", targets=only("lm_head"))], cut)


def test_a_float64_model_is_refused_while_it_is_still_whole() -> None:
    model = nn.Sequential(nn.Linear(64, 64)).double()
    with pytest.raises(SourceError, match=r"The Sequential is float64 \(0\.weight and 1 more\).*model\.float\(\)"):
        goldstick.apply(model, "rtn-w8a16", inplace=True)
    assert type(model[0]) is nn.Linear


class Converting(nn.Module):
    """Its middle layer computes in a type of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(64, 64), nn.Linear(64, 64)
        self.middle.weight = nn.Parameter(self.middle.weight.detach().to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) @ self.middle.weight.T.to(x.dtype)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Converting(torch.float64), r"The Converting is float64 \(middle\.weight\).*or exclude the layer"),
        (lambda: Converting(torch.float8_e4m3fn), r"middle\.weight of this Converting is float8_e4m3fn, codes of a"),
        (lambda: Converting(torch.float32).to("meta"), r"first\.weight of this Converting is on the meta device"),
    ],
    ids=["float64", "float8", "meta"],
)
def test_a_layer_that_cannot_be_quantized_is_refused_with_its_name(build: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(SourceError, match=told):
        goldstick.apply(build(), "rtn-w8a16")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn], ids=str)
def test_an_excluded_layer_stays_in_whatever_type_it_is(dtype: torch.dtype) -> None:
    model, x = Converting(dtype), torch.randn(8, 64)
    recipe = {"stages": [{"gptq": {"scheme": "w8a16", "targets": {"exclude": ["middle"]}}}]}
    result = goldstick.apply(model, recipe, data=[x])
    made: Any = result.model
    assert made.middle.weight.dtype is dtype and type(made.middle) is nn.Linear and type(made.first) is not nn.Linear
    torch.testing.assert_close(made(x), model(x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([SmoothQuant()], r"stages\[0\]\.smoothquant: .* none comes after it.* put one behind it, such as gptq"),
        ([AWQ(quantize=False)], r"stages\[0\]\.awq: .* none comes after it"),
        ([RTN(scheme="w8a16"), SmoothQuant()], r"stages\[1\]\.smoothquant: .* put it before rtn"),
        ([RTN(scheme="w8a16"), AWQ(quantize=False)], r"stages\[1\]\.awq: .* put it before rtn"),
    ],
)
def test_stages_that_would_do_nothing_are_refused(stages: list[Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        resolve(stages, meta("llama_gqa"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheme": "w4a16-g32", "targets": {"exclude": ["*"]}}, r"none is \(excluded by the pattern '\*'\)"),
        ({"scheme": "w4a16-g48", "group_size_mismatch": "skip"}, r"none is \(skipped: 64 inputs do not divide"),
    ],
)
def test_a_recipe_that_leaves_nothing_to_round_is_refused(options: dict[str, Any], said: str) -> None:
    model = FAMILIES["llama_gqa"]()
    with pytest.raises(RecipeError, match=r"stages\[0\]\.rtn: of 16 layers that could be rounded " + said):
        goldstick.apply(model, {"stages": [{"rtn": options}]})


def test_a_network_without_a_layer_to_round_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"stages\[0\]\.rtn: the network has no layer that could be rounded"):
        goldstick.apply(nn.ReLU(), "rtn-w8a16")


@pytest.mark.parametrize("stage", [RTN, GPTQ, Descent])
@pytest.mark.parametrize("scheme", ["w4a16-channel", "w8a8-dynamic", "mxfp8", "q4_0"])
def test_a_search_of_ggml_that_would_have_no_block_is_refused_before_any_weight_is_read(
    stage: type[RTN | GPTQ | Descent], scheme: str
) -> None:
    network = Network(nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 32)).to("meta"))
    found = stage(scheme=scheme, range_search="ggml", group_size_mismatch="channel")
    with pytest.raises(RecipeError, match="is for the block types of GGUF files"):
        resolve([found], network)
    fitting = stage(scheme="q4_0", range_search="ggml", targets=only("0"), overrides={"0": "mxfp4a16"})
    assert list(resolve([fitting], network).assignments) == ["0"]


def test_overrides_of_a_mixture_go_before_its_rules_and_what_they_make_resolves_to_the_same() -> None:
    network = meta("llama_gqa")
    mixed = RTN(scheme="q4_k_m", range_search="ggml", overrides={"*.1.*.v_proj": "q8_0"})
    found = resolve([mixed], network)
    assert found.assignments["model.layers.1.self_attn.v_proj"].scheme == Scheme.parse("q8_0")
    again = resolve(found.stages, network)
    assert {name: one.scheme for name, one in again.assignments.items()} == {
        name: one.scheme for name, one in found.assignments.items()
    }


def test_a_mixture_names_layers_that_end_like_others() -> None:
    model = nn.ModuleDict({"outer": nn.ModuleDict({"v_proj": nn.Linear(256, 256)}), "v_proj": nn.Linear(32, 32)})
    found = resolve([RTN(scheme="q4_k_m", range_search="ggml")], Network(model.to("meta"))).assignments
    schemes = {name: one.scheme for name, one in found.items()}
    assert schemes == {"outer.v_proj": Scheme.parse("q4_k"), "v_proj": Scheme.parse("q8_0")}
