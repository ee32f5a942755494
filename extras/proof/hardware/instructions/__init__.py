"""Properties of the effects of instructions."""
