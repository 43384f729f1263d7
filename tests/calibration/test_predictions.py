"""Predictions: which of a model's outputs count, and that slopes drawn there have the loss's curvature on average."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling, QuestionAnsweringModelOutput

from goldstick.calibration.predictions import signs, slopes
from goldstick.core.token_mask import TokenMask


def drawn(output: Any, mask: Tensor | None = None, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    return slopes(output, TokenMask(mask), torch.Generator().manual_seed(seed))


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def test_on_average_slopes_at_scores_are_the_hessian_of_the_divergence_at_a_temperature_of_3() -> None:
    scores = leaf(1, 4, 3)
    outer = torch.zeros(4, 3, 3)
    for seed in range(4000):
        ((_, slope),) = drawn({"logits": scores}, seed=seed)
        outer += slope[0].unsqueeze(-1) * slope[0].unsqueeze(-2) / 4000
    p = (scores[0].detach() / 3).softmax(-1)
    torch.testing.assert_close(outer, torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2), atol=0.02, rtol=0)


def test_both_ends_of_an_answer_count_and_are_drawn_apart() -> None:
    start, end = leaf(2, 7), leaf(2, 7)
    found = drawn(QuestionAnsweringModelOutput(loss=None, start_logits=start, end_logits=end))
    assert all(one is other for (one, _), other in zip(found, (start, end), strict=True))
    assert not torch.equal(found[0][1].sign(), found[1][1].sign())
    for _, slope in found:  # a distribution does not change where all scores rise
        torch.testing.assert_close(slope.sum(-1), torch.zeros(2), atol=1e-6, rtol=0)


def test_without_scores_the_first_output_is_what_counts() -> None:
    state, pooled, number, image = leaf(2, 5, 8), leaf(2, 8), leaf(20, 1), leaf(1, 3, 4, 4)
    for output, first in (
        (state, state),
        ((state, pooled), state),
        (BaseModelOutputWithPooling(last_hidden_state=state, pooler_output=pooled), state),
        ({"logits": number}, number),  # one number is no score of a class
        ({"logits": image}, image),  # the last dimension is not one of classes
    ):
        ((found, slope),) = drawn(output)
        assert found is first
        assert set(slope.unique().tolist()) == {-1.0, 1.0}


def test_signs_are_one_or_the_other_alike_often_and_say_nothing_of_one_another() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        found = signs(torch.empty(300, 501, dtype=dtype), torch.Generator().manual_seed(3))
        assert found.dtype == dtype
        assert found.shape == (300, 501)
        assert set(found.unique().tolist()) == {-1.0, 1.0}
        flat = found.float().flatten()
        for distance in (0, 1, 7, 8, 63, 64, 501):  # bits of one byte, of one number, of the next
            pairs = flat if distance == 0 else flat[distance:] * flat[:-distance]
            assert abs(float(pairs.mean())) < 4 / len(pairs) ** 0.5
    assert signs(torch.empty(0, 5), torch.Generator()).shape == (0, 5)
    assert signs(torch.empty(()), torch.Generator().manual_seed(0)).abs() == 1


def test_logits_of_an_object_that_is_no_mapping_count() -> None:
    scores = leaf(2, 5)
    assert drawn(SimpleNamespace(other=leaf(2, 5), logits=scores))[0][0] is scores


def test_what_padding_predicts_has_no_slope() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    for output in ({"logits": leaf(2, 3, 5)}, leaf(2, 3, 5)):
        ((_, slope),) = drawn(output, mask)
        assert (slope[mask == 0] == 0).all() and (slope[mask == 1] != 0).any()


def test_what_depends_on_nothing_that_is_looked_at_does_not_count() -> None:
    kept = leaf(2, 5)
    assert drawn({"logits": torch.randn(2, 5), "start_logits": kept})[0][0] is kept
    assert drawn((torch.randn(2, 5), torch.arange(3))) == []


def test_slopes_have_the_dtype_of_what_they_belong_to() -> None:
    scores = torch.randn(2, 3, 5).bfloat16().requires_grad_()
    ((_, slope),) = drawn({"logits": scores})
    assert slope.dtype == torch.bfloat16
