"""How a network can be rotated without changing what it computes: found, proven, applied."""
