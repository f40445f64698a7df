"""Guided search for graph-defined kernels (Mirage, OSDI'25, section 4), in reduced form."""
