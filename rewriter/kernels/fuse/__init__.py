"""Fusion of regions into graph-defined kernels."""
