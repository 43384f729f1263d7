"""What a recipe will do to a checkpoint, from its config and file headers alone."""
