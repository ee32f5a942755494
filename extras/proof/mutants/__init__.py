"""Mutants of the hardware, and proofs that a mutant equals its core."""
