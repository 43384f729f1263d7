"""The proof: a checkpoint read back in a fresh process gives what the model in memory gave."""
