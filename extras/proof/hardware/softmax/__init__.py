"""Properties of SOFTMAX and NORMALISE."""
