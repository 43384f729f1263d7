"""The hashes of a checkpoint's files, and its proof once more."""
