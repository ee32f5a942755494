"""Rewrites of the graph."""
