"""Faster forward passes: packed weights, compilation, CUDA graphs, several processes."""
