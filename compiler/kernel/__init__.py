"""Kernels of the kernel engine, made of expressions on the elements of rows."""
