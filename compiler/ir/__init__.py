"""Graph of device operators, their semantics in micro-ops, and the arithmetic of scales."""
