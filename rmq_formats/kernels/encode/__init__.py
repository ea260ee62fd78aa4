"""numba kernels that encode CommitLog records out of columns."""
