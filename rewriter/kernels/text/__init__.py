"""What the texts of kernels share, whatever their language: thread graphs, arguments, names, questions to block graphs."""
