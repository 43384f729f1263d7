"""One checkpoint directory in, one compressed and proven checkpoint directory out."""
