"""What a checkpoint gives, with one block of it in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from goldstick.calibration.passes import PausedPasses
from goldstick.errors import NotRunError
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.example_inputs import Inputs, give_inputs
from goldstick.hf.streaming import StreamedModel
from goldstick.jobs.proof.observation import Observation, Passes, observe, set_buffer_dtypes
from goldstick.recipes import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.run import round_sites, tie_up
from goldstick.structure.network import Network


def observe_checkpoint(
    directory: Path,
    *,
    attention: str | None = None,
    buffers: Mapping[str, str] | None = None,
    like: Mapping[str, Sequence[int]] | None = None,
    inputs: Inputs | None = None,
) -> Observation:
    """What a checkpoint that goldstick loads gives on the inputs of a proof.

    Args:
        directory: The checkpoint.
        attention: Implementation of attention to use; kernels differ in the last bits.
        buffers: Dtypes of the buffers that no checkpoint holds; see :func:`set_buffer_dtypes`.
        like: Shapes of the inputs, where those of an earlier proof are wanted.
        inputs: The inputs, where they were given for it, and it does not carry them.
    """
    streamed = StreamedModel(directory)
    give_inputs(streamed.model, inputs)
    model: Any = streamed.model
    # Asked for what it has, a model still refuses it for a backbone that has no attention.
    if attention and hasattr(model, "set_attn_implementation") and model.config._attn_implementation != attention:
        model.set_attn_implementation(attention)
    set_buffer_dtypes(model, buffers or {})
    return _observe(streamed, directory, lambda block: None, like)


def observe_rounded(source: Path, recipe: Recipe, inputs: Inputs | None = None) -> Observation:
    """What the float model in ``source`` gives after a recipe whose stages need no data, never built as a whole."""
    streamed = StreamedModel(source)
    give_inputs(streamed.model, inputs)
    network = Network(streamed.model)
    resolution = resolve(recipe.stages, network)

    def quantize(block: str | None) -> None:
        sites = resolution.assignments.values()
        round_sites(network, [one for one in sites if streamed.read_with(one.site.block) == block])

    quantize(None)
    tie_up(network, resolution)
    if resolution.kv is not None:
        use_quantized_cache(network.model, resolution.kv.solve({}))
    return _observe(streamed, source, quantize)


def _observe(
    streamed: StreamedModel,
    directory: Path,
    prepare: Callable[[str], None],
    like: Mapping[str, Sequence[int]] | None = None,
) -> Observation:
    """Run the forward passes of an observation together, so that each block is read once for all of them."""

    def run(passes: Passes) -> list[Any]:
        paused = PausedPasses(passes, [[streamed.model.get_submodule(block)] for block in streamed.blocks])
        for number in paused.groups():
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
