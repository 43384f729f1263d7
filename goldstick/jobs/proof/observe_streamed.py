"""What a checkpoint gives, with one block of it in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from goldstick.algorithms.stage import CacheQuantizer
from goldstick.calibration.passes import PausedPasses
from goldstick.errors import NotRunError
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.example_inputs import Inputs, give_inputs
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.load.importance import with_given_importance
from goldstick.jobs.proof.observation import Observation, Passes, observe, set_buffer_dtypes
from goldstick.recipes import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.run import round_sites, tie_up
from goldstick.structure.calls import called_before
from goldstick.structure.network import Network


class BlockCalledAgainError(NotRunError):
    """A network comes back to a block whose turn was over, and which is no longer in memory."""


def observe_checkpoint(
    directory: Path,
    *,
    attention: str | None = None,
    buffers: Mapping[str, str] | None = None,
    like: Mapping[str, Sequence[int]] | None = None,
    inputs: Inputs | None = None,
    device: torch.device | None = None,
) -> Observation:
    """What a checkpoint that goldstick loads gives on the inputs of a proof.

    Args:
        directory: The checkpoint.
        attention: Implementation of attention to use; kernels differ in the last bits.
        buffers: Dtypes of the buffers that no checkpoint holds; see :func:`set_buffer_dtypes`.
        like: Shapes of the inputs, where those of an earlier proof are wanted.
        inputs: The inputs, where they were given for it, and it does not carry them.
        device: Where it runs; the CPU where ``None``.
    """

    def streamed() -> StreamedModel:
        found = StreamedModel(directory, device=device)
        give_inputs(found.model, inputs)
        model: Any = found.model
        # Asked for what it has, a model still refuses it for a backbone that has no attention.
        if attention and hasattr(model, "set_attn_implementation") and model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)
        set_buffer_dtypes(model, buffers or {})
        return found

    return _block_by_block(streamed, lambda found: _observe(found, directory, lambda block: None, like))


def observe_rounded(
    source: Path, recipe: Recipe, inputs: Inputs | None = None, device: torch.device | None = None
) -> Observation:
    """What the float model in ``source`` gives after a recipe whose stages need no data, never built as a whole."""

    def streamed() -> StreamedModel:
        found = StreamedModel(source, dequantized=True, device=device)
        give_inputs(found.model, inputs)
        return found

    return _block_by_block(streamed, lambda found: _rounded(found, source, recipe))


def _block_by_block(
    make: Callable[[], StreamedModel], observe_it: Callable[[StreamedModel], Observation]
) -> Observation:
    """An observation with one block in memory at a time, or with all of them where the network comes back to one."""
    try:
        return observe_it(make())
    except BlockCalledAgainError:
        whole = make()
        whole.keeps_blocks = True
        return observe_it(whole)


def _rounded(streamed: StreamedModel, source: Path, recipe: Recipe) -> Observation:
    network = Network(streamed.model)
    resolution = with_given_importance(resolve(recipe.stages, network), network)

    def quantize(block: str | None) -> None:
        sites = resolution.assignments.values()
        round_sites(network, [one for one in sites if streamed.read_with(one.site.block) == block])

    quantize(None)
    tie_up(network, resolution)
    for stage in resolution.of(CacheQuantizer):
        use_quantized_cache(network.model, stage.solve({}))
    return _observe(streamed, source, quantize)


def _observe(
    streamed: StreamedModel,
    directory: Path,
    prepare: Callable[[str], None],
    like: Mapping[str, Sequence[int]] | None = None,
) -> Observation:
    """Run the forward passes of an observation together, so that each block is read once for all of them."""

    over: set[nn.Module] = set()

    def refuse_what_is_over(block: nn.Module, *_: Any) -> None:
        if block in over:
            raise BlockCalledAgainError(f"A {type(block).__name__} is called again after others.")

    def run(passes: Passes) -> list[Any]:
        blocks = [streamed.model.get_submodule(block) for block in streamed.blocks]
        paused = PausedPasses(passes, [[block] for block in blocks])
        with called_before(blocks, refuse_what_is_over):
            for number in paused.groups():
                if streamed.entered and not streamed.keeps_blocks:
                    over.add(streamed.model.get_submodule(streamed.entered))
                streamed.enter(streamed.blocks[number])
                prepare(streamed.blocks[number])
        return list(paused.outputs())

    try:
        return observe(streamed.model, directory, run, like)
    except NotRunError:
        if streamed.entered or not streamed.blocks:
            raise
    for block in streamed.blocks:  # the model reaches into its blocks without calling them: their turn cannot be seen
        streamed.load(block)
        prepare(block)
    return observe(streamed.model, directory, like=like)
