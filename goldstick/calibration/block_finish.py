"""What is done to a block when its layers are solved: validated on batches held out, and its codes searched on."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence

import torch
from torch import Tensor

from goldstick import surgery
from goldstick.calibration.held_out import Passes, Runs, learned_batches, split
from goldstick.calibration.output_metric import OutputMetric
from goldstick.calibration.reconstruction import reconstruct_block
from goldstick.calibration.rounded_inputs import RoundedInputs
from goldstick.calibration.task import Work
from goldstick.calibration.validation import validate_block
from goldstick.core.edits import Fold, Quantize, SetWeight
from goldstick.core.token_mask import TokenMask
from goldstick.structure.network import Network


class BlockFinish:
    """The end of the calibration of one block.

    Args:
        network: The network; the block's weights are in memory.
        work: What to do in the block.
        runs: The block's forward on each batch.
        masks: Which tokens of each batch count.
        gradients: ∂L/∂y of what the float block gives, batch by batch; ``None`` where no loss is known.

    Attributes:
        learned: How many batches of this rank, the first, the layers may be fitted to.
        targets: What the float block gives, batch by batch; when the block is improved.
    """

    def __init__(
        self,
        network: Network,
        work: Work,
        runs: Runs,
        masks: Sequence[TokenMask],
        gradients: Sequence[Tensor] | None = None,
    ) -> None:
        self._network, self._work, self._runs, self._masks = network, work, runs, masks
        self._gradients = gradients
        self._floats: dict[str, tuple[Tensor, torch.device]] = {}  # weight, which rests, and where it is computed with
        self._rounded_inputs = RoundedInputs(network)
        stage = work.validation
        self.learned = len(runs)
        if stage is not None:
            self.learned = learned_batches(work.ranks, len(runs), stage)
        self.targets: list[Tensor] = []

    @property
    def wanted(self) -> bool:
        """Whether there is something to do."""
        return self._work.validation is not None or self._work.reconstruction is not None

    def remember(self, weight: Tensor, edit: Quantize) -> None:
        """Keep the float weight of a layer that was decided, in the processor's memory."""
        if self.wanted:
            self._floats[edit.site] = weight.to("cpu", copy=True), edit.tensor.scale.device

    def absorbed(self, fold: Fold) -> None:
        """Let the float weights that are kept of a layer take what its codes' scales have taken."""
        self._work.absorbed(fold)
        if fold.producer in self._floats:
            weight, device = self._floats[fold.producer]
            self._floats[fold.producer] = fold.divide(weight), device

    def improve(self, edits: MutableMapping[str, Quantize], targets: Iterable[Tensor]) -> None:
        """Do it; the block then holds the weights of ``edits``, which are changed, and rounds inputs as they say.

        Args:
            edits: Site name → what was decided for it.
            targets: What the float block gives, batch by batch.
        """
        work, self.targets = self._work, list(targets)
        self._rounded_inputs.begin(edits.values())
        passes = Passes(
            runs=self._runs, targets=self.targets, masks=self._masks, ranks=work.ranks, metric=self._metric()
        )
        if work.validation is not None:
            _, judge = split(passes, work.validation)
            rounded = {name: self._rounded(name) for name in edits}
            self._take(edits, validate_block(self._network, dict(edits), rounded, judge))
        if work.reconstruction is not None:
            weights = {name: self._float(name) for name in self._floats}
            fixed = {name for name in edits if work.tasks[name].stage.float16_ranges}
            found = reconstruct_block(self._network, dict(edits), weights, work.reconstruction, passes, fixed)
            self._take(edits, found)

    def release(self) -> None:
        """Let layers be given what comes to them: the packed ones round it by themselves."""
        self._rounded_inputs.end()

    def _metric(self) -> OutputMetric | None:
        """How errors of what the block gives count, where learning has an objective beyond it."""
        stage = self._work.reconstruction
        if stage is None or stage.guide is None or self._gradients is None:
            return None
        count = self.learned
        if stage.holdout:
            count = min(count, learned_batches(self._work.ranks, len(self._runs), stage))
        return OutputMetric.of(self._gradients[:count], self._masks[:count], stage.guide.mix, self._work.ranks)

    def _rounded(self, name: str) -> Quantize:
        """Rounding to nearest."""
        return self._work.ranks.of(self._work.rounded(self._work.tasks[name], self._float(name)))

    def _float(self, name: str) -> Tensor:
        """The float weight that stands beside a layer, where that was decided."""
        weight, device = self._floats[name]
        return weight.to(device)

    def _take(self, edits: MutableMapping[str, Quantize], found: dict[str, Quantize]) -> None:
        for name, edit in found.items():
            surgery.apply(self._network, [SetWeight(site=name, weight=edit.tensor.dequantize())])
            edits[name] = edit
            self._work.revise(self._work.tasks[name], self._float(name), edit)
