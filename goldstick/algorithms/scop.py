"""SCOP: prune channels that a network wants no more of real data than of their knockoffs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor, nn

from goldstick.algorithms.channel_choice import Choice, Scope, fewest, lowest, to_share
from goldstick.algorithms.stage import DataRequirement, NetworkRun, NetworkStage
from goldstick.core.layout import Layout
from goldstick.core.training import TrainingOptions
from goldstick.errors import RecipeError
from goldstick.structure.network import Network, Site
from goldstick.structure.targets import Targets


@dataclass(frozen=True, kw_only=True)
class SCOP(NetworkStage):
    """Scientific control for reliable pruning (arXiv 2010.10732), which really cuts channels and heads.

    With the network frozen, a gate β for each channel learns, from the loss on real data, to mix what real data and
    what their knockoffs give there. Knockoffs look like the data and say nothing of the classes, so a channel that is
    wanted no more of the data is noise: score |γ|·(β − (1 − β)), γ being the gain of its batch norm or, without one,
    its root mean square. Unless all layers have batch norms, |γ| is divided by its mean over each layer, so that layers
    can be compared. The lowest scores go. Which layers lose channels with it is found by masking them.

    Attributes:
        targets: Layers whose output channels may go; heads go by the name of their value projection.
        rate: Share of the channels that goes; ``None`` where ``parameters`` or ``macs`` say how much.
        parameters: Share of all parameters that may be left, instead of ``rate``.
        macs: Share of the multiplications of one forward that may be left, instead of ``rate``.
        keep: How many channels each layer keeps, path → number, instead of ``rate``; layers not named keep all.
        scope: Whether the same share goes of each ``layer``, or the lowest scores of the network (``global``).
        multiple: What a layer reads of channels that may go stays a multiple of this, or whole, so that the group size
            of a later stage divides it.
        knockoffs: ``shuffle``: another sample of the batch; ``gaussian``: second-order knockoffs of the inputs (arXiv
            1610.02351); ``given``: by the function ``knockoffs`` of the task.
        criterion: ``knockoffs`` is SCOP. Without training: ``taylor``, by how much the loss of the data changes to
            first order without the channel, E[(∂L/∂m)²], m its mask (arXiv 1906.10771); the ``magnitude`` |γ| of the
            batch norm or, without one, the norm of the weights that read the channel; or ``random``.
        training: How long and how fast the gates learn.
        ends: Whether channels of the first layer may go, too.
    """

    name: ClassVar[str] = "scop"
    remedy: ClassVar[str] = "prune before it"
    unforeseen: ClassVar[str] = (
        "Shapes and sizes are those before scop cuts channels. Unless it is told how many each layer keeps, that is "
        "known only when it has scored them."
    )

    targets: Targets = field(default_factory=Targets)
    rate: float | None = 0.45
    parameters: float | None = None
    macs: float | None = None
    keep: Mapping[str, int] = field(default_factory=dict)
    scope: Scope = "layer"
    multiple: int = 1
    knockoffs: Literal["shuffle", "gaussian", "given"] = "shuffle"
    criterion: Literal["knockoffs", "taylor", "magnitude", "random"] = "knockoffs"
    training: TrainingOptions = field(
        default_factory=lambda: TrainingOptions(rate=4e-3, betas=(0.5, 0.9), schedule="constant", norm_batches=0)
    )
    ends: bool = False

    def __post_init__(self) -> None:
        shares = (self.parameters, self.macs)
        given = [value for value in shares if value is not None]
        if len(given) + bool(self.keep) > 1 or (not given and not self.keep and self.rate is None):
            raise RecipeError("scop needs one of rate, parameters, macs and keep.")
        if any(number < 1 for number in self.keep.values()):
            raise RecipeError(f"scop's keep is a number of channels for each layer, 1 or more, not {dict(self.keep)}.")
        if any(not 0 < value <= 1 for value in given) or (self.rate is not None and not 0 <= self.rate < 1):
            raise RecipeError(
                "scop's rate is the share of channels that goes, from 0 to below 1; parameters and macs are shares "
                f"that are left, above 0; not {self.rate}, {self.parameters} and {self.macs}."
            )
        if self.multiple < 1:
            raise RecipeError(f"scop's multiple is a number of channels, 1 or more, not {self.multiple}.")

    @property
    def data_requirement(self) -> DataRequirement:
        """It trains."""
        return DataRequirement.TRAINING

    def learns(self) -> TrainingOptions:
        """As its options say."""
        return self.training

    def act(self, run: NetworkRun) -> None:
        """Score and cut."""
        run.prune(self)

    def sites(self, network: Network) -> Sequence[Site]:
        """The layers whose output channels may go.

        The first layer is spared, unless it lies in a repeated block behind an embedding, which then is the first.

        Raises:
            RecipeError: A pattern matches nothing.
        """
        kinds = (Layout.LINEAR, Layout.TRANSPOSED, Layout.CONVOLUTION)
        first = next((path for path, module in network.model.named_modules() if _multiplies(module)), None)
        behind = any(site.role == "embedding" for site in network.sites[:1]) and bool(network.blocks)
        spared = {first} if not self.ends and not behind else set()
        return [site for site in self.targets.select(network) if site.layout in kinds and site.module not in spared]

    def choose(
        self, scores: Mapping[str, Tensor], left_of: Callable[[Choice], Mapping[str, float]], steps: Mapping[str, int]
    ) -> Choice:
        """Which units go.

        Args:
            scores: Name of a group → scores [units].
            left_of: Units that go → the shares of ``parameters`` and ``macs`` that are left.
            steps: Name of a group → a multiple of so many units stay.
        """
        if self.keep:
            return fewest(scores, self.keep)
        if self.parameters is not None:
            return to_share(scores, self.parameters, self.scope, lambda choice: left_of(choice)["parameters"], steps)
        if self.macs is not None:
            return to_share(scores, self.macs, self.scope, lambda choice: left_of(choice)["macs"], steps)
        assert self.rate is not None  # one of the three is given
        return lowest(scores, self.rate, self.scope, steps)


def _multiplies(module: nn.Module) -> bool:
    """Whether a module is a layer of any kind with a matrix, but for embeddings."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim > 1 and not isinstance(module, nn.Embedding)
