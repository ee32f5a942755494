"""Kernels of the kernel engine, built from expressions on the elements of rows."""
