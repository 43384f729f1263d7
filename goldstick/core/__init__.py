"""The data at the bottom: grids, schemes, quantized tensors and edits. Knows torch and nothing else."""
