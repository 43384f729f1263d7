"""A zoo that runs by itself: the smallest model of every architecture of transformers, compressed and compared."""
