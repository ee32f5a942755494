"""Proofs that a decoder's programs compute its model."""
