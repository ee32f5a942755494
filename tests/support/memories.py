"""Memories that random programs are planned for."""

from __future__ import annotations

BANDWIDTHS = (None, 1.0, 1.9, 2.0, 4.0, 8.0, 16.0, 64.0)
"""Bytes a cycle; None for the width of the bus."""
