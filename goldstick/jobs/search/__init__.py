"""Search: which layer becomes what, so that a checkpoint of a size loses least, or one of a loss is small."""
