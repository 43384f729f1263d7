"""Which channels can be cut together: found by masking them; and the cut itself."""
