"""Doctor: what is wrong with a checkpoint of any tool, found in its config, its headers and its numbers."""
