"""The main jobs, end to end: plan, stream, save, prove, verify, load."""
