"""Serving: one model in memory, several who ask it, and an interface over HTTP that others know already."""
