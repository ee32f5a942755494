"""The graph of device operators, their meaning in micro-ops, and the arithmetic of scales."""
