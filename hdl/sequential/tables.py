"""Where tables lie in the memory that they share: first that of softmax, then the look-up tables.

Softmax addresses its table by distances, of which several may share an entry; `address_step` is how many. The others
are addressed in the same way.
"""

from __future__ import annotations

from weft.hdl.isa.config import LOOKUP_ENTRIES, Config

_DISTANCES = 2048
"""Distances from the exponent below which softmax has an entry."""


def first_lookup(config: Config) -> int:
    """The number of the first entry of look-up tables."""
    return config.table_depth if config.softmax else 0


def entries(config: Config) -> int:
    """Entries of all tables."""
    return first_lookup(config) + LOOKUP_ENTRIES * config.lookup_tables


def address_step(config: Config) -> int:
    """What addresses grow by from one entry to the next."""
    return _DISTANCES // config.table_depth if config.softmax else 1
