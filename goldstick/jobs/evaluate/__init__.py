"""Checkpoints measured on tasks, with results kept and compared."""
