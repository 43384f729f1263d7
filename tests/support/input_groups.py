"""Input groups to smooth: layers that read the same correlated inputs, of which some channels are far larger."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from goldstick.algorithms import Member
from goldstick.core.inputs import InputObserver
from goldstick.core.layout import Layout
from goldstick.core.scheme import Scheme
from goldstick.structure.network import Network, Site


def inputs(tokens: int = 600, features: int = 64, outliers: Sequence[int] = (5, 40), factor: float = 30.0) -> Tensor:
    """Inputs that a few directions explain, a few channels ``factor`` times the others; float32."""
    x = torch.randn(tokens, features // 4) @ torch.randn(features // 4, features) / features**0.5
    x += 0.3 * torch.randn(tokens, features)
    x[:, list(outliers)] *= factor
    return x


def observed(x: Tensor) -> InputObserver:
    observer = InputObserver(x.shape[-1])
    for batch in x.split(97):
        observer.observe(batch)
    return observer


def members(
    scheme: str, features: int = 64, outs: Sequence[int] = (48, 16, 16), dtype: torch.dtype = torch.float32
) -> list[Member]:
    """Layers such as q, k and v."""
    network = Network(torch.nn.Sequential(*(torch.nn.Linear(features, out) for out in outs)))
    return [
        Member(site=site, weight=torch.randn(out, features).to(dtype) / features**0.5, scheme=Scheme.parse(scheme))
        for site, out in zip(network.sites, outs, strict=True)
    ]


def experts_site() -> Site:
    """Three experts of eight outputs in one parameter, [3, 8, 64]."""
    return Site(
        module="experts",
        parameter="gate_up_proj",
        layout=Layout.EXPERTS,
        shape=torch.Size((3, 8, 64)),
        dtype=torch.float32,
        role="inner",
        block=None,
        tied_to=None,
    )
