"""A quantized checkpoint in another storage format."""
