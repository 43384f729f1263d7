"""Checkpoints on disk: safetensors files, shards, staging, the journal of a run."""
