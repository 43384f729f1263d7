"""InputEnds: the least and the greatest value of inputs, where their channels are not the columns of the weight."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.inputs import InputObserver
from goldstick.core.ranks import Ranks


class InputEnds(InputObserver):
    """Sees nothing of its inputs but how far they reach: enough for a static range, and for no Hessian.

    Args:
        in_features: Columns of the weight, all of which get the same ends.

    Attributes:
        seen: Whether there was a finite value.
    """

    seen = False

    def share(self, ranks: Ranks) -> None:
        """See :meth:`InputObserver.share`."""
        self._share_ends(ranks)
        self.seen = ranks.any(self.seen)

    def widen(self, x: Tensor) -> None:
        """Count a batch of any shape; values that are not finite are left out."""
        finite = x.detach()[torch.isfinite(x)]
        if len(finite):
            self.seen = True
            for end in finite.double().aminmax():
                self._widen(end.expand(1, self.in_features))
