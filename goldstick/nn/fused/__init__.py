"""Modules that run one-token blocks and layers of one input in few calls."""
