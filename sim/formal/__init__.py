"""Proves the properties of `weft.hdl.formal` with Yosys and ABC, which come in pyosys' wheel."""
