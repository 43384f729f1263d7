"""What a stage is: where it stands in a recipe, what it acts on, how it meets data; and the kinds of stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from torch import nn

from goldstick.core.edits import Edit, Rotate
from goldstick.core.kv_cache import KVRanges, KVScheme, KVSettings
from goldstick.core.training import TrainingOptions
from goldstick.structure.network import Network, Site
from goldstick.structure.rotation.plan import RotationPlan

if TYPE_CHECKING:
    from goldstick.algorithms.base import TrainedQuantizer
    from goldstick.algorithms.scop import SCOP


class DataRequirement(StrEnum):
    """How an algorithm meets data."""

    NONE = "none"  # decides from the weights alone
    BLOCKWISE = "blockwise"  # observes inputs, block by block
    TRAINING = "training"  # trains stand-ins with a loss


class Place(IntEnum):
    """Where a stage stands in a recipe."""

    FIRST = 0  # before all others
    FLOAT = 1  # behind those that come first, before all others: it changes weights and no output
    NETWORK = 2  # before what decides on layers: it changes the float network
    LAYERS = 3  # among those that decide on layers
    LAST = 4  # behind all that decide on layers
    END = 5  # behind all others
    ANYWHERE = 6  # it changes no weight


@dataclass(frozen=True, kw_only=True)
class Stage(ABC):
    """One stage of a recipe: something that decides how a network changes.

    A frozen dataclass: its fields are its options, its YAML block is its constructor call. It decides and never
    touches the model. What carries recipes out asks for the kind, one of the classes derived from this, and never for
    an algorithm.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: ClassVar[str]
    #: Names that options had before → those they have.
    renamed: ClassVar[Mapping[str, str]] = {}
    place: ClassVar[Place] = Place.LAYERS
    #: Whether a recipe has one such stage at most.
    once: ClassVar[bool] = False
    #: Whether stages that train the network may come after it.
    before_training: ClassVar[bool] = False
    #: What a plan cannot know before the stage has acted, as a warning.
    unforeseen: ClassVar[str] = ""

    @property
    @abstractmethod
    def data_requirement(self) -> DataRequirement:
        """How it meets data, with the options it was given."""

    @property
    def trains(self) -> bool:
        """Whether it trains the network."""
        return self.data_requirement is DataRequirement.TRAINING

    def passes(self, batches: int) -> float:
        """How much it multiplies, to forecast its time: in forward passes of the calibration data through the network.

        A pass back takes two, and statistics of the inputs of all layers about one.

        Args:
            batches: In how many batches the data come.
        """
        return 1.0 if self.data_requirement is DataRequirement.BLOCKWISE else 0.0

    def sites(self, network: Network) -> Sequence[Site]:
        """The sites that it is meant for; none for a stage that acts on the network as a whole.

        Raises:
            RecipeError: A pattern matches nothing.
        """
        return ()

    def spared(self, network: Network) -> Mapping[str, str]:
        """Parameters that it leaves alone though its targets may name them: name → the reason."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Rewriter(Stage):
    """A stage that rewrites a network in memory before all else; its outputs stay as they were, which is proven."""

    once: ClassVar[bool] = True
    place: ClassVar[Place] = Place.FLOAT
    #: Why it has nothing to do in a network, with a place for its class.
    nothing: ClassVar[str] = "There is nothing to do in this {}"

    @property
    def data_requirement(self) -> DataRequirement:
        """It runs the network on a batch, to see what follows what."""
        return DataRequirement.BLOCKWISE

    @abstractmethod
    def find(self, model: nn.Module, inputs: Mapping[str, Any]) -> Sequence[Edit]:
        """The edits; ``inputs`` are some keyword arguments of the model's forward."""


@dataclass(frozen=True, kw_only=True)
class Rotation(Stage):
    """A stage that turns the float network, of which one block at a time may be in memory, and leaves its outputs.

    Attributes:
        seed: Seed of what is random in it.
    """

    once: ClassVar[bool] = True
    place: ClassVar[Place] = Place.FLOAT
    before_training: ClassVar[bool] = True

    seed: int = 0

    @property
    def data_requirement(self) -> DataRequirement:
        """It looks at no data."""
        return DataRequirement.NONE

    @abstractmethod
    def find(self, network: Network, inputs: Mapping[str, Any]) -> RotationPlan:
        """What is to be turned in ``network``, proven; ``inputs`` are some keyword arguments of its forward.

        Raises:
            StructureError: The model cannot be rotated; the message says why.
        """

    @abstractmethod
    def edits(self, plan: RotationPlan) -> Iterable[Rotate]:
        """The edits: first what lies outside the blocks, then block after block."""


class NetworkRun(Protocol):
    """What a stage that acts on the float network as a whole is given: the network, and what can be done to it."""

    @property
    def network(self) -> Network:
        """The network as it is now, in memory; to be looked at."""

    def apply(self, edits: Sequence[Edit]) -> None:
        """Let the surgeon change the network."""

    def train(self) -> None:
        """Train it as the stage's :meth:`NetworkStage.learns` says, on the recipe's data or the user's task."""

    def train_codes(self, stage: TrainedQuantizer) -> None:
        """Train it with stand-ins for the layers that the stage quantizes, and round these."""

    def prune(self, stage: SCOP) -> None:
        """Score its channels and cut some; what the recipe's other stages mean is then resolved anew."""


@dataclass(frozen=True, kw_only=True)
class NetworkStage(Stage):
    """A stage that changes the float network as a whole, in memory, before any layer is rounded by others."""

    place: ClassVar[Place] = Place.NETWORK
    before_training: ClassVar[bool] = True
    #: Whether it leaves layers quantized, after which no other stage may change the float network.
    leaves_codes: ClassVar[bool] = False
    #: What to do where it stands behind a stage that has left codes.
    remedy: ClassVar[str] = "put it before that"

    def learns(self) -> TrainingOptions | None:
        """How it trains; ``None`` where it does not."""
        return None

    @abstractmethod
    def act(self, run: NetworkRun) -> None:
        """Do it."""


@dataclass(frozen=True, kw_only=True)
class BiasCorrector(Stage):
    """A stage whose sites get a bias that makes up for what rounding adds to their output on average."""

    @property
    def data_requirement(self) -> DataRequirement:
        """It looks at outputs, block by block."""
        return DataRequirement.BLOCKWISE


@dataclass(frozen=True, kw_only=True)
class CacheQuantizer(Stage):
    """A stage that decides how keys and values are stored; it changes no weight."""

    once: ClassVar[bool] = True
    place: ClassVar[Place] = Place.ANYWHERE
    before_training: ClassVar[bool] = True

    @property
    @abstractmethod
    def scheme(self) -> KVScheme:
        """How keys and values will be stored."""

    @abstractmethod
    def solve(self, ranges: Mapping[int, KVRanges]) -> KVSettings:
        """The settings of the cache from what each layer's keys and values reached; of layer → its ranges."""


AnyStage = TypeVar("AnyStage", bound=Stage)


def of_kind(stages: Sequence[Stage], kind: type[AnyStage]) -> tuple[AnyStage, ...]:
    """The stages of a kind, in their order."""
    return tuple(stage for stage in stages if isinstance(stage, kind))
