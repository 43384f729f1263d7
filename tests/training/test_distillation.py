"""Distillation: the loss against its formula, what it leaves out, a cut network that comes nearer to its teacher."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.core.training import TrainingOptions
from goldstick.errors import RecipeError, UsageError
from goldstick.training import TrainingTask, distilled
from goldstick.training.distillation import agreement, class_axis
from goldstick.training.task import supervised
from tests.support.small_networks import TinyResidual, batches, images, trained


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of each row, number by number."""
    p = torch.softmax(teacher.double() / temperature, -1)
    q = torch.softmax(student.double() / temperature, -1)
    return (p * (p / q).log()).sum(-1)


def test_the_loss_is_what_the_formula_says_and_the_teacher_does_not_learn() -> None:
    student, teacher = nn.Linear(5, 3), nn.Linear(5, 3)
    x, classes = torch.randn(7, 5), torch.randint(3, (7,))
    found = distilled(supervised, teacher, 0.7, 2.0)(student, (x, classes))
    own = nn.functional.cross_entropy(student(x), classes).double()
    expected = 0.3 * own + 0.7 * 4.0 * divergence(student(x), teacher(x), 2.0).mean()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)
    found.backward()
    assert student.weight.grad is not None and teacher.weight.grad is None
    assert not teacher.training
    with torch.no_grad():  # statistics of norms are measured: the teacher is not asked
        assert torch.equal(distilled(supervised, nn.Linear(1, 1), 0.7, 2.0)(student, (x, classes)), own.float())


class Language(nn.Module):
    """Scores for each token, as transformers' models give them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 11)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> SimpleNamespace:
        scores = self.table(input_ids)
        loss = (
            None
            if labels is None
            else nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        )
        return SimpleNamespace(logits=scores, loss=loss)


def test_of_a_language_model_the_tokens_count_whose_next_one_is_a_target() -> None:
    student, teacher = Language(), Language()
    ids = torch.randint(11, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    found = distilled(supervised, teacher, 1.0, 1.0)(student, {"input_ids": ids, "attention_mask": mask})
    apart = divergence(student.table(ids), teacher.table(ids), 1.0)
    counted = [*apart[0, :3], *apart[1, :5]]  # the last of each predicts nothing that is asked
    torch.testing.assert_close(found.double(), torch.stack(counted).mean(), rtol=1e-5, atol=1e-7)


class Tagging(Language):
    """Scores for each token's own class."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> SimpleNamespace:
        scores = self.table(input_ids)
        loss = None if labels is None else nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return SimpleNamespace(logits=scores, loss=loss)


def test_of_a_model_that_predicts_no_next_token_the_tokens_count_that_have_a_target() -> None:
    student, teacher = Tagging(), Tagging()
    ids, labels = torch.randint(11, (2, 6)), torch.full((2, 6), -100)
    labels[0, 0], labels[1, 3], labels[1, 5] = 4, 0, 10
    found = distilled(supervised, teacher, 1.0, 1.0)(student, {"input_ids": ids, "labels": labels})
    apart = divergence(student.table(ids), teacher.table(ids), 1.0)
    torch.testing.assert_close(found.double(), apart[labels >= 0].mean(), rtol=1e-5, atol=1e-7)


class Casting(Tagging):
    """Gives other tensors than its loss is made of."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> SimpleNamespace:
        found = super().forward(input_ids, labels)
        return SimpleNamespace(logits=found.logits.double(), loss=found.loss)


def test_all_tokens_count_where_the_loss_is_of_other_tensors_than_the_scores() -> None:
    student, teacher = Casting(), Casting()
    ids, labels = torch.randint(11, (2, 6)), torch.full((2, 6), -100)
    labels[0, 0] = 4
    found = distilled(supervised, teacher, 1.0, 1.0)(student, {"input_ids": ids, "labels": labels})
    expected = divergence(student.table(ids), teacher.table(ids), 1.0).mean()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)


class Translation(Language):
    """Scores for each token of a decoder."""

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, **_: Any) -> SimpleNamespace:  # type: ignore[override]
        return super().forward(decoder_input_ids)


def test_agreement_is_over_the_tokens_that_count_and_of_a_decoder_over_its_own() -> None:
    ids, written = torch.randint(11, (2, 4)), torch.randint(11, (2, 4))
    mask, other = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]), torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": mask}
    first, second = Language(), Language()
    apart = divergence(first.table(ids), second.table(ids), 1.0)
    torch.testing.assert_close(agreement(second)(first, batch).double(), apart[mask.bool()].mean(), rtol=1e-5, atol=0)
    reader, teacher = Translation(), Translation()
    apart = divergence(reader.table(written), teacher.table(written), 1.0)
    batch |= {"decoder_input_ids": written, "decoder_attention_mask": other}
    found = agreement(teacher)(reader, batch).double()
    torch.testing.assert_close(found, apart[other.bool()].mean(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_of_a_dense_prediction_classes_are_where_the_loss_has_them(dimensions: int) -> None:
    kind = nn.Conv1d if dimensions == 1 else nn.Conv2d
    student, teacher = kind(3, 5, 1), kind(3, 5, 1)
    x, classes = torch.randn(2, 3, *[4] * dimensions), torch.randint(5, (2, *[4] * dimensions))
    expected = divergence(student(x).movedim(1, -1), teacher(x).movedim(1, -1), 2.0).mean()
    found = distilled(supervised, teacher, 1.0, 2.0)(student, (x, classes))
    torch.testing.assert_close(found.double(), 4.0 * expected, rtol=1e-5, atol=1e-7)


def test_classes_are_looked_for_by_the_batch_and_its_targets() -> None:
    tokens, image = torch.zeros(2, 7, 5), torch.zeros(2, 5, 4, 4)
    assert class_axis(tokens, {"input_ids": torch.zeros(2, 7)}) == -1
    assert class_axis(image, {"pixel_values": torch.zeros(2, 3, 4, 4)}) == 1
    assert class_axis(tokens, (torch.zeros(2, 7).long(), torch.zeros(2, 7).long())) == -1
    assert class_axis(tokens, torch.zeros(2, 7).long()) == -1
    assert class_axis(tokens, (torch.zeros(2, 3, 5), torch.zeros(2, 5).long())) == 1
    assert class_axis(torch.zeros(2, 5, 5), (torch.zeros(2, 3, 5), torch.zeros(2, 5).long())) == 1
    assert class_axis(tokens, torch.zeros(2, 3, 5)) == 1


def test_a_cut_network_comes_nearer_to_its_teacher() -> None:
    model = trained()
    strange = [(x, torch.randint(4, (len(x),))) for x, _ in batches()]  # targets that say nothing of the network
    apart = {}
    for share in (0.0, 1.0):
        stages = [
            {"scop": {"rate": 0.5, "criterion": "magnitude"}},
            {"finetune": {"training": {"epochs": 6, "rate": 1e-2, "distill": share, "distill_temperature": 2.0}}},
        ]
        found = goldstick.apply(copy.deepcopy(model), {"stages": stages}, training=TrainingTask(batches=strange)).model
        x = images(256, 4711)[0]
        with torch.no_grad():
            apart[share] = float(divergence(found(x), model(x), 1.0).mean())
    assert apart[1.0] < 0.2 * apart[0.0]


def test_gates_and_searched_weights_learn_from_the_teacher_too() -> None:
    x, classes = batches(1)[0]
    given = {"epochs": 1, "rate": 1e-2}
    for stage in ("scop", "slb"):
        losses = []
        for distill in (0.0, 1.0):
            torch.manual_seed(0)
            recipe = {"stages": [{stage: {"training": {**given, "distill": distill}}}]}
            result = goldstick.apply(TinyResidual().eval(), recipe, training=TrainingTask(batches=[(x, classes)]))
            losses.append(result.report.training[0]["losses"][0])
        assert losses[0] > 1 > losses[1] > 0, stage  # of four classes, and of a network that is nearly the teacher


def test_what_cannot_be_distilled_is_said() -> None:
    with pytest.raises(RecipeError, match=r"training\.distill is a share from 0 to 1"):
        TrainingOptions(distill=1.5)
    with pytest.raises(RecipeError, match="distill_temperature positive"):
        TrainingOptions(distill_temperature=0.0)
    recipe = {"stages": [{"finetune": {"training": {"epochs": 1, "distill": 0.5}}}]}
    with pytest.raises(RecipeError, match="stands in its place"):
        task = TrainingTask(batches=batches(1), train=lambda model, anneal: None)
        goldstick.apply(TinyResidual(), recipe, training=task)
    with pytest.raises(UsageError, match="does not call it"):
        task = TrainingTask(batches=batches(1), loss=lambda model, batch: next(model.parameters()).sum())
        goldstick.apply(TinyResidual(), recipe, training=task)
    with pytest.raises(UsageError, match="one number a row, as a regression does"):
        one = distilled(lambda model, batch: model(batch).square().mean(), nn.Linear(3, 1), 0.5, 1.0)
        one(nn.Linear(3, 1), torch.ones(2, 3))
    with pytest.raises(UsageError, match="gives a tuple"):
        pair = distilled(lambda model, batch: model(batch)[0].sum(), Pair(), 0.5, 1.0)
        pair(Pair(), torch.ones(2, 3))


class Pair(nn.Linear):
    """Gives two things."""

    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, x: Tensor) -> Any:
        """Both."""
        return super().forward(x), x
