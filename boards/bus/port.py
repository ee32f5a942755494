"""The memory port: the one internal bus of a board, between whoever wants memory and the memory."""

from amaranth.hdl import Shape, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

PAGE = 4096
"""Bytes that a burst must not cross a multiple of."""
MAX_BEATS = 256


# Annotations must be real objects here: `data.Struct` reads them.
class Command(data.Struct):
    """A burst: `beats` (1 to `MAX_BEATS`) words of the bus from byte address `address` on, a multiple of the bus width,
    inside one `PAGE`."""

    write: unsigned(1)  # type: ignore[valid-type]
    address: unsigned(32)  # type: ignore[valid-type]
    beats: unsigned(9)  # type: ignore[valid-type]


def write_layout(bus_bytes: int) -> data.StructLayout:
    """A word to write: bytes whose strobe is 0 stay as they are."""
    return data.StructLayout({"data": 8 * bus_bytes, "strobe": bus_bytes})


def memory_port(bus_bytes: int) -> wiring.Signature:
    """A memory port seen from the one who asks.

    Members
    -------
    command : Out(stream.Signature(Command))
        Carried out in order. A memory may take several before it is done with the first.
    write : Out(stream.Signature(write_layout(bus_bytes)))
        The words of write commands, in the order of the commands; they may come before their command or after it.
    read : In(stream.Signature(8 * bus_bytes))
        The words of read commands, in the order of the commands.
    written : In(1)
        For one cycle: the oldest write command that was not yet reported is in memory.

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
