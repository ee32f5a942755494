"""Properties of the kernel engine."""
