"""Custom kernels: from fusable sets of nodes to compiled Triton embedded in a model."""
