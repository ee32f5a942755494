"""Proof engine for the properties of `weft.extras.proof.hardware`: Yosys and ABC, which are in pyosys' wheel."""
