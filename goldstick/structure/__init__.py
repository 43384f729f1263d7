"""What a network is made of: its sites, its repeated blocks, who shares inputs, what can absorb a scale."""

from goldstick.core.layout import Layout
from goldstick.structure.network import Network, Site

__all__ = ["Layout", "Network", "Site"]
