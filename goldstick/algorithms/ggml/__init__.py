"""The published searches of ggml, whose blocks come out byte for byte as its own."""
