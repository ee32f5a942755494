"""The scratchpad and the accumulator."""
