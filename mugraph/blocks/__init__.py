"""Graph-defined kernels: block and thread graphs, their text, interpretation and operator record."""
