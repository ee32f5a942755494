"""Properties of the effect of instructions."""

from __future__ import annotations

from collections.abc import Iterator

from weft.extras.proof.hardware.instructions import (
    load,
    load_bytes,
    mm_rows,
    mm_unit,
    registers,
    store,
    store_bus,
    vec,
    vec_reader,
)
from weft.extras.proof.hardware.property import Property


def properties() -> Iterator[Property]:
    """All of them."""
    for module in (mm_rows, mm_unit, load, load_bytes, store, store_bus, vec_reader, vec, registers):
        yield from module.properties()
