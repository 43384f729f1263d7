"""Distillation: a network learns from the targets, and from what another network makes of the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.token_mask import predicted_mask
from goldstick.errors import UsageError
from goldstick.structure.trace import tensors_in
from goldstick.training.float_weights import as_held

Loss = Callable[[nn.Module, Any], Tensor]


def distilled(loss: Loss, teacher: nn.Module, share: float, temperature: float) -> Loss:
    """A loss with a teacher (arXiv 1503.02531): (1 − share)·loss + share·T²·KL(softmax(t / T) ‖ softmax(z / T)).

    z and t are the scores that the network and its teacher give for the same inputs, in the one forward that the loss
    makes; the divergence is a mean over rows, over the tokens whose scores the loss counts where there are labels, or
    over the places of a dense prediction. Where classes lie is told by the batch (see :func:`class_axis`). Without
    gradients, when statistics are measured, it is the loss alone.

    Args:
        loss: (model, batch) → a scalar, which calls the model.
        teacher: A network with the same inputs and scores, which takes floats in its own dtype; it is frozen, and put
            in evaluation mode.
        share: Of the divergence, from 0 to 1.
        temperature: T, by which scores are divided.

    Returns:
        (model, batch) → a scalar; it raises ``UsageError`` where the model was not called or gives no scores.
    """
    teacher.requires_grad_(False).eval()

    def with_teacher(model: nn.Module, batch: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return loss(model, batch)
        calls: list[tuple[Any, Any, Any]] = []
        hook = model.register_forward_hook(
            lambda _, positional, named, output: calls.append((positional, named, output)), with_kwargs=True
        )
        try:
            own = loss(model, batch)
        finally:
            hook.remove()
        if not calls:
            raise UsageError("training.distill compares what the network gives, and the loss does not call it.")
        positional, named, output = calls[-1]
        wanted = _taught(teacher, positional, named)
        z, t = (_scores(given, batch) / temperature for given in (output, wanted))
        if named.get("labels") is not None and z.ndim == 3:
            counted = _counted(own, output, batch)
            z, t = z[counted], t[counted]
        return (1 - share) * own + share * temperature**2 * _divergence(t, z).mean()

    return with_teacher


def agreement(teacher: nn.Module) -> Loss:
    """KL(softmax(t) ‖ softmax(z)), t the scores of a teacher and z those of the network: a mean over what counts.

    What counts are the rows of the scores, without those of tokens that the ``attention_mask`` leaves out, or a
    decoder's own.

    Args:
        teacher: A network with the same inputs and scores, which takes floats in its own dtype; it is frozen, and put
            in evaluation mode.

    Returns:
        (model, the keyword arguments of a forward) → a scalar; it raises ``UsageError`` where that gives no scores.
    """
    teacher.requires_grad_(False).eval()

    def loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        own, wanted = model(**batch), _taught(teacher, (), dict(batch))
        z, t = (_scores(given, batch) for given in (own, wanted))
        divergence, mask = _divergence(t, z), predicted_mask(batch).of(z)
        return (divergence if mask is None else divergence[mask.bool()]).mean()

    return loss


def _taught(teacher: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    in_order, by_name = as_held(teacher, (positional, named))
    with torch.no_grad():
        return teacher(*in_order, **by_name)


def _divergence(t: Tensor, z: Tensor) -> Tensor:
    """KL(softmax(t) ‖ softmax(z)) over the last axis."""
    return (t.softmax(-1) * (t.log_softmax(-1) - z.log_softmax(-1))).sum(-1)


def class_axis(scores: Tensor, batch: Any) -> int:
    """The axis of the classes: the last of [batch, tokens, classes], the second of [batch, classes, …].

    Three axes are tokens where the batch is a mapping, as language models take them. In any other batch integers say
    it, token ids or targets, whose shape fits one of both; where they fit both or none, classes are the second axis, as
    for cross entropy.
    """
    shape = scores.shape
    if isinstance(batch, Mapping):
        return -1 if len(shape) == 3 else 1
    shapes = {tensor.shape for tensor in tensors_in(batch) if not tensor.is_floating_point()}
    return -1 if shape[:-1] in shapes and (shape[0], *shape[2:]) not in shapes else 1


def _scores(output: Any, batch: Any) -> Tensor:
    """Float32 [..., classes]."""
    scores = getattr(output, "logits", output)
    if not isinstance(scores, Tensor) or scores.ndim < 2:
        raise UsageError(
            f"Distillation compares scores [rows, classes], and the network gives a {type(output).__name__}."
        )
    scores = scores.movedim(class_axis(scores, batch), -1)
    if scores.shape[-1] == 1:
        raise UsageError(
            "Distillation compares scores of classes, and the network gives one number a row, as a regression does, of "
            "which it would learn nothing; leave it out, or give TrainingTask a loss that compares the numbers."
        )
    return scores.float()


def _counted(loss: Tensor, output: Any, batch: Any) -> Tensor:
    """Which tokens a loss counts the scores of, bool [rows, tokens]: models predict the next token, or this one.

    All, where the loss is made of other tensors than the scores that are given, such as those before a cast.
    """
    scores = getattr(output, "logits", output)
    (gradient,) = torch.autograd.grad(loss, scores, retain_graph=True, materialize_grads=True)
    counted: Tensor = (gradient != 0).any(class_axis(scores, batch))
    return counted if bool(counted.any()) else torch.ones_like(counted)
