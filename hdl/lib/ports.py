"""Signatures that the units share: memory ports, bus requests, the interface of instructions."""

from amaranth.hdl import unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES, WORD_BITS, Instruction
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import FAULT_FIELDS

ALIGNMENT_BITS = 6
"""An alignment is a signed shift."""


class ReadPort(wiring.Signature):
    """Read port, seen from the client.

    A request is granted in the cycle in which ``valid`` and ``ready`` are both 1. Its ``data`` is valid exactly
    `READ_LATENCY` cycles later, for one cycle. ``ready`` may depend on ``valid`` and ``address`` (arbitration is
    combinational); ``valid`` must not depend on ``ready``.
    """

    def __init__(self, address_width: int, data_width: int) -> None:
        super().__init__(
            {
                "valid": Out(1),
                "ready": In(1),
                "address": Out(address_width),
                "data": In(data_width),
            }
        )


class WritePort(wiring.Signature):
    """Write port, seen from the client.

    A word is written in the cycle in which ``valid`` and ``ready`` are both 1. A read that is granted in the next
    cycle or later returns it.
    """

    def __init__(self, address_width: int, data_width: int) -> None:
        super().__init__(
            {
                "valid": Out(1),
                "ready": In(1),
                "address": Out(address_width),
                "data": Out(data_width),
            }
        )


def scratchpad_read(config: Config) -> ReadPort:
    return ReadPort(config.widths.scratchpad_address, config.widths.vector)


def scratchpad_write(config: Config) -> WritePort:
    return WritePort(config.widths.scratchpad_address, config.widths.vector)


def accumulator_read(config: Config) -> ReadPort:
    return ReadPort(config.widths.accumulator_address, config.widths.row)


def alignment_read(config: Config) -> ReadPort:
    """Return the read port of the alignments, always granted. Data is a signed shift, written by
    `weft.hdl.isa.Softmax`."""
    return ReadPort((config.alignments - 1).bit_length(), ALIGNMENT_BITS)


def alignment_write(config: Config) -> WritePort:
    """Return the write port of the alignments, always granted."""
    return WritePort((config.alignments - 1).bit_length(), ALIGNMENT_BITS)


# Annotations must be real objects here: `data.Struct` reads them.
class BusFault(data.Struct):
    """First error response of memory, see `weft.hdl.isa.memmap.Fault`; all 0 if there was no error."""

    address: unsigned(32)  # type: ignore[valid-type]
    unit: unsigned(FAULT_FIELDS["unit"][1])  # type: ignore[valid-type]
    response: unsigned(FAULT_FIELDS["response"][1])  # type: ignore[valid-type]
    known: unsigned(FAULT_FIELDS["known"][1])  # type: ignore[valid-type]


class BusRequest(data.Struct):
    """Burst of ``beats`` (1 to 256) bus words that begins at ``address``, a multiple of the bus width.

    It never crosses a boundary of 4 KiB.
    """

    address: unsigned(32)  # type: ignore[valid-type]
    beats: unsigned(9)  # type: ignore[valid-type]


def bus_write_data(config: Config) -> data.StructLayout:
    """Return the layout of a write beat: data, a strobe bit for each byte, and the flag of a burst's last beat."""
    return data.StructLayout({"data": config.widths.bus, "strobe": config.bus_bytes, "last": 1})


def bus_read(config: Config) -> wiring.Signature:
    """Return the bus seen from a reader: requests out, and beats in, in the order of the requests."""
    return wiring.Signature(
        {"request": Out(stream.Signature(BusRequest)), "beat": In(stream.Signature(config.widths.bus))}
    )


def bus_write(config: Config) -> wiring.Signature:
    """Return the bus seen from a writer: requests and their beats out, and a pulse for each confirmed burst in."""
    return wiring.Signature(
        {
            "request": Out(stream.Signature(BusRequest)),
            "beat": Out(stream.Signature(bus_write_data(config))),
            "confirmed": In(1),
        }
    )


def part_layout(config: Config) -> data.StructLayout:
    """Return the layout of a part of an instruction on its way to a queue.

    A part has the width of the bus, at most that of an instruction. `index` counts up from 0, the low bits.
    """
    width = min(config.widths.bus, WORD_BITS)
    return data.StructLayout({"data": width, "index": range(max(WORD_BITS // width, 2))})


def unit(instruction: type[Instruction]) -> dict[str, wiring.Member]:
    """Return the members that every unit has.

    ``instruction`` : stream of instructions whose semaphores have been taken. The unit may accept an instruction before
    the previous instruction is done. ``signal`` : for one cycle, the signal mask of an instruction whose effects are
    all visible, else 0. ``busy`` : 1 from the acceptance of an instruction to the signal of the last instruction.
    """
    return {
        "instruction": In(stream.Signature(instruction.layout())),
        "signal": Out(SEMAPHORES),
        "busy": Out(1),
    }
