"""The sweep: every family is calibrated, in one pass, on exactly what its finished layers will be given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick import surgery
from goldstick.calibration import sweep as sweep_module
from goldstick.calibration.block_loop import BlockLoop, starts
from goldstick.calibration.sweep import sweep
from goldstick.calibration.task import Assignment, Work
from goldstick.core.edits import Quantize
from goldstick.core.progress import quiet
from goldstick.errors import RecipeError, StructureError
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.run import run
from goldstick.structure.network import Network
from tests.support.calibration import Batches, batches_for
from tests.support.tiny_models import FAMILIES, output_tensor

CALIBRATED = (
    "llama_gqa", "qwen3", "gemma2", "gpt2", "opt", "mixtral", "qwen3_moe", "deepseek_v3", "bert", "t5", "resnet", "vit",
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_reference_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Quantized layers multiply with dequantized weights, as the sweep does; one thread, for layers this small."""
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gptq(**options: Any) -> dict[str, Any]:
    return {"stages": [{"gptq": {"scheme": "w3a16-g32", "group_size_mismatch": "channel", **options}}]}


def swept(model: nn.Module, batches: Batches, recipe: Mapping[str, Any] | None = None) -> list[Quantize]:
    """Sweep a model in place; what was decided, in the order of the decisions."""
    network = Network(model)
    edits: list[Quantize] = []

    def decide(task: Assignment, weight: Tensor, state: Any, notes: Mapping[str, float | str]) -> Quantize:
        (edit,) = task.stage.solve(task.site, weight, state, task.scheme)
        assert isinstance(edit, Quantize)
        edits.append(edit)
        return edit

    tasks = resolve(Recipe.load(recipe or gptq()).stages, network).assignments
    sweep(network, Work(tasks=tasks, decide=decide), batches, quiet)
    return edits


def same(first: Sequence[Quantize], second: Sequence[Quantize]) -> bool:
    """Whether two sweeps decided the same, to the bit."""
    left, right = ({edit.site: edit.tensor for edit in edits} for edits in (first, second))
    return left.keys() == right.keys() and all(
        torch.equal(left[name].codes, right[name].codes) and torch.equal(left[name].scale, right[name].scale)
        for name in left
    )


@pytest.mark.parametrize("family", CALIBRATED)
def test_every_family_is_calibrated_and_never_worse_than_rounding(family: str) -> None:
    model = FAMILIES[family]()
    batches = batches_for(model)
    targets = {site.name for site in Network(model).sites if site.role == "inner"}
    edits = swept(model, batches)
    assert {edit.site for edit in edits} == targets
    ours, theirs = 0.0, 0.0
    for edit in edits:
        notes: Any = edit.notes
        assert notes["tokens"] > 0 or notes["fallback"], edit.site
        if "output_error" in notes:
            assert notes["output_error"] <= notes["rtn_output_error"], edit.site
            ours, theirs = ours + notes["output_error"], theirs + notes["rtn_output_error"]
    assert 0 < ours < 0.95 * theirs
    assert sum("fallback" not in edit.notes for edit in edits) > 0.8 * len(edits)
    found = output_tensor(model, batches[0])
    assert torch.isfinite(found).all()
    rebuilt = FAMILIES[family]()
    surgery.apply(Network(rebuilt), edits)
    assert torch.equal(found, output_tensor(rebuilt, batches[0]))


def test_every_block_is_calibrated_on_what_the_finished_blocks_before_it_give(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["llama_gqa"]()
    batches = batches_for(model)
    handed_on: list[list[Tensor]] = []
    real = BlockLoop.advance

    def note(*args: Any) -> list[Tensor]:
        handed_on.append(list(real(*args)))
        return handed_on[-1]

    monkeypatch.setattr(BlockLoop, "advance", note)
    blocks = Network(model).blocks
    swept(model, batches)
    assert len(handed_on) == len(blocks) == 2
    given: dict[str, list[Tensor]] = {path: [] for path in blocks}
    for path in blocks:
        model.get_submodule(path).register_forward_hook(
            lambda module, args, output, path=path: given[path].append(
                output[0] if isinstance(output, tuple) else output
            )
        )
    for batch in batches:
        output_tensor(model, batch)
    for path, outputs in zip(blocks, handed_on, strict=True):
        for expected, found in zip(given[path], outputs, strict=True):
            assert float((expected - found).abs().max()) == 0.0


def test_what_blocks_and_batches_are_given_alike_is_held_once() -> None:
    model = FAMILIES["llama_gqa"]()
    blocks = Network(model).blocks
    with torch.no_grad():
        _, calls = starts(model, blocks, batches_for(model))
    cosines = [call[path].kwargs["position_embeddings"][0] for call in calls for path in blocks]
    assert len(cosines) == 8
    assert all(one is cosines[0] for one in cosines)


def test_every_layer_runs_once_for_each_batch() -> None:
    model = FAMILIES["llama_gqa"]()
    batches = batches_for(model, count=5)
    calls: Counter[str] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    swept(model, batches)
    once = len(batches)
    look = 1  # one batch shows which layers share an input
    apart = 2  # and one whether the blocks give what they give in the model's own forward
    # What the first block hands on says how the others are called: once to see whether blocks do feed one another at
    # all, and once for the first batch.
    for name, count in calls.items():
        if name == "lm_head":  # of no block; once more it is known that the others need not go so far
            assert count == 2
        else:
            assert count == once + look + apart + (2 if ".layers.0." in name else 0), name
    assert len(calls) == 15


class Twice(nn.Module):
    """A decoder that goes through its blocks two times."""

    def __init__(self) -> None:
        super().__init__()
        self.model = FAMILIES["llama_gqa"]()

    def forward(self, **inputs: Any) -> Any:
        self.model(**inputs)
        return self.model(**inputs)


def test_blocks_that_a_forward_calls_twice_are_not_taken_for_a_chain() -> None:
    model = Twice()
    with torch.no_grad(), pytest.raises(StructureError, match="more than once"):
        sweep_module.block_calls(model, Network(model).blocks, batches_for(model.model)[0])


def test_the_order_of_batches_does_not_change_a_bit() -> None:
    one, other = FAMILIES["llama_gqa"](), FAMILIES["llama_gqa"]()
    batches = batches_for(one)
    assert same(swept(one, batches), swept(other, batches[::-1]))


def test_the_size_of_batches_does_not_change_a_bit() -> None:
    one, other = FAMILIES["llama_gqa"](), FAMILIES["llama_gqa"]()
    batches = batches_for(one)
    rows = torch.cat([batch["input_ids"] for batch in batches])
    regrouped = [{"input_ids": part} for part in rows.split([1, 3, 2, 2])]
    assert same(swept(one, batches), swept(other, regrouped))


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    one, other = FAMILIES["llama_gqa"](), FAMILIES["llama_gqa"]()
    batches = batches_for(one)
    first = swept(one, batches)
    torch.set_num_threads(2)
    assert same(first, swept(other, batches))


def test_stages_with_and_without_data_mix() -> None:
    recipe = {
        "stages": [
            {"rtn": {"scheme": "w4a16-g32", "targets": {"include": ["*down_proj"]}}},
            {"gptq": {"scheme": "w3a16-g32", "targets": {"exclude": ["*down_proj"]}}},
        ]
    }
    model = FAMILIES["llama_gqa"]()
    network = Network(model)
    resolution = resolve(Recipe.load(recipe).stages, network)
    results = run(network, resolution, batches=batches_for(model))
    assert list(results) == [site.name for site in network.sites if site.name in resolution.assignments]
    for name, result in results.items():
        rounded = name.endswith("down_proj")
        assert result.assignment.stage.name == ("rtn" if rounded else "gptq")
        assert ("tokens" in result.notes) is not rounded
    assert torch.isfinite(output_tensor(model, batches_for(model)[0])).all()


def test_two_calibrated_stages_share_a_sweep() -> None:
    recipe = {
        "stages": [
            {"gptq": {"scheme": "w4a16-g32", "targets": {"include": ["*v_proj"]}}},
            {"gptq": {"scheme": "w3a16-g32", "targets": {"exclude": ["*v_proj"]}}},
        ]
    }
    model = FAMILIES["llama_gqa"]()
    edits = {edit.site: edit for edit in swept(model, batches_for(model), recipe)}
    assert {edit.scheme.label for name, edit in edits.items() if name.endswith("v_proj")} == {"w4a16-g32"}
    assert {edit.scheme.label for name, edit in edits.items() if name.endswith("k_proj")} == {"w3a16-g32"}


def test_without_data_the_error_names_the_remedy() -> None:
    model = FAMILIES["llama_gqa"]()
    with pytest.raises(RecipeError, match=r"gptq looks at data, and there are none: give data= \(or --dataset\)"):
        goldstick.apply(model, gptq())
    with pytest.raises(RecipeError, match="give data="):
        goldstick.apply(model, gptq(), data=[])


def test_a_head_outside_the_blocks_is_calibrated_on_the_finished_blocks() -> None:
    model = FAMILIES["llama_gqa"]()
    batches = batches_for(model)
    edits = swept(model, batches, gptq(targets={"include": ["*"]}, tie="untie", overrides={}))
    assert "lm_head" not in {edit.site for edit in edits}  # a head is meant by name only
    model = FAMILIES["llama_gqa"]()
    edits = swept(model, batches, gptq(targets={"include": ["*_proj", "lm_head"]}))
    assert edits[-1].site == "lm_head"
    assert edits[-1].notes["tokens"] == sum(batch["input_ids"].numel() for batch in batches)


def test_an_embedding_tied_to_the_head_is_rounded() -> None:
    model = FAMILIES["gpt2"]()
    recipe = gptq(targets={"include": ["*", "transformer.wte"]}, tie="keep")
    result = goldstick.apply(model, recipe, data=batches_for(model))
    notes = {layer.name: layer.notes for layer in result.report.layers if layer.scheme}
    assert str(notes["transformer.wte.weight"]["fallback"]).startswith("0 inputs seen")
    assert torch.isfinite(output_tensor(result.model, batches_for(model)[0])).all()


class Plain(nn.Module):
    """No blocks: a convolution, one in groups, and an MLP; it takes its input by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, stride=2, padding_mode="reflect")
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.mlp = nn.Sequential(nn.Linear(8 * 9, 32), nn.GELU(), nn.Linear(32, 5))

    def forward(self, *, image: Tensor, shift: Tensor) -> Tensor:
        hidden = self.depthwise(self.conv(image).relu()).flatten(1)
        found: Tensor = self.mlp(hidden + shift)
        return found


def test_a_plain_module_without_blocks_is_calibrated() -> None:
    model = Plain()
    data = [{"image": torch.randn(16, 3, 10, 10), "shift": torch.randn(1, 1)} for _ in range(4)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = goldstick.apply(model, gptq(), data=data)
    notes = {layer.name: layer.notes for layer in result.report.layers if layer.scheme}
    assert set(notes) == {"conv.weight", "depthwise.weight", "mlp.0.weight", "mlp.2.weight"}
    assert notes["conv.weight"]["tokens"] == 4 * 16 * 25
    assert notes["mlp.0.weight"]["tokens"] == 4 * 16
    assert notes["depthwise.weight"]["fallback"]  # its groups read different patches
    assert torch.isfinite(result.model(**data[0])).all()
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Fork(nn.Module):
    """Two convolutions that read different patches of one tensor, as a residual block with a shortcut does."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.shortcut = nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Conv2d(4, 8, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.main(x) + self.shortcut(x)
        return found


def test_convolutions_of_one_input_have_hessians_of_their_own() -> None:
    edits = {edit.site: edit for edit in swept(Fork(), [{"x": torch.randn(4, 4, 8, 8)} for _ in range(2)])}
    assert edits["main"].notes["tokens"] == edits["shortcut"].notes["tokens"] == 2 * 4 * 16
    assert not any("fallback" in edit.notes for edit in edits.values())


def test_an_expert_that_gets_no_tokens_is_shown_all_and_is_no_worse_than_the_others() -> None:
    torch.manual_seed(0)
    model = FAMILIES["deepseek_v3"]()
    bias: Any = model.get_submodule("model.layers.1.mlp.gate").e_score_correction_bias
    bias[3] = -100.0
    batches = batches_for(model)
    result = goldstick.apply(model, gptq(), data=batches)
    experts = [layer for layer in result.report.layers if ".experts." in layer.name]
    assert len(experts) == 2
    for layer in experts:
        assert layer.notes["shown_every_token"] == 1 and layer.notes["tokens"] > 0 and "fallback" not in layer.notes
    seen: list[Tensor] = []
    path = "model.layers.1.mlp.experts"
    handle = result.model.get_submodule(path).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        for batch in batches:
            result.model(**batch)
        handle.remove()
        inputs = torch.cat([x.reshape(-1, x.shape[-1]) for x in seen])
        errors = []
        for expert in range(4):
            weight = model.get_submodule(path).gate_up_proj[expert]
            rounded = result.model.get_submodule(path).gate_up_proj[expert]
            errors.append(float(((weight - rounded) @ inputs.T).norm() / (weight @ inputs.T).norm()))
    assert errors[3] <= 1.1 * sum(errors[:3]) / 3, errors


class Routed(nn.Module):
    """A mixture of the old kind: a list of experts, each a module, run in their order on the tokens sent to them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.ModuleDict({"down": nn.Linear(32, 16), "up": nn.Linear(16, 32)}) for _ in range(5)
        )
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        hidden = x.clone()
        for number, one in enumerate(self.experts):
            rows = (expert == number).any(-1).nonzero().squeeze(-1)
            if len(rows):
                hidden[rows] += one["down"](one["up"](x[rows]).relu())
        found: Tensor = self.last(hidden)
        return found


def test_experts_see_all_their_tokens_whichever_batch_comes_first() -> None:
    routes = [[0, 2], [1, 3], [0, 1], [2, 3], [1, 2], [0, 3]]
    batches = [{"x": torch.randn(24, 16), "expert": torch.tensor(route).expand(24, 2)} for route in routes]
    first: list[Quantize] = []
    model = Routed()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for start in range(len(batches)):
        other = Routed()
        other.load_state_dict(state)
        edits = swept(other, batches[start:] + batches[:start])
        notes = {edit.site: edit.notes for edit in edits}
        for expert, part in ((number, part) for number in range(4) for part in ("up", "down")):
            assert notes[f"experts.{expert}.{part}"]["tokens"] == 24 * 3
        first = first or edits
        assert same(first, edits)


def test_an_expert_module_that_no_batch_reaches_is_rounded_and_says_so() -> None:
    batches = [{"x": torch.randn(24, 16), "expert": torch.tensor([0, 1]).expand(24, 2)}]
    notes = {edit.site: edit.notes for edit in swept(Routed(), batches)}
    assert notes["experts.4.up"]["fallback"] == "0 inputs seen, fewer than 0.5 of 16"
    assert notes["experts.0.up"]["tokens"] == 24


def test_a_layer_that_no_batch_reaches_is_named_where_there_is_no_other() -> None:
    model = Plain()
    model.extra = nn.Linear(32, 32)
    data = [{"image": torch.randn(64, 3, 10, 10), "shift": torch.zeros(1, 1)}]
    with pytest.raises(StructureError, match="No calibration batch reached extra; exclude it"):
        goldstick.apply(model, gptq(targets={"include": ["extra"]}), data=data)


def test_the_original_stays_as_it_was_to_the_bit() -> None:
    model = FAMILIES["mixtral"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = batches_for(model)
    answer = output_tensor(model, batches[0])
    result = goldstick.apply(model, gptq(), data=[batch["input_ids"] for batch in batches])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(output_tensor(model, batches[0]), answer)
    assert not torch.equal(output_tensor(result.model, batches[0]), answer)
    assert all(not module._forward_pre_hooks for module in result.model.modules())


def test_a_sweep_that_fails_leaves_no_hooks_and_the_mode_of_training() -> None:
    model = FAMILIES["llama_gqa"]().train()
    with torch.no_grad():
        model.get_submodule("model.layers.1.mlp.up_proj").weight[0, 0] = float("nan")
    with pytest.raises(goldstick.GoldstickError, match=r"layers\.1\.mlp\.up_proj .*cannot be quantized"):
        goldstick.apply(model, gptq(), data=batches_for(model), inplace=True)
    assert model.training and model.get_submodule("model.layers.1.mlp.up_proj").training
    assert all(not module._forward_pre_hooks and "forward" not in vars(module) for module in model.modules())
