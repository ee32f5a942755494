"""Signatures that the units share: memory ports, bus requests, the instruction interface."""

from amaranth.hdl import unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES, WORD_BITS, Instruction
from weft.hdl.isa.config import Config

ALIGNMENT_BITS = 6
"""Width of an alignment, signed."""


class ReadPort(wiring.Signature):
    """A read port, seen from the client. A request is granted in the cycle where ``valid`` and ``ready`` are both 1;
    its ``data`` stands exactly `READ_LATENCY` cycles later, for one cycle. ``ready`` may depend on ``valid`` and
    ``address`` (arbitration is combinational); ``valid`` must not depend on ``ready``.
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
    """A write port, seen from the client. A word is written in the cycle where ``valid`` and ``ready`` are both 1, and
    a read granted in the next cycle or later returns it.
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
    """Always granted. Data is a signed shift, as `weft.hdl.isa.Softmax` writes it."""
    return ReadPort((config.alignments - 1).bit_length(), ALIGNMENT_BITS)


def alignment_write(config: Config) -> WritePort:
    """Always granted."""
    return WritePort((config.alignments - 1).bit_length(), ALIGNMENT_BITS)


# Annotations must be real objects here: `data.Struct` reads them.
class BusFault(data.Struct):
    """The first error that memory answered with, see `weft.hdl.isa.memmap.Fault`. All 0: there was none."""

    address: unsigned(32)  # type: ignore[valid-type]
    unit: unsigned(3)  # type: ignore[valid-type]
    response: unsigned(2)  # type: ignore[valid-type]
    known: unsigned(1)  # type: ignore[valid-type]


class BusRequest(data.Struct):
    """A burst of ``beats`` (1 to 256) bus words from ``address`` on (a multiple of the bus width).

    It never crosses a boundary of 4 KiB.
    """

    address: unsigned(32)  # type: ignore[valid-type]
    beats: unsigned(9)  # type: ignore[valid-type]


def bus_write_data(config: Config) -> data.StructLayout:
    """A write beat: data, a strobe bit per byte, and whether it is the last of its burst."""
    return data.StructLayout({"data": config.widths.bus, "strobe": config.bus_bytes, "last": 1})


def bus_read(config: Config) -> wiring.Signature:
    """The bus as a reader sees it: requests out, beats in, in order of request."""
    return wiring.Signature(
        {"request": Out(stream.Signature(BusRequest)), "beat": In(stream.Signature(config.widths.bus))}
    )


def bus_write(config: Config) -> wiring.Signature:
    """The bus as a writer sees it: requests and their beats out, and a pulse for every burst that memory confirmed."""
    return wiring.Signature(
        {
            "request": Out(stream.Signature(BusRequest)),
            "beat": Out(stream.Signature(bus_write_data(config))),
            "confirmed": In(1),
        }
    )


def part_layout(config: Config) -> data.StructLayout:
    """A part of an instruction on its way to a queue: as many bits as the bus has, up to the whole word. `index`, 0 for
    the low bits, counts up."""
    width = min(config.widths.bus, WORD_BITS)
    return data.StructLayout({"data": width, "index": range(max(WORD_BITS // width, 2))})


def unit(instruction: type[Instruction]) -> dict[str, wiring.Member]:
    """Members that every unit has.

    ``instruction`` : stream of instructions whose semaphores have been taken; the unit may accept the next before the
    last is done. ``signal`` : for one cycle, the signal mask of an instruction whose effects are all visible (0
    otherwise). ``busy`` : 1 from accepting an instruction to signalling the last one.
    """
    return {
        "instruction": In(stream.Signature(instruction.layout())),
        "signal": Out(SEMAPHORES),
        "busy": Out(1),
    }
