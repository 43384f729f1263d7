"""Graph: a whole network as one file of operators, for runtimes that know nothing of PyTorch.

A storage format says how weights lie in a checkpoint that some program has the network for. A graph format holds the
network as well. What a quantized layer becomes in it is a pure function here; who traces networks lies in
``jobs/export``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class GraphLayer:
    """A quantized layer of a network that is traced.

    Attributes:
        name: Its path in the network.
        kind: What it does with its weight.
        tensor: Its codes [out, in], or of a convolution [out, in / groups · the kernel's places].
        scheme: What it became.
        bias: float [out], or ``None``.
        input_scale: Scale of a static input, [1].
        input_zero: Its zero among the signed codes, int8 [1].
        input_multiplier: What its input is multiplied by, [in].
        kernel: Shape of a convolution's weight, [out, in / groups, *kernel]; empty for linear layers.
        sizes: ``strides``, ``pads``, ``dilations`` and ``group`` of a convolution.
    """

    name: str
    kind: Literal["linear", "convolution"]
    tensor: QuantizedTensor
    scheme: Scheme
    bias: Tensor | None = None
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None
    input_multiplier: Tensor | None = None
    kernel: tuple[int, ...] = ()
    sizes: Mapping[str, Any] | None = None


#: Runs a network: inputs by name → outputs in their order.
Session = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


class GraphFormat(ABC):
    """Files of operators.

    Attributes:
        name: Its name on the command line.
        file: The file of a network.
        packages: What has to be installed to write it and to try what was written.
        version: Of the operators that a network is traced into.
    """

    name: str
    version: int
    file: str
    packages: tuple[str, ...]

    @abstractmethod
    def refuses(self, layer: GraphLayer) -> str | None:
        """Why it cannot hold a layer, and what would do; ``None`` where it can."""

    @abstractmethod
    def write(self, traced: Any, layers: Sequence[GraphLayer], path: Path) -> Mapping[str, int]:
        """Write a network.

        Args:
            traced: What ``torch.onnx.export`` made, with a node of the domain ``goldstick`` in the place of each layer.
            layers: The layers, by the ``index`` of their nodes.
            path: The file.

        Returns:
            How many operators of each kind quantized layers became.
        """

    @abstractmethod
    def session(self, path: Path) -> Session:
        """The network of a file, to be run."""
