"""numba kernels that fill Arrow columns out of framed records."""
