"""What matters to the end: gradients of the float model's own loss at every block, by one reverse sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import BlockCall, run_around
from goldstick.calibration.predictions import signs, slopes
from goldstick.calibration.spilled import Spilled
from goldstick.calibration.wrong_batch import naming_batch
from goldstick.core.disk_space import require_temporary_space
from goldstick.core.powers_of_two import power_of_two
from goldstick.core.ranks import Ranks
from goldstick.core.token_mask import TokenMask, predicted_mask
from goldstick.errors import QuantizationError, StructureError

_SEED = 0
_LARGEST_EXPONENT = 60


class FloatBlocks(Protocol):
    """How a float block comes into memory, and goes."""

    def load(self, block: str) -> nn.Module:
        """The block."""

    def release(self, block: str) -> None:
        """It is not needed for now."""


class InMemory:
    """The blocks of a model that is in memory.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def load(self, block: str) -> nn.Module:
        """See :class:`FloatBlocks`."""
        return self._model.get_submodule(block)

    def release(self, block: str) -> None:
        """See :class:`FloatBlocks`."""


def end_gradients(
    model: nn.Module,
    blocks: Sequence[str],
    batches: Sequence[Mapping[str, Any]],
    states: Sequence[Tensor],
    calls: Sequence[Mapping[str, BlockCall]],
    floats: FloatBlocks,
    first: int = 0,
    done: int = 0,
) -> dict[str, Sequence[Tensor]]:
    """∂L/∂y at the output y of every block, for every batch: float of the hidden states' shape and dtype, on disk.

    At what the model predicts the gradient is that of a random loss (:func:`slopes`). One sweep forward leaves what
    each block is given on disk; one backward takes a block at a time with its gradients. What padding predicts has no
    part in it.

    Args:
        model: The float model; what lies around its blocks is in memory.
        blocks: Its blocks, which feed one another.
        batches: Keyword arguments of its forward.
        states: What the first block is given, batch by batch.
        calls: Every block's other arguments, batch by batch.
        floats: Loads its blocks.
        first: Number of the first batch, where others are seen elsewhere.
        done: How many blocks are finished; their gradients are not found.

    Raises:
        StructureError: Nothing that the model gives depends on its blocks, as far as gradients can tell.
        QuantizationError: A gradient is NaN or infinite; the message names the block.
        OutputError: There is no room for what blocks are given and for their gradients.
    """
    if done == len(blocks):
        return {}
    nbytes = (len(blocks) - done + 1) * sum(state.nbytes for state in states)  # these make room for the gradients
    require_temporary_space(nbytes, "'objective: loss', which --effort best takes,")
    given: dict[str, Sequence[Tensor]] = {}
    here: Sequence[Tensor] = states
    for number, block in enumerate(blocks):
        if number > done:
            given[block] = here
        module = floats.load(block)
        with torch.no_grad():
            here = Spilled(
                _given(block, module, calls[index][block], here[index], batch, first + index)
                for index, batch in enumerate(batches)
            )
        floats.release(block)
    found: dict[str, Sequence[Tensor]] = {}
    ahead: Sequence[Tensor] = Spilled(
        _of_the_loss(model, blocks, batch, here[index], calls[index][blocks[0]], first + index)
        for index, batch in enumerate(batches)
    )
    del here
    for block in reversed(blocks):
        _require_finite(ahead, block, first)
        found[block] = ahead
        if block == blocks[done]:
            break
        module = floats.load(block)
        ahead = Spilled(
            _through(module, calls[index][block], given[block][index], ahead[index]) for index in range(len(batches))
        )
        del given[block]
        floats.release(block)
    return found


def _given(
    block: str, module: nn.Module, call: BlockCall, hidden: Tensor, batch: Mapping[str, Any], index: int
) -> Tensor:
    """What a block gives."""
    with naming_batch(batch, index + 1, block):
        return call.run(module, hidden)


def _of_the_loss(
    model: nn.Module, blocks: Sequence[str], batch: Mapping[str, Any], final: Tensor, call: BlockCall, index: int
) -> Tensor:
    """∂L/∂y of the last block's output."""
    with torch.enable_grad():
        leaf = final.detach().clone().requires_grad_()
        output = run_around(model, blocks, leaf, call.rest, lambda: model(**batch))
        pairs = slopes(output, predicted_mask(batch), _chance(index))
        if not pairs:
            raise StructureError(
                "'objective: loss' weights errors by the gradient at what the model gives, and nothing that this "
                f"{type(model).__name__} gives has one behind its blocks; take 'objective: output', or an effort "
                "below best, which asks for none."
            )
        ends, directions = zip(*pairs, strict=True)
        (gradient,) = torch.autograd.grad(ends, leaf, directions)
    return gradient


def _through(module: nn.Module, call: BlockCall, given: Tensor, ahead: Tensor) -> Tensor:
    """∂L/∂x of what a block is given, from that of what it gives."""
    with torch.enable_grad():
        leaf = given.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call.run(module, leaf), leaf, ahead)
    return gradient


def _require_finite(gradients: Sequence[Tensor], block: str, first: int) -> None:
    for index, gradient in enumerate(gradients, start=first):
        if not bool(torch.isfinite(gradient.float().sum())):
            raise QuantizationError(
                f"The gradient of the float model's loss at the output of {block} is NaN or infinite in batch {index}; "
                "load the model in bfloat16 or float32, or take 'objective: layer'."
            )


def output_gradients(
    layers: Mapping[str, nn.Module],
    run: Callable[[], Tensor],
    ahead: Tensor | None,
    mask: TokenMask | None = None,
    number: int = 0,
) -> dict[str, Tensor]:
    """∂L/∂o at the outputs of layers.

    Args:
        layers: Site name → the float layer, which is called once in a run.
        run: The float block's forward on a batch.
        ahead: ∂L/∂y of what it gives. ``None`` for ±1 by chance, with which the mean square of a gradient is on average
            that of (∂y/∂o): all that the block gives counts alike.
        mask: Which of its tokens count, where ``ahead`` does not say so.
        number: Number of the batch, from which chance is drawn.

    Returns:
        Site name → float32 in the shape of the layer's output. Layers that the run did not reach, or reached more than
        once, are left out, and all where what it gives has no gradient.
    """
    probes: dict[str, list[Tensor]] = {name: [] for name in layers}

    def hook(name: str) -> Callable[..., Tensor]:
        def probe(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            zero = torch.zeros_like(output, requires_grad=True)
            probes[name].append(zero)
            return output + zero

        return probe

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            output = run()
            single = {name: found[0] for name, found in probes.items() if len(found) == 1}
            if not single or not output.requires_grad:
                return {}
            if ahead is None:
                ahead = signs(output, _chance(number))
                if mask is not None and (counts := mask.of(output)) is not None:
                    ahead = ahead * counts.to(ahead).unsqueeze(-1)
            gradients: Sequence[Tensor | None] = torch.autograd.grad(
                output, list(single.values()), ahead, allow_unused=True
            )
    finally:
        for handle in handles:
            handle.remove()
    found = zip(single, gradients, strict=True)
    return {name: gradient.float() for name, gradient in found if gradient is not None}


def _chance(number: int) -> torch.Generator:
    """Where a batch draws from."""
    return torch.Generator().manual_seed(_SEED + number)


def output_weights(gradient: Tensor, groups: int) -> Tensor:
    """How much the error of each token counts at a layer's outputs: a_k(t) = mean_{j∈k} (∂L/∂o_tj)².

    GuidedQuant (arXiv 2505.07004), with k of ``groups`` contiguous parts of the outputs, or as many as there are.

    Args:
        gradient: float32 [..., out].
        groups: How many parts.

    Returns:
        float32 [..., parts].
    """
    squares = gradient.square()
    return torch.stack([part.mean(-1) for part in squares.tensor_split(min(groups, squares.shape[-1]), dim=-1)], dim=-1)


def relative_weights(
    weights: Sequence[Tensor], share: float, ranks: Ranks | None = None
) -> tuple[list[Tensor], list[float]]:
    """Roots of weights (1 − share) · a / mean(a) + share, by which inputs are multiplied, and mean(a) of each part.

    The mean is over all tokens of all batches, and taken as the power of two below it, so that its last bits mean
    nothing. Where a part is solved alone, only the damping sees such a factor.

    Args:
        weights: a, float32 [..., parts], batch by batch.
        share: How much of the plain Hessian is mixed in, against weights of few tokens.
        ranks: Who has further batches.

    Returns:
        The roots, float32 of the weights' shapes, and the means.
    """
    own = [(weight[..., 0].numel(), weight.double().flatten(0, -2).sum(0)) for weight in weights]
    sums = [one for each in (ranks or Ranks()).gather(own) for one in each]
    count = sum(numbers for numbers, _ in sums)
    total = torch.stack([part for _, part in sums]).sum(0)
    mean = (total / max(count, 1)).clamp(min=2.0**-_LARGEST_EXPONENT)
    exponent = torch.frexp(mean).exponent.long() - 1
    unit = power_of_two(-exponent).float()
    roots = [((1 - share) * weight * unit + share).sqrt_() for weight in weights]
    return roots, power_of_two(exponent).tolist()
