"""Finding a model and its data, and loading it."""
