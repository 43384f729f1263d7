"""Does another tree write the same checkpoints, byte for byte, and offer the same commands?

Written for restructurings: record before, record after, compare. Only what users can ask for is used.
"""
