"""A memory port with two memories behind it: the FPGA's own RAM, and an SPI flash chip that is only read."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.block_memory import BlockMemory, Spram
from weft.boards.port import memory_port
from weft.boards.spi_flash import SpiFlashReader
from weft.boards.spi_flash_chip import WINDOW, SpiFlash, spi_flash_pads


class RamAndFlash(wiring.Component):
    """Reads of addresses with the bit of `WINDOW` set go to the chip; all else goes to the RAM, writes too.

    A command waits until the other memory has given all words that were asked for, which keeps them in order.

    Parameters
    ----------
    ram : BlockMemory or Spram
    chip : SpiFlash
    clock : float
        Frequency in Hz.

    Members
    -------
    bus : In(memory_port(ram.bus_bytes))
    flash : Out(spi_flash_pads())
    """

    def __init__(self, ram: BlockMemory | Spram, chip: SpiFlash, clock: float) -> None:
        self.ram, self.chip, self.clock = ram, chip, clock
        super().__init__({"bus": In(memory_port(ram.bus_bytes)), "flash": Out(spi_flash_pads())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ram = ram = self.ram
        m.submodules.reader = reader = SpiFlashReader(ram.bus_bytes, self.chip, self.clock)
        bus, command = self.bus, self.bus.command.payload
        wiring.connect(m, reader.pads, wiring.flipped(self.flash))
        chosen = Signal()
        m.d.comb += [
            chosen.eq(command.address[WINDOW.bit_length() - 1] & ~command.write),
            ram.bus.command.payload.eq(command),
            ram.bus.command.valid.eq(bus.command.valid & ~chosen & reader.idle),
            reader.command.payload.eq(command),
            reader.command.valid.eq(bus.command.valid & chosen & ram.idle),
            bus.command.ready.eq(Mux(chosen, reader.command.ready & ram.idle, ram.bus.command.ready & reader.idle)),
            ram.bus.write.payload.eq(bus.write.payload),
            ram.bus.write.valid.eq(bus.write.valid),
            bus.write.ready.eq(ram.bus.write.ready),
            bus.written.eq(ram.bus.written),
            bus.read.payload.eq(Mux(reader.idle, ram.bus.read.payload, reader.read.payload)),
            bus.read.valid.eq(ram.bus.read.valid | reader.read.valid),
            ram.bus.read.ready.eq(bus.read.ready),
            reader.read.ready.eq(bus.read.ready),
        ]  # fmt: skip
        return m
