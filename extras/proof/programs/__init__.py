"""Proofs that a compiled program computes its network; independent of the compiler."""
