"""What an algorithm is: where it acts, what it needs to see there, what it decides."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeGuard

from torch import Tensor, nn

from goldstick.algorithms.guide import Guide as Guide
from goldstick.algorithms.stage import DataRequirement as DataRequirement
from goldstick.algorithms.stage import NetworkRun, NetworkStage
from goldstick.algorithms.stage import Stage as Stage
from goldstick.core.edits import Edit
from goldstick.core.inputs import InputObserver
from goldstick.core.mixture import MIXTURES
from goldstick.core.output_groups import OutputGroups
from goldstick.core.scheme import Scheme
from goldstick.core.trainable_wrapper import TrainableWrapper
from goldstick.core.training import TrainingOptions
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Network, Site
from goldstick.structure.targets import Targets, matches, unmatched

GroupSizeMismatch = Literal["error", "smaller", "channel", "skip"]
Unrecognised = Literal["leave", "error"]
Tie = Literal["error", "untie", "keep"]
Unfoldable = Literal["skip", "multiply"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of the layers that read the same inputs, as a smoothing stage sees it.

    Attributes:
        site: The site.
        weight: float [out, in], the canonical matrix, in the dtype it will be stored in.
        scheme: What the layer will become when all stages have acted.
        compensated: Whether the stage that rounds it makes up for the error of each column in those after it.
        weighted: Gives the inputs as parts of its outputs weight them, where the smoothing stage has such an objective;
            it then gives ``None`` for a layer of which that is not known.
    """

    site: Site
    weight: Tensor
    scheme: Scheme
    compensated: bool = False
    weighted: Callable[[], OutputGroups | None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class SmoothScale:
    """What a smoothing stage decided for an input group.

    Attributes:
        scale: s, positive float32 [in]: inputs are to be divided by it, the columns of every member multiplied; or
            ``None`` to leave the group as it is.
        notes: What it found out on the way, for the report.
    """

    scale: Tensor | None
    notes: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Algorithm(Stage):
    """A stage that acts on layers, each for itself or with those that read the same inputs.

    Attributes:
        targets: Which layers.
    """

    smooths: ClassVar[bool] = False  # whether it chooses scales for input groups

    targets: Targets = field(default_factory=Targets)

    @property
    def quantizes(self) -> bool:
        """Whether it turns weights into codes."""
        return False

    @property
    def needs_float_inputs(self) -> bool:
        """Whether it aims at what the float model gives, and so must see that model's inputs beside the layer's own."""
        return False

    @property
    def fractional_zeros(self) -> bool:
        """Whether it may give zeros that are not whole numbers, which some formats cannot hold."""
        return False

    @property
    def float16_ranges(self) -> bool:
        """Whether scales, and the minimums that zeros are made of, are float16 numbers, which GGUF holds exactly."""
        return False

    @property
    def multiplies(self) -> bool:
        """Whether its layers hold a factor for each of their inputs, which some formats cannot."""
        return False

    @property
    def scale_guide(self) -> Guide | None:
        """How it wants inputs weighted that it compares scales by; ``None`` for as they are."""
        return None

    def sites(self, network: Network) -> Sequence[Site]:
        """The targeted sites."""
        return self.targets.select(network)

    def smooth_scale(self, members: Sequence[Member], observer: InputObserver) -> SmoothScale:
        """Which scale moves the difficulty of an input group from where rounding hurts to where it does not.

        Args:
            members: The layers that read the inputs.
            observer: The inputs.

        Raises:
            QuantizationError: The algorithm chooses no scales (``smooths`` is false), or more than 1 % of the inputs
                hold NaN or infinity.
        """
        raise QuantizationError(f"{self.name} chooses no scales for input groups.")


@dataclass(frozen=True, kw_only=True)
class Smoother(Algorithm):
    """An algorithm that chooses scales for input groups.

    Attributes:
        unfoldable: What to do with the inputs of a group where no norm and no linear layer before it can absorb a
            scale: ``skip`` it, or ``multiply`` them in front of each layer. The targeted linear layers then hold a
            factor for each input (1 where none is needed), which only the native format stores.
    """

    smooths: ClassVar[bool] = True

    unfoldable: Unfoldable = "skip"

    @property
    def multiplies(self) -> bool:
        """What ``unfoldable`` says."""
        return self.unfoldable == "multiply"


@dataclass(frozen=True, kw_only=True)
class Quantizer(Algorithm):
    """An algorithm that turns weights into codes.

    Attributes:
        scheme: What the layers become: a name such as ``w4a16-g128``, a full :class:`Scheme`, or a mixture such as
            ``q4_k_m``, which gives each layer a block type of GGUF files.
        targets: Which layers.
        overrides: Patterns with schemes of their own, the last match winning (mixed precision).
        group_size_mismatch: What to do where the group size does not divide a layer's inputs: stop with an ``error``,
            give the layer ``smaller`` groups (the largest of 128, 64, 32 and 16 that divides, one scale per channel
            where none does) or one scale per ``channel``, or ``skip`` it.
        unrecognised: What to do where matrices are of a kind that goldstick does not recognise and no pattern names
            them: ``leave`` them float and say so, or stop with an ``error``.
        tie: What to do with a targeted weight that is tied to another: stop with an ``error``, ``untie`` them and
            quantize only the target, or ``keep`` the tie and quantize both ends as one.
        shares_rows: Whether several ranks may solve a layer together, each its rows (:class:`SharedRows`).
        compensates: Whether the algorithm makes up for the rounding error of a column in those after it, which stages
            that balance before it take into account.
    """

    compensates: ClassVar[bool] = False
    shares_rows: ClassVar[bool] = False
    renamed: ClassVar[Mapping[str, str]] = {"indivisible": "group_size_mismatch"}

    scheme: Scheme | str = "w4a16-g128"
    overrides: dict[str, Scheme | str] = field(default_factory=dict)
    group_size_mismatch: GroupSizeMismatch = "error"
    unrecognised: Unrecognised = "leave"
    tie: Tie = "error"

    def __post_init__(self) -> None:
        for scheme in self.schemes():
            grid = scheme.weight
            if grid.integers and grid.bits == 1 and (grid.symmetric or not self.fractional_zeros):
                raise RecipeError(
                    f"{self.name} cannot make {scheme.label} of a weight: with whole zeros the two levels of a 1-bit "
                    "code are 0 and one other, and nearly every weight would become 0. Use 2 bits or more, or slb "
                    "with w1a16-channel-asym, which has −α and α."
                )

    @property
    def quantizes(self) -> bool:
        """True, but where an option says otherwise."""
        return True

    @abstractmethod
    def attach(self, site: Site) -> Any:
        """What it needs to see at a site, before any data arrive: its state there."""

    @abstractmethod
    def solve(self, site: Site, weight: Tensor, state: Any, scheme: Scheme) -> Sequence[Edit]:
        """What it decides for one site, from the canonical matrix [..., out, in] and what it saw."""

    @property
    def statistics(self) -> tuple[str, ...] | None:
        """What :meth:`solve` asks of an :class:`InputObserver`, by the names of its methods, so that layers can be
        divided over processes; ``None`` where that is not known, and every process solves every layer."""
        return None

    def least_inputs(self, site: Site) -> float:
        """An expert that the router sent fewer inputs is shown every token."""
        return 1

    @property
    def given_importance(self) -> str | None:
        """The file of an importance matrix that it takes in the place of inputs; ``None`` for none."""
        return None

    @property
    def guide(self) -> Guide | None:
        """How it wants inputs weighted that it finds codes by; ``None`` for as they are."""
        return None

    def needs_inputs(self, scheme: Scheme) -> bool:
        """Whether it must see the inputs of a layer that becomes ``scheme``: for its codes, or for its input range."""
        return self.data_requirement is DataRequirement.BLOCKWISE or scheme.static_input

    def sites(self, network: Network) -> Sequence[Site]:
        """The targeted sites; every override pattern must match one of them, and be the last to match one."""
        chosen = super().sites(network)
        for pattern in self.overrides:
            matched = [site for site in chosen if matches(pattern, site.name)]
            if not matched:
                raise unmatched(pattern, chosen, "overrides")
            if pattern not in (last := [self._deciding(site) for site in matched]):
                raise RecipeError(
                    f"The pattern {pattern!r} in overrides would do nothing: the last match wins, and each of its "
                    f"layers is matched by a later one, such as {last[0]!r}. Write {pattern!r} behind it."
                )
        return chosen

    def scheme_for(self, site: Site) -> Scheme:
        """What a site becomes, overrides applied, before divisibility is looked at."""
        last = self._deciding(site)
        return _parse(self.scheme if last is None else self.overrides[last])

    def _deciding(self, site: Site) -> str | None:
        """The last override that matches a site; ``None`` for none."""
        return next((pattern for pattern in reversed(self.overrides) if matches(pattern, site.name)), None)

    def schemes(self) -> tuple[Scheme, ...]:
        """Every scheme the options name."""
        return tuple(_parse(scheme) for scheme in (self.scheme, *self.overrides.values()))


@dataclass(frozen=True, kw_only=True)
class TrainedQuantizer(Quantizer, NetworkStage):
    """An algorithm that turns weights into codes by training the network with stand-ins for its layers.

    Attributes:
        training: How long and how fast to train.
    """

    leaves_codes: ClassVar[bool] = True

    training: TrainingOptions = field(default_factory=TrainingOptions)

    @property
    def data_requirement(self) -> DataRequirement:
        """It trains."""
        return DataRequirement.TRAINING

    def learns(self) -> TrainingOptions:
        """As its options say."""
        return self.training

    def act(self, run: NetworkRun) -> None:
        """Train with stand-ins, and round."""
        run.train_codes(self)

    def attach(self, site: Site) -> None:
        """Nothing: what it learns from is the stand-in of :meth:`relax`."""

    @abstractmethod
    def wrap(self, site: Site, layer: nn.Module, scheme: Scheme) -> TrainableWrapper:
        """What takes the place of the layer that holds a site's weight; the state that ``solve`` gets, when trained."""


def rounds(stage: Stage) -> TypeGuard[Quantizer]:
    """Whether a stage turns weights into codes."""
    return isinstance(stage, Quantizer) and stage.quantizes


def smooths(stage: Stage) -> TypeGuard[Algorithm]:
    """Whether a stage chooses scales for input groups."""
    return isinstance(stage, Algorithm) and stage.smooths


def _parse(scheme: Scheme | str) -> Scheme:
    if not isinstance(scheme, str):
        return scheme
    return Scheme.parse(MIXTURES[scheme].general if scheme in MIXTURES else scheme)
