"""Memories inside the FPGA: block RAM, and large single-port RAMs."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Array, Cat, Const, Instance, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import PAGE, memory_port, write_layout
from weft.boards.families.family import RamPort
from weft.boards.flash.chip import WINDOW, SpiFlash, spi_flash_pads
from weft.boards.flash.controller import SpiFlashReader

SPRAM_WORDS = 1 << 14
"""Words of 16 bits per single-port RAM."""
SPRAM_BYTES = 4 * 2 * SPRAM_WORDS
"""Bytes of all four single-port RAMs."""


class WordAccess(wiring.Component):
    """Controller between a memory port and a memory that reads or writes one word per cycle.

    Commands are carried out one by one, with one word per cycle and no idle cycle between commands.

    Parameters
    ----------
    bus_bytes : int

    Members
    -------
    bus : In(memory_port(bus_bytes))
    read, write : Out(1)
        Read or write the word at `address` in this cycle.
    address : Out
        Address in bus words.
    word : Out(write_layout(bus_bytes))
        Word to write.
    data : In(8 * bus_bytes)
        Word read, one cycle after `read`.
    idle : Out(1)
        All commands are complete, and all words read are accepted.
    """

    def __init__(self, bus_bytes: int) -> None:
        self.bus_bytes = bus_bytes
        super().__init__(
            {
                "bus": In(memory_port(bus_bytes)),
                "read": Out(1),
                "write": Out(1),
                "address": Out(32 - (bus_bytes - 1).bit_length()),
                "word": Out(write_layout(bus_bytes)),
                "data": In(8 * bus_bytes),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bus, command = self.bus, self.bus.command.payload
        align = (self.bus_bytes - 1).bit_length()
        inside = (PAGE // self.bus_bytes - 1).bit_length()
        active = Signal()
        writing = Signal()
        more = Signal(8)  # words after the current one
        room = Signal()
        step = Signal()
        last = Signal()
        m.d.comb += [
            self.write.eq(active & writing & bus.write.valid),
            self.read.eq(active & ~writing & room),
            self.word.eq(bus.write.payload),
            bus.write.ready.eq(active & writing),
            step.eq(self.read | self.write),
            last.eq(more == 0),
            bus.command.ready.eq(~active | (step & last)),
        ]
        # The write has reached the memory in the cycle after it is issued.
        m.d.sync += bus.written.eq(self.write & last)
        with m.If(step):
            # A command stays within its page.
            m.d.sync += [self.address[:inside].eq(self.address[:inside] + 1), more.eq(more - 1)]
        with m.If(bus.command.ready):
            m.d.sync += [
                active.eq(bus.command.valid),
                writing.eq(command.write),
                self.address.eq(command.address >> align),
                more.eq(command.beats - 1),
            ]
        m.d.comb += self.idle.eq(~active & ~self._buffer_words(m, room))
        return m

    def _buffer_words(self, m: Module, room: Signal) -> Value:
        """Buffer two words behind the memory; a read is issued only if its word will have room.

        Return whether a word is in progress.
        """
        read = self.bus.read
        fresh = Signal()
        spare = Signal(8 * self.bus_bytes)
        spare_valid = Signal()
        move = ~read.valid | read.ready
        m.d.comb += room.eq(move | ~(spare_valid | fresh))
        m.d.sync += fresh.eq(self.read)
        with m.If(move):
            m.d.sync += [
                read.valid.eq(fresh | spare_valid),
                read.payload.eq(Mux(spare_valid, spare, self.data)),
                spare_valid.eq(0),  # no fresh word arrives now: it would have had no room
            ]
        with m.Elif(fresh):
            m.d.sync += spare_valid.eq(1)
        with m.If(fresh):
            m.d.sync += spare.eq(self.data)
        return read.valid | fresh | spare_valid


class BlockMemory(wiring.Component):
    """Block RAM behind a memory port, with one word per cycle.

    Parameters
    ----------
    bus_bytes : int
    size : int
        Bytes: a power of two, at least two words.

    Members
    -------
    bus : In(memory_port(bus_bytes))
    idle : Out(1)
        See `WordAccess`.
    """

    def __init__(self, bus_bytes: int, size: int) -> None:
        if size < 2 * bus_bytes or size & (size - 1):
            raise ValueError(
                f"a block memory's size must be a power of two, at least {2 * bus_bytes} bytes, not {size}"
            )
        self.bus_bytes, self.size = bus_bytes, size
        super().__init__({"bus": In(memory_port(bus_bytes)), "idle": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.access = access = WordAccess(self.bus_bytes)
        memory = Memory(shape=8 * self.bus_bytes, depth=self.size // self.bus_bytes, init=[])
        m.submodules.memory = memory
        write = memory.write_port(granularity=8)
        read = memory.read_port()
        wiring.connect(m, wiring.flipped(self.bus), access.bus)
        m.d.comb += self.idle.eq(access.idle)
        m.d.comb += [
            write.addr.eq(access.address),
            write.data.eq(access.word.data),
            write.en.eq(Mux(access.write, access.word.strobe, 0)),
            read.addr.eq(access.address),
            read.en.eq(access.read),
            access.data.eq(read.data),
        ]
        return m


class Spram(wiring.Component):
    """Four single-port RAMs, 128 KB, behind a memory port, with one word per cycle.

    Parameters
    ----------
    bus_bytes : int
        4 or 8.
    make_ram : callable, optional
        See `weft.boards.families.family.Fabric`. Without it, Amaranth memories with the same behaviour are used, for
        simulation.

    Members
    -------
    bus : In(memory_port(bus_bytes))
    idle : Out(1)
        See `WordAccess`.
    """

    def __init__(self, bus_bytes: int, make_ram: Callable[[RamPort], Instance] | None = None) -> None:
        if bus_bytes not in (4, 8):
            raise ValueError(
                f"single-port RAMs serve a bus of 4 or 8 bytes, not {bus_bytes}: choose "
                "'bus_bytes' 4 or 8 in the configuration"
            )
        self.bus_bytes, self.make_ram = bus_bytes, make_ram
        super().__init__({"bus": In(memory_port(bus_bytes)), "idle": Out(1)})

    size = SPRAM_BYTES

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.access = access = WordAccess(self.bus_bytes)
        wiring.connect(m, wiring.flipped(self.bus), access.bus)
        m.d.comb += self.idle.eq(access.idle)
        within = (SPRAM_WORDS - 1).bit_length()
        lanes = self.bus_bytes // 2
        banks = 4 // lanes  # RAMs per lane, at consecutive addresses
        # The bank of a read selects the output one cycle later.
        bank = access.address[within : within + 1] if banks > 1 else Const(0, 1)
        was = Signal()
        m.d.sync += was.eq(bank)
        outputs: list[Value] = []
        for index in range(banks):
            words = []
            for lane in range(lanes):
                word = Signal(16, name=f"word{index}_{lane}")
                words.append(word)
                port = RamPort(
                    address=access.address[:within],
                    chosen=(access.read | access.write) & (bank == index),
                    write=access.write,
                    word=access.word.data[16 * lane : 16 * lane + 16],
                    strobe=access.word.strobe[2 * lane : 2 * lane + 2],
                    output=word,
                )
                self._ram(m, f"ram{index}_{lane}", port)
            outputs.append(Cat(*words))
        m.d.comb += access.data.eq(Array(outputs)[was] if banks > 1 else outputs[0])
        return m

    def _ram(self, m: Module, name: str, port: RamPort) -> None:
        if self.make_ram:
            m.submodules[name] = self.make_ram(port)
            return
        # Like the real RAM, this model has an undefined output after a write.
        memory = Memory(shape=16, depth=SPRAM_WORDS, init=[])
        m.submodules[name] = memory
        writing = memory.write_port(granularity=8)
        reading = memory.read_port()
        wrote = Signal(name=f"{name}_wrote")
        m.d.sync += wrote.eq(port.chosen & port.write)
        m.d.comb += [
            writing.addr.eq(port.address),
            writing.data.eq(port.word),
            writing.en.eq(Mux(port.chosen & port.write, port.strobe, 0)),
            reading.addr.eq(port.address),
            reading.en.eq(port.chosen & ~port.write),
            port.output.eq(Mux(wrote, 0xA55A, reading.data)),
        ]


class RamAndFlash(wiring.Component):
    """RAM and flash chip behind one memory port. Reads with the address bit `WINDOW` set go to flash; all other
    commands go to RAM.

    A command waits until the other memory has delivered all its words, which keeps words in order.

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
        # At most one of the two memories has words in progress, so their valid signals can be merged.
        chosen = Signal()
        m.d.comb += [
            chosen.eq(command.address[WINDOW.bit_length() - 1] & ~command.write),
            ram.bus.command.payload.eq(command),
            ram.bus.command.valid.eq(bus.command.valid & ~chosen & reader.idle),
            reader.command.payload.eq(command),
            reader.command.valid.eq(bus.command.valid & chosen & ram.idle),
            bus.command.ready.eq(
                Mux(chosen, reader.command.ready & ram.idle, ram.bus.command.ready & reader.idle)
            ),
            ram.bus.write.payload.eq(bus.write.payload),
            ram.bus.write.valid.eq(bus.write.valid),
            bus.write.ready.eq(ram.bus.write.ready),
            bus.written.eq(ram.bus.written),
            bus.read.payload.eq(Mux(reader.idle, ram.bus.read.payload, reader.read.payload)),
            bus.read.valid.eq(ram.bus.read.valid | reader.read.valid),
            ram.bus.read.ready.eq(bus.read.ready),
            reader.read.ready.eq(bus.read.ready),
        ]
        return m
