"""Proves the properties of `weft.extras.proof.hardware` with Yosys and ABC, which come in pyosys' wheel."""
