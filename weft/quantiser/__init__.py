"""Quantisation of float models."""
