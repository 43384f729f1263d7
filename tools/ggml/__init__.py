"""ggml's own quantizers beside goldstick's."""
