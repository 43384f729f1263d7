"""Whether llama.cpp and goldstick agree on GGUF files: `make llama-cpp-check`."""
