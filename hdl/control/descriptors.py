"""Walker of descriptor lists, which runs one program after the other: see `weft.hdl.isa.program_lists`."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import MARK, MAX_LIST_PROGRAMS, RECORD_BYTES, RECORD_READ_BYTES, pitch
from weft.hdl.lib.ports import bus_read, bus_write


def read_beats(config: Config) -> int:
    """Return the bus words of a descriptor that the device reads."""
    return -(-RECORD_READ_BYTES // config.bus_bytes)


class Descriptors(wiring.Component):
    """Walker of descriptor lists, between the bus and two units that are idle between programs: fetch and STORE.

    It reads a descriptor through the read port of fetch, runs the program, and writes the record through the write port
    of STORE. A stopped run ends at the next step: no program starts, and no record is written. Outstanding bus accesses
    are completed.

    Parameters
    ----------
    config : Config

    Members
    -------
    start, listed : In(1)
        A run starts; with `listed` it is the list at `address`. Only while `busy` is 0.
    address : In(32)
        Address of the first descriptor, a multiple of `pitch` (lower bits are ignored).
    stop : In(1)
        The run must end.
    idle : In(1)
        No program is running: 0 from the cycle after `launch` to the end of the program.
    waits : In(1)
        LOAD waits for memory.
    launch : Out(1)
        For one cycle, a program starts.
    busy : Out(1)
        1 from the cycle after the start of a list to its end.
    error : Out(1)
        For one cycle: the data read is no descriptor.
    taken : Out(read_beats(config)), words : Out(bus)
        One-hot number of an arriving beat of a descriptor, and its data.
    done : Out(24)
        Programs of the last list with a record in memory.
    reads : Out(1)
        The list is, or ended, between the end of a program and the start of the next.
    fetch : In(bus_read(config)), store : In(bus_write(config))
        Ports of fetch and STORE.
    read : Out(bus_read(config)), write : Out(bus_write(config))
        Ports to the bus.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "listed": In(1),
                "address": In(32),
                "stop": In(1),
                "idle": In(1),
                "waits": In(1),
                "launch": Out(1),
                "busy": Out(1),
                "error": Out(1),
                "taken": Out(read_beats(config)),
                "words": Out(config.widths.bus),
                "done": Out(range(MAX_LIST_PROGRAMS + 1)),
                "reads": Out(1),
                "fetch": In(bus_read(config)),
                "read": Out(bus_read(config)),
                "store": In(bus_write(config)),
                "write": Out(bus_write(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        step = pitch(self.config)
        align = (step - 1).bit_length()
        place = Signal(32 - align)  # address of the current descriptor, in units of `pitch`
        beats = read_beats(self.config)
        due = Signal(beats, init=1)  # one-hot number of the descriptor's next beat
        last = Signal()  # the current descriptor is the last of the list
        marked = Signal()  # the current descriptor has the mark
        # One for each state with outputs:
        asks = Signal()
        takes = Signal()
        records = Signal()
        sends = Signal()
        confirms = Signal()
        runs = Signal()
        m.d.comb += [
            self.taken.eq(Mux(takes & self.read.beat.valid, due, 0)),
            self.words.eq(self.read.beat.payload),
            self.store.confirmed.eq(self.write.confirmed & ~confirms),
        ]
        self._read_port(m, asks, takes, Cat(Const(0, align), place))
        sent = self._write_port(m, runs, records, sends, Cat(Const(self._record_at, align), place))
        with m.If(self.taken[0]):
            m.d.sync += [last.eq(self.words[0]), marked.eq(self.words[1:32] == MARK >> 1)]
        with m.If(self.taken.any()):
            # A bit for each beat, so it is back at the first beat after a descriptor.
            m.d.sync += due.eq(due.rotate_left(1))
        with m.FSM() as machine:
            m.d.comb += self.busy.eq(~machine.ongoing("REST"))
            with m.State("REST"), m.If(self.start):
                m.d.comb += self.launch.eq(~self.listed)
                with m.If(self.listed):
                    m.d.sync += [place.eq(self.address[align:]), self.done.eq(0), self.reads.eq(1)]
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += asks.eq(1)
                with m.If(self.read.request.ready):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += takes.eq(1)
                with m.If(self.taken[-1]):
                    m.next = "LOOK"
            with m.State("LOOK"):  # a bus error of the last beat arrives in this cycle
                m.d.comb += self.error.eq(~marked & ~self.stop)
                m.next = "LAUNCH"
            with m.State("LAUNCH"):
                m.next = "REST"
                with m.If(marked & ~self.stop):
                    m.d.comb += self.launch.eq(1)
                    m.d.sync += self.reads.eq(0)
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += runs.eq(1)
                with m.If(self.idle):
                    m.next = "SETTLE"
            with m.State("SETTLE"):  # a bus error of the program's last access arrives in this cycle
                m.next = "RECORD"
                with m.If(self.stop):
                    m.next = "REST"
            with m.State("RECORD"):
                m.d.comb += records.eq(1)
                with m.If(self.write.request.ready):
                    m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += sends.eq(1)
                with m.If(sent):
                    m.next = "CONFIRM"
            with m.State("CONFIRM"):
                m.d.comb += confirms.eq(1)
                with m.If(self.write.confirmed):
                    m.next = "ADVANCE"
            with m.State("ADVANCE"):  # a bus error of the record arrives in this cycle
                m.next = "REST"
                with m.If(~self.stop):
                    m.d.sync += [self.done.eq(self.done + 1), place.eq(place + 1)]
                    with m.If(~last):
                        m.d.sync += self.reads.eq(1)
                        m.next = "ASK"
        return m

    @property
    def _record_at(self) -> int:
        """Offset in a descriptor of the first bus word with a part of the record."""
        return RECORD_READ_BYTES // self.config.bus_bytes * self.config.bus_bytes

    def _read_port(self, m: Module, asks: Signal, takes: Signal, address: Value) -> None:
        # Fetch has the port except while a descriptor is requested or arrives.
        fetch, read = self.fetch, self.read
        m.d.comb += [
            read.request.valid.eq(asks | fetch.request.valid),
            read.request.payload.eq(fetch.request.payload),
            fetch.request.ready.eq(read.request.ready & ~asks),
            fetch.beat.payload.eq(read.beat.payload),
            fetch.beat.valid.eq(read.beat.valid & ~takes),
            read.beat.ready.eq(takes | fetch.beat.ready),
        ]
        with m.If(asks):
            m.d.comb += [
                read.request.payload.address.eq(address),
                read.request.payload.beats.eq(len(self.taken)),
            ]

    def _write_port(self, m: Module, runs: Signal, records: Signal, sends: Signal, address: Value) -> Signal:
        """Connect STORE to the bus except while a record is written. Returns 1 while the record's last beat is sent."""
        store, write, bus = self.store, self.write, self.config.bus_bytes
        beats = max(RECORD_BYTES // bus, 1)
        index = Signal(range(max(beats, 2)))
        sent = Signal()
        record, at = self._record(m, runs), RECORD_READ_BYTES % bus  # `at`: offset in a bus word
        part = record.word_select(index[: (beats - 1).bit_length()], 8 * bus) if beats > 1 else record
        m.d.comb += [
            write.request.valid.eq(records | store.request.valid),
            write.request.payload.eq(store.request.payload),
            store.request.ready.eq(write.request.ready & ~records),
            write.beat.valid.eq(sends | store.beat.valid),
            write.beat.payload.eq(store.beat.payload),
            store.beat.ready.eq(write.beat.ready & ~sends),
            sent.eq(sends & write.beat.ready & (index == beats - 1)),
        ]
        with m.If(records):
            m.d.sync += index.eq(0)
            m.d.comb += [write.request.payload.address.eq(address), write.request.payload.beats.eq(beats)]
        with m.If(sends):
            m.d.comb += [
                write.beat.payload.data.eq(part << 8 * at),
                write.beat.payload.strobe.eq(((1 << min(RECORD_BYTES, bus)) - 1) << at),
                write.beat.payload.last.eq(index == beats - 1),
            ]
            m.d.sync += index.eq(index + write.beat.ready)
        return sent

    def _record(self, m: Module, runs: Signal) -> Value:
        """Return the record of the current program; its counts saturate."""
        cycles = Signal(32)
        waited = Signal(32)
        with m.If(self.launch):
            m.d.sync += [cycles.eq(0), waited.eq(0)]
        with m.Elif(runs & ~cycles.all()):  # `waited` never exceeds `cycles`
            m.d.sync += [cycles.eq(cycles + 1), waited.eq(waited + self.waits)]
        return Cat(Const(1, 32), cycles, waited, Const(0, 32))
