"""Which layers share an input and what can absorb a scale, found by trying."""
