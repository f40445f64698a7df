"""Times of kernels on the GPU that is here."""
