"""AXI4, and bursts on it."""
