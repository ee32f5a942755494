"""The largest values that fields of instructions hold, by what they limit."""

from __future__ import annotations

from collections.abc import Iterable

from weft.hdl.isa import Opcode, Place, places


def _high(found: Iterable[Place]) -> int:
    return min(place.high for place in found)


def _named(name: str, *opcodes: Opcode) -> int:
    return _high(places(opcode)[name] for opcode in opcodes)


COUNT_MAX = _high(
    places(opcode)[name]
    for opcode, names in {
        Opcode.LOAD: ("rows", "line"),
        Opcode.STORE: ("rows",),
        Opcode.MM: ("nt", "ky", "kx", "kc", "oy", "ox"),
        Opcode.VEC: ("ob", "oy", "ox", "ry", "rx"),
    }.items()
    for name in names
)
"""The most that loops of MM and VEC count, and rows of LOAD and STORE."""
PIXELS_MAX = _named("pixels", Opcode.LOAD, Opcode.STORE)
"""Pixels of a row of LOAD and STORE."""
STRIDE_MAX = _high(
    place
    for opcode in (Opcode.LOAD, Opcode.MM, Opcode.VEC, Opcode.STORE)
    for name, place in places(opcode).items()
    if name.startswith(("a_", "c_", "src_", "dst_"))
)
"""Largest stride of an address on chip."""
STEP_MAX = _high(
    place
    for opcode in (Opcode.MM, Opcode.VEC)
    for name, place in places(opcode).items()
    if name.startswith(("y_", "x_"))
)
"""Largest step of a coordinate: strides and dilations of windows."""
LENGTH_MAX = _named("length", Opcode.LOAD, Opcode.STORE)
"""Bytes of a pixel that LOAD and STORE take."""
PITCH_MAX = _named("pitch", Opcode.LOAD, Opcode.STORE)
"""Bytes from one pixel to the next that LOAD and STORE take."""
BEFORE_MAX = _named("before", Opcode.LOAD)
"""Fill bytes ahead of a row of LOAD."""
RUN_MAX = _named("run", Opcode.LOAD)
"""Bytes of a row that LOAD takes."""
