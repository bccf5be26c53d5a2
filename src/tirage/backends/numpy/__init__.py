"""NumPy arrays: plain NumPy that answers at once, and Numba kernels that take over when they are compiled."""
