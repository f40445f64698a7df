"""Fusion of nodes into graph-defined kernels."""
