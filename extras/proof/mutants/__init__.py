"""Faults planted in the hardware, and proofs that a mutant is the same hardware."""
