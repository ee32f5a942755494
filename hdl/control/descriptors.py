"""Walks a list of descriptors in memory, and has one program after the other run: see `weft.hdl.isa.program_lists`."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import LIST_MOST, MARK, RECORD_BYTES, RECORD_READ_BYTES, pitch
from weft.hdl.lib.ports import bus_read, bus_write


def read_beats(config: Config) -> int:
    """Words of the bus that are read of a descriptor."""
    return -(-RECORD_READ_BYTES // config.bus_bytes)


class Descriptors(wiring.Component):
    """Stands between the bus and its two users that are idle between two programs of a list: fetch and STORE.

    It reads a descriptor through the one's port, has the program run, and writes the record through the other's. A run
    that is stopped ends in front of the next thing to do: no program starts, and no record is written. What was asked
    of memory is waited for.

    Parameters
    ----------
    config : Config

    Members
    -------
    start, listed : In(1)
        A run starts; with `listed` that of the list at `address`. Only while `busy` is 0.
    address : In(32)
        Of the first descriptor, a multiple of `pitch` (lower bits are ignored).
    stop : In(1)
        The run is to end.
    idle : In(1)
        Nothing of a program is left: from the cycle after `launch` on 0, until it is at its end.
    waits : In(1)
        LOAD waits for memory.
    launch : Out(1)
        For one cycle, a program starts.
    busy : Out(1)
        From the cycle after the start of a list to its end.
    error : Out(1)
        For one cycle: what was read is no descriptor.
    taken : Out(read_beats(config)), words : Out(bus)
        This beat of a descriptor comes, and what it holds.
    done : Out(24)
        Programs of the last list whose record is in memory.
    reads : Out(1)
        The list is, or ended, between the end of a program and the start of the next.
    fetch : In(bus_read(config)), store : In(bus_write(config))
        The users.
    read : Out(bus_read(config)), write : Out(bus_write(config))
        To the bus.
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
                "done": Out(range(LIST_MOST + 1)),
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
        place = Signal(32 - align)  # of the descriptor, in steps
        beats = read_beats(self.config)
        due = Signal(beats, init=1)  # the beat of the descriptor that comes next
        last = Signal()  # of the descriptor that was read last: what it says, and whether it is one
        marked = Signal()
        asks, takes, records, sends, confirms, runs = (
            Signal(name=name) for name in ("asks", "takes", "records", "sends", "confirms", "runs")
        )
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
            with m.State("LOOK"):  # in which an error of the last beat is told
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
            with m.State("SETTLE"):  # in which an error of the program's last access is told
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
            with m.State("ADVANCE"):  # in which an error of the record is told
                m.next = "REST"
                with m.If(~self.stop):
                    m.d.sync += [self.done.eq(self.done + 1), place.eq(place + 1)]
                    with m.If(~last):
                        m.d.sync += self.reads.eq(1)
                        m.next = "ASK"
        return m

    @property
    def _record_at(self) -> int:
        """Where in a descriptor the first word of the bus lies that has some of the record."""
        return RECORD_READ_BYTES // self.config.bus_bytes * self.config.bus_bytes

    def _read_port(self, m: Module, asks: Signal, takes: Signal, address: Value) -> None:
        """Fetch has the bus, but where a descriptor is asked for or comes."""
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
        """STORE has the bus, but where a record is written. Returns whether its last beat goes."""
        store, write, bus = self.store, self.write, self.config.bus_bytes
        beats = max(RECORD_BYTES // bus, 1)
        index = Signal(range(max(beats, 2)))
        sent = Signal()
        record, at = self._record(m, runs), RECORD_READ_BYTES % bus  # its place in a word of the bus
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
        """What there is to tell about the program that runs, or ran: counts stay at their largest."""
        cycles = Signal(32)
        waited = Signal(32)
        with m.If(self.launch):
            m.d.sync += [cycles.eq(0), waited.eq(0)]
        with m.Elif(runs & ~cycles.all()):  # neither passes the other
            m.d.sync += [cycles.eq(cycles + 1), waited.eq(waited + self.waits)]
        return Cat(Const(1, 32), cycles, waited, Const(0, 32))
