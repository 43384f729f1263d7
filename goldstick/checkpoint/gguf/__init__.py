"""GGUF files: read, written, their names, metadata and tokenizers."""
