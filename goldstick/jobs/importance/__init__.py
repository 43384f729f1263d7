"""Importance: how large the inputs of the float model's layers are, as an importance matrix."""
