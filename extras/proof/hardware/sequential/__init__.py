"""Properties of the sequential core."""
