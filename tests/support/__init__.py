"""Helpers shared by tests: models of units, benches, random programs and graphs."""
