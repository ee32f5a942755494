"""The memory port: the internal bus between a board's memory and its users."""

from amaranth.hdl import Shape, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

PAGE = 4096
"""Burst boundary in bytes: no burst crosses a multiple of it."""
MAX_BEATS = 256


# `data.Struct` evaluates annotations, so this module must not postpone them (no `from __future__ import annotations`).
class Command(data.Struct):
    """Burst of `beats` (1 to `MAX_BEATS`) bus words from byte address `address`.

    The address is a multiple of the bus width, and the burst lies within one `PAGE`.
    """

    write: unsigned(1)  # type: ignore[valid-type]
    address: unsigned(32)  # type: ignore[valid-type]
    beats: unsigned(9)  # type: ignore[valid-type]


def write_layout(bus_bytes: int) -> data.StructLayout:
    """Return the layout of a word to write. Bytes whose strobe is 0 keep their value."""
    return data.StructLayout({"data": 8 * bus_bytes, "strobe": bus_bytes})


def memory_port(bus_bytes: int) -> wiring.Signature:
    """Return the signature of a memory port, seen from the requester.

    Members
    -------
    command : Out(stream.Signature(Command))
        Commands, carried out in order. A memory may accept several before the first is complete.
    write : Out(stream.Signature(write_layout(bus_bytes)))
        Words of write commands, in the order of the commands. They may come before or after their command.
    read : In(stream.Signature(8 * bus_bytes))
        Words of read commands, in the order of the commands.
    written : In(1)
        High for one cycle when the oldest unreported write command is complete in memory.

    Addresses beyond the memory wrap around.
    """
    word: Shape = unsigned(8 * bus_bytes)
    return wiring.Signature(
        {
            "command": Out(stream.Signature(Command)),
            "write": Out(stream.Signature(write_layout(bus_bytes))),
            "read": In(stream.Signature(word)),
            "written": In(1),
        }
    )
