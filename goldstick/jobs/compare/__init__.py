"""Two checkpoints on the same input, module by module and token by token."""
