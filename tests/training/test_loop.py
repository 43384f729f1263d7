"""The training loop: it learns, stops, goes on, validates, and leaves nothing else changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from goldstick.core.trainable_wrapper import ParameterGroup, TrainableWrapper
from goldstick.core.training import TrainingOptions
from goldstick.errors import RecipeError, TrainingError, UsageError
from goldstick.training import TrainingTask, train
from goldstick.training.norms import measure_norms
from goldstick.training.task import supervised
from tests.support.small_networks import TinyResidual, accuracy, batches


def options(**given: Any) -> TrainingOptions:
    return TrainingOptions(**({"epochs": 2, "rate": 1e-2, "norm_batches": 2} | given))


def equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_it_teaches_a_network_its_data() -> None:
    model = TinyResidual().eval()
    record = train(model, TrainingTask(batches=batches()), options(epochs=12))
    assert record.steps == 96
    assert len(record.losses) == 12
    assert record.losses[-1] < 0.5 * record.losses[0]
    assert accuracy(model) > 0.8
    assert not model.training


def test_one_step_of_sgd_is_what_the_formula_says() -> None:
    layer = nn.Linear(3, 1)
    start = layer.weight.detach().clone()
    inputs, wanted = torch.randn(5, 3), torch.randn(5, 1)
    squares = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    task = TrainingTask(batches=[(inputs, wanted)], loss=squares)
    gradient = 2 * (inputs @ start.T + layer.bias.detach() - wanted).T @ inputs / 5
    train(layer, task, options(epochs=1, optimizer="sgd", rate=0.1, weight_decay=0.5, schedule="constant"))
    decayed = gradient + 0.5 * start
    torch.testing.assert_close(layer.weight.detach(), start - 0.1 * (decayed + 0.9 * decayed))  # Nesterov's first step


def test_in_bfloat16_products_are_rounded_and_nothing_that_is_kept() -> None:
    seen: list[torch.dtype] = []
    losses: dict[str, tuple[float, ...]] = {}
    models: dict[str, nn.Module] = {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = models[precision] = TinyResidual().eval()
        hook = model.stem.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        task = TrainingTask(batches=batches(), validate=accuracy)
        losses[precision] = train(model, task, options(epochs=6, precision=precision)).losses
        hook.remove()
        assert seen[-1] == torch.float32  # validation, and the statistics of norms
        assert all(value.dtype in (torch.float32, torch.int64) for value in model.state_dict().values())
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert not equal(models["float32"], models["bfloat16"])
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.5), ("linear", 0.5), ("constant", 1.0)])
def test_a_schedule_rises_over_the_warmup_and_falls_to_its_end(schedule: Any, middle: float) -> None:
    made = options(schedule=schedule, warmup=0.1)
    assert made.factor(0.0) == 0
    assert made.factor(0.05) == pytest.approx(0.5 * options(schedule=schedule).factor(0.05))
    assert made.factor(0.5) == pytest.approx(middle)


class StoppedError(Exception):
    """What the test's data end with."""


def stopping(epochs: int) -> Callable[[int], list[tuple[Tensor, Tensor]]]:
    def give(epoch: int) -> list[tuple[Tensor, Tensor]]:
        if epoch == epochs:
            raise StoppedError
        return noisy(epoch)

    return give


def noisy(epoch: int) -> list[tuple[Tensor, Tensor]]:
    """Data that draw from torch's generator, as augmentations do."""
    return [(inputs + torch.randn_like(inputs), classes) for inputs, classes in batches(3)]


def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    start = TinyResidual()
    whole, stopped, resumed = (copy.deepcopy(start) for _ in range(3))
    chosen = options(epochs=4)
    validate = lambda model: accuracy(model) + float(torch.rand(()))  # noqa: E731  draws, which must not matter
    expected = train(whole, TrainingTask(batches=noisy, validate=validate), chosen)
    with pytest.raises(StoppedError):
        train(stopped, TrainingTask(batches=stopping(2), validate=validate, directory=tmp_path), chosen)
    torch.randn(7)  # the state of the generator outside does not matter
    found = train(resumed, TrainingTask(batches=noisy, validate=validate, directory=tmp_path), chosen)
    assert equal(resumed, whole)
    assert found == expected
    again, asked = copy.deepcopy(start), []

    def asking(epoch: int) -> list[tuple[Tensor, Tensor]]:
        asked.append(epoch)
        return noisy(epoch)

    assert train(again, TrainingTask(batches=asking, directory=tmp_path), chosen) == expected
    assert equal(again, whole)
    assert asked == [0]  # nothing is left to train; statistics are measured once more


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    train(TinyResidual(), TrainingTask(batches=batches(1), directory=tmp_path), options(epochs=1))
    with pytest.raises(TrainingError, match="another network or other options"):
        train(TinyResidual(), TrainingTask(batches=batches(1), directory=tmp_path), options(epochs=2))
    (tmp_path / "training.pt").write_bytes(b"nothing")
    with pytest.raises(TrainingError, match="damaged"):
        train(TinyResidual(), TrainingTask(batches=batches(1), directory=tmp_path), options(epochs=1))


def test_the_best_epoch_is_kept_and_patience_ends_the_training() -> None:
    scores = iter([0.1, 0.7, 0.3, 0.2, 0.9])
    seen: list[Tensor] = []

    def validate(model: nn.Module) -> float:
        seen.append(model.get_parameter("classifier.weight").detach().clone())
        return next(scores)

    model = TinyResidual()
    record = train(model, TrainingTask(batches=batches(2), validate=validate), options(epochs=9, patience=2))
    assert record.scores == (0.1, 0.7, 0.3, 0.2)
    assert record.kept_epoch == 2
    assert torch.equal(model.classifier.weight.detach(), seen[1])
    assert not torch.equal(seen[1], seen[3])


def test_the_generator_outside_is_left_as_it_was_and_the_seed_decides() -> None:
    def after(seed: int) -> TinyResidual:
        model = TinyResidual()
        model.load_state_dict(start.state_dict())
        train(model, TrainingTask(batches=noisy), options(seed=seed, epochs=1))
        return model

    start = TinyResidual()
    before = torch.get_rng_state()
    train(copy.deepcopy(start), TrainingTask(batches=noisy), options(epochs=1))
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(after(3), after(3))
    assert not equal(after(3), after(4))


class Recording(TrainableWrapper):
    """Notes what it is told; learns a factor at a rate of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.factor = nn.Parameter(torch.ones(()))
        self.told: list[float] = []

    def anneal(self, progress: float) -> None:
        self.told.append(progress)

    def groups(self) -> list[ParameterGroup]:
        return [ParameterGroup(parameters=(self.factor,), rate=1e-5)]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) * self.factor
        return result


def test_relaxations_are_told_the_progress_and_learn_at_their_own_rate() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Recording(nn.Linear(4, 4)))
    data = [(torch.randn(8, 4), torch.randint(4, (8,))) for _ in range(4)]
    recording = model[1]
    assert isinstance(recording, Recording)
    train(model, TrainingTask(batches=data), options(steps=8))
    assert recording.told == [*(step / 8 for step in range(8)), 1.0]
    assert 0 < abs(recording.factor.item() - 1) < 1e-3


def test_the_callers_own_training_drives_the_same_annealing() -> None:
    def own(model: nn.Module, anneal: Callable[[float], None]) -> None:
        for share in (0.0, 0.5):
            anneal(share)
            model(torch.randn(2, 4)).sum().backward()

    model = nn.Sequential(Recording(nn.Linear(4, 4)))
    record = train(model, TrainingTask(batches=[torch.randn(2, 4)], train=own), options())
    assert (record.steps, record.losses) == (0, ())
    recording = model[0]
    assert isinstance(recording, Recording)
    assert recording.told == [0.0, 0.5, 1.0]


def test_running_statistics_are_the_means_over_batches_with_the_weights_as_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    data = batches(3)
    measure_norms(model, data, 2, supervised_on_pooled)
    outputs = [model[0](inputs).detach() for inputs, _ in data[:2]]
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    expected = torch.stack([output.mean((0, 2, 3)) for output in outputs]).mean(0)
    torch.testing.assert_close(norm.running_mean, expected)
    variances = torch.stack([output.var((0, 2, 3)) for output in outputs]).mean(0)
    torch.testing.assert_close(norm.running_var, variances)
    assert norm.momentum == 0.1
    assert not norm.training


class FrozenFirst(nn.Sequential):
    """A network that keeps its first norm in evaluation mode, as those do that were pretrained with small batches."""

    def train(self, mode: bool = True) -> FrozenFirst:
        super().train(mode)
        self[1].eval()
        return self


class WithUnused(nn.Sequential):
    """A network whose last module no input reaches."""

    def forward(self, inputs: Tensor) -> Tensor:
        for module in self[:-1]:
            inputs = module(inputs)
        return inputs


@pytest.mark.parametrize("kept", ["frozen", "still", "unreached", "untracked"])
def test_statistics_that_training_leaves_alone_are_not_measured(kept: str) -> None:
    norms = [nn.BatchNorm2d(4, momentum=0.0 if kept == "still" else 0.1), nn.BatchNorm2d(4)]
    kind = {"frozen": FrozenFirst, "unreached": WithUnused}.get(kept, nn.Sequential)
    first, second = (norms[1], norms[0]) if kept == "unreached" else norms
    model = kind(nn.Conv2d(3, 4, 1), first, nn.Conv2d(4, 4, 1), second)
    for norm in norms:
        nn.init.constant_(norm.running_mean, 3.0)
        nn.init.constant_(norm.running_var, 5.0)
        norm.num_batches_tracked.fill_(7)
    norms[0].track_running_stats = kept != "untracked"
    measure_norms(model, batches(3), 2, supervised_on_pooled)
    assert norms[0].running_mean.eq(3.0).all() and norms[0].running_var.eq(5.0).all()
    assert norms[0].num_batches_tracked == 7
    assert not norms[1].running_mean.eq(3.0).any()
    assert not any(module.training for module in model.modules())


def supervised_on_pooled(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).mean((2, 3)), batch[1])


@pytest.mark.parametrize("lengths", [[4, 2], [2, 4], [1, 3, 2]])
def test_epochs_of_different_lengths_are_counted_and_the_schedule_goes_by_their_shares(lengths: list[int]) -> None:
    model = nn.Sequential(Recording(nn.Linear(4, 4)))
    told: list[tuple[int, int]] = []
    task = TrainingTask(batches=lambda epoch: [(torch.randn(2, 4), torch.zeros(2).long())] * lengths[epoch])
    count = len(lengths)
    record = train(model, task, options(epochs=count), progress=lambda _, done, total: told.append((done, total)))
    assert (record.steps, len(record.losses)) == (sum(lengths), count)
    recording = model[0]
    assert isinstance(recording, Recording)
    shares = [(epoch + index / length) / count for epoch, length in enumerate(lengths) for index in range(length)]
    assert recording.told == pytest.approx([*shares, 1.0])
    assert told[-1][0] == told[-1][1]
    record = train(model, task, options(steps=sum(lengths) - 1, norm_batches=0))
    assert (record.steps, len(record.losses)) == (sum(lengths) - 1, count)


def test_what_cannot_be_trained_is_refused() -> None:
    model = TinyResidual()
    with pytest.raises(UsageError, match="an iterator, which serves one epoch"):
        train(model, TrainingTask(batches=iter(batches(1))), options())
    with pytest.raises(UsageError, match="no length"):
        train(model, TrainingTask(batches=lambda epoch: iter(batches(1))), options(norm_batches=0))
    with pytest.raises(UsageError, match="patience waits"):
        train(model, TrainingTask(batches=batches(1)), options(patience=2))
    with pytest.raises(TrainingError, match="no batch"):
        train(model, TrainingTask(batches=[]), options(steps=2))
    with pytest.raises(UsageError, match="gives no loss"):
        supervised(model, 3)
    with pytest.raises(TrainingError, match=r"loss is nan in step 1 .* Lower training\.rate"):
        nothing = [(torch.full((2, 3, 8, 8), torch.nan), torch.zeros(2, dtype=torch.long))]
        train(model, TrainingTask(batches=nothing), options())
    with pytest.raises(TrainingError, match="No parameter"):
        train(TinyResidual().requires_grad_(False), TrainingTask(batches=batches(1)), options())


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (lambda model, batch: None, "gave a NoneType for a batch"),
        (lambda model, batch: model(batch[0]).sum(1), r"gave a tensor \[32\] for a batch"),
        (lambda model, batch: supervised(model, batch).detach(), "does not depend on what is trained"),
    ],
)
def test_a_loss_that_cannot_be_learned_from_is_named(loss: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        train(TinyResidual(), TrainingTask(batches=batches(1), loss=loss), options())


def test_a_last_step_that_diverges_is_noticed() -> None:
    class Rootless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.root = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.root).norm() * 0 + self.root.abs().sqrt().sum()  # finite at 0, with a slope that is not

    task = TrainingTask(batches=[torch.ones(2)], loss=lambda model, batch: model(batch))
    with pytest.raises(
        TrainingError, match=r"root holds NaN or infinity at the end of training: .* Lower training\.rate"
    ):
        train(Rootless(), task, options(epochs=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"weight_decay": float("inf")},
        {"warmup": 1.0},
        {"norm_batches": -1},
        {"patience": 0},
        {"seed": 1 << 64},
    ],
)
def test_options_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        options(**wrong)
