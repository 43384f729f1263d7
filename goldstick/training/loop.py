"""The loop: a loss, an optimizer, a schedule, epochs; annealing of stand-ins; validation, checkpoints, early stop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from goldstick.core.progress import Progress, quiet
from goldstick.core.trainable_wrapper import Trainable
from goldstick.core.training import TrainingOptions
from goldstick.errors import TrainingError, UsageError
from goldstick.training.checkpoint import TrainingState, digest_of, load_state, save_state
from goldstick.training.norms import measure_norms
from goldstick.training.parallel import Workers
from goldstick.training.task import TrainingTask, on_device


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What a training did.

    Attributes:
        steps: Optimizer steps taken.
        losses: Mean training loss of each epoch.
        scores: What the validation gave after each epoch.
        kept_epoch: The epoch whose weights were kept, counted from 1; 0 where the caller trained.
    """

    steps: int = 0
    losses: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    kept_epoch: int = 0


def train(
    model: nn.Module,
    task: TrainingTask,
    options: TrainingOptions,
    *,
    description: str = "training",
    progress: Progress = quiet,
    evaluating: bool = False,
) -> TrainingRecord:
    """Train a network in place, and every :class:`Trainable` in it.

    Every parameter that requires a gradient learns. With equal arguments the result is the same, bit for bit, whether
    the training was stopped and went on or not (on a processor, with one number of threads). Torch's generator is
    left as it was, and so is the network's mode. Where torchrun started several processes, each takes its rows of every
    batch, and the loss is meant to be a mean over rows; all end with the same network.

    Args:
        model: The network.
        task: Its data and loss.
        options: How to learn.
        description: What ``progress`` is told, and the name of the checkpoint.
        progress: Told the steps.
        evaluating: Whether it learns in evaluation mode: nothing is dropped, and batch norms keep their statistics.

    Raises:
        TrainingError: The loss is not finite, or in the end what was learned is not; there is nothing to train or to
            train with; the checkpoint is of another training.
        UsageError: The batches cannot be counted or iterated again, or there is patience without a validation.
        OutputError: A checkpoint cannot be written.
    """
    trainables = [module for module in model.modules() if isinstance(module, Trainable)]
    was_training = model.training

    def anneal(share: float) -> None:
        for one in trainables:
            one.anneal(share)

    if options.patience is not None and task.validate is None:
        raise UsageError(
            "training.patience waits for a better validation, and there is none: give validate= to the task."
        )
    with seeded(options.seed, model), torch.enable_grad():
        if task.train is not None:
            model.train()
            task.train(model, anneal)
            record = TrainingRecord()
        else:
            run = _Run(model, task, options, trainables, description, evaluating)
            record = run.to_the_end(anneal, progress)
        _check_finite(model, description)
        anneal(1.0)
        _measure(model, task, options)
    model.train(was_training)
    return record


@contextmanager
def seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Torch's generators seeded inside, and as they were outside."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(device.index or 0 for device in devices)):
        torch.manual_seed(seed)
        yield


class _Run:
    """One training from its first or a later epoch to its end."""

    def __init__(
        self,
        model: nn.Module,
        task: TrainingTask,
        options: TrainingOptions,
        trainables: Sequence[Trainable],
        description: str,
        evaluating: bool,
    ) -> None:
        self.model, self.task, self.options = model, task, options
        self.training_mode = not evaluating
        self.device = next(model.parameters()).device
        self.workers = Workers.of(model)
        self.optimizer = make_optimizer(model, options, trainables)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.description = description
        self.path = None if task.directory is None else Path(task.directory) / f"{description}.pt"
        self.state = TrainingState()
        self.identity = "" if self.path is None else self._identity()
        if self.path is not None and self.workers.of_the_first(self.path.exists()):
            self.state = load_state(self.path, self.identity, model, self.optimizer)

    def _identity(self) -> str:
        """A digest of what is trained, from where, and how; another one means another training."""
        told = (self.description, self.task.identity, self.options, digest_of(self.model))
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def to_the_end(self, anneal: Callable[[float], None], progress: Progress) -> TrainingRecord:
        """Train epoch after epoch."""
        state = self.state
        while not state.stopped:
            state.losses.append(self._epoch(self.task.epoch(state.epoch), anneal, progress))
            state.epoch += 1
            if self.options.steps is not None:
                state.stopped = state.step >= self.options.steps
            else:
                state.stopped = state.epoch >= self.options.epochs
            self.workers.average_buffers(self.model)
            if self.task.validate is not None:
                self._validate(state)
            if self.path is not None and self.workers.writes:
                save_state(self.path, self.identity, state, self.model, self.optimizer)
        kept = state.epoch
        if state.best is not None:
            self.model.load_state_dict(state.best)
            kept = 1 + state.scores.index(max(state.scores))
        return TrainingRecord(steps=state.step, losses=tuple(state.losses), scores=tuple(state.scores), kept_epoch=kept)

    def _placed(self, batches: Any) -> Iterator[tuple[Any, int, int]]:
        """An epoch's batches, or as many as are left of the steps, each with its place in the training: (done, total).

        Of epochs that may differ in length, a place is what it would be if all were as long as this one.
        """
        state, steps = self.state, self.options.steps
        if steps is not None:
            for batch in batches:
                if state.step >= steps:
                    return
                yield batch, state.step, steps
            return
        try:
            length = max(1, len(batches))
        except TypeError as error:
            raise UsageError(
                "The batches of an epoch have no length, so epochs cannot be told in steps; set training.steps, or "
                "give batches that have a len()."
            ) from error
        for index, batch in enumerate(batches):
            yield batch, state.epoch * length + min(index, length - 1), self.options.epochs * length

    def _epoch(self, batches: Any, anneal: Callable[[float], None], progress: Progress) -> float:
        """One pass over the data, or what is left of the steps; the mean of its losses."""
        state, model = self.state, self.model
        losses: list[float] = []
        learning = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        model.train(self.training_mode)
        for batch, done, total in self._placed(batches):
            share = done / total
            anneal(share)
            for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
                group["lr"] = peak * self.options.factor(share)
            self.optimizer.zero_grad()
            rows, part = self.workers.rows_of(batch)
            with self._precision():
                loss = self.task.scalar_loss(model, on_device(rows, self.device))
            value = self.workers.total(loss.item() * part)
            if not math.isfinite(value):
                raise TrainingError(
                    f"The loss is {value} in step {state.step + 1} of {self.description}: the training diverged. Lower "
                    "training.rate, or look for NaN in the data and for batches without a target, all labels -100."
                )
            loss.backward()  # type: ignore[no-untyped-call]
            self.workers.add_gradients(learning, part)
            self.optimizer.step()
            self.workers.draw_alike()
            losses.append(value)
            state.step += 1
            progress(self.description, done + 1, total)
        if not losses:
            raise TrainingError("An epoch holds no batch, so there is nothing to train with.")
        return math.fsum(losses) / len(losses)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.options.precision == "float32":
            return nullcontext()  # what the caller may have set around it stays
        return torch.autocast(self.device.type, torch.bfloat16)

    def _validate(self, state: TrainingState) -> None:
        assert self.task.validate is not None
        with seeded(self.options.seed, self.model):  # so that what it draws changes nothing of what follows
            _measure(self.model, self.task, self.options)
            with torch.no_grad():
                score = self.workers.of_the_first(float(self.task.validate(self.model)))
        if math.isnan(score):
            raise TrainingError(f"The validation after epoch {state.epoch} gave NaN.")
        if not state.scores or score > max(state.scores):
            state.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        state.scores.append(score)
        since_best = len(state.scores) - 1 - state.scores.index(max(state.scores))
        if self.options.patience is not None and since_best >= self.options.patience:
            state.stopped = True


def make_optimizer(
    model: nn.Module, options: TrainingOptions, trainables: Sequence[Trainable] = ()
) -> torch.optim.Optimizer:
    """The optimizer of every parameter that requires a gradient; trainables' own parameters at their own rates.

    Raises:
        TrainingError: There is no such parameter.
    """
    own = [group for one in trainables for group in one.groups()]
    taken = {id(parameter) for group in own for parameter in group.parameters}
    others = [one for one in model.parameters() if one.requires_grad and id(one) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [one for one in others if one.ndim > 1], "lr": options.rate, "weight_decay": options.weight_decay},
        {"params": [one for one in others if one.ndim <= 1], "lr": options.rate, "weight_decay": 0.0},
        *({"params": list(group.parameters), "lr": group.rate, "weight_decay": 0.0} for group in own),
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise TrainingError("No parameter of the network requires a gradient, so there is nothing to train.")
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.rate, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=options.rate, betas=options.betas)


def _check_finite(model: nn.Module, description: str) -> None:
    """The loss of the next step would tell that a step went wrong, and behind the last there is none."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not bool(parameter.detach().isfinite().all()):
            raise TrainingError(
                f"{name} holds NaN or infinity at the end of {description}: the training diverged in its last step. "
                "Lower training.rate, or look for NaN in the data."
            )


def _measure(model: nn.Module, task: TrainingTask, options: TrainingOptions) -> None:
    if options.norm_batches:
        with seeded(options.seed, model):
            measure_norms(model, task.epoch(0), options.norm_batches, task.loss)
    model.eval()
