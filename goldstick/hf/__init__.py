"""All that knows transformers: configs, names, loading, the quantizer, the quantized cache."""
