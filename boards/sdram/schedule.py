"""Command scheduling for an SDRAM chip: splitting bursts at row boundaries, opening rows ahead of time, refreshing."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import PAGE, Command
from weft.boards.sdram.chip import (
    A_BITS,
    ALL_BANKS,
    BANKS,
    INIT_REFRESHES,
    ModeRegister,
    Operation,
    SdramCycles,
)

UNIT = 4
"""Bytes per read or write command: two columns of 16 bits. Every bus word is a whole number of units. No burst is thus
ever cut short, and every second cycle is free for opening and closing rows."""


def segment_layout(row_bits: int, column_bits: int) -> data.StructLayout:
    """Return the layout of a segment: units ``unit`` to ``unit + more`` of a row; ``last`` marks a command's last
    segment."""
    return data.StructLayout(
        {
            "write": 1,
            "last": 1,
            "unit": column_bits - 1,
            "bank": 2,
            "row": row_bits,
            "more": column_bits - 1,
        }
    )


class RowSplitter(wiring.Component):
    """Splits commands at row boundaries. Consecutive rows are in different banks, so sequential accesses change bank
    with each row.

    Parameters
    ----------
    bus_bytes, row_bits, column_bits : int

    Members
    -------
    command : In(stream of Command)
    segment : Out(stream of segment_layout(row_bits, column_bits))
    """

    def __init__(self, bus_bytes: int, row_bits: int, column_bits: int) -> None:
        self.bus_bytes, self.row_bits, self.column_bits = bus_bytes, row_bits, column_bits
        super().__init__(
            {
                "command": In(stream.Signature(Command)),
                "segment": Out(stream.Signature(segment_layout(row_bits, column_bits))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        align = (self.bus_bytes - 1).bit_length()
        inside = self.column_bits + 1 - align  # bits of a bus word's index within its row
        page = max((PAGE // self.bus_bytes - 1).bit_length(), inside)  # bits of its index within its page
        word_units = self.bus_bytes // UNIT
        low = (word_units - 1).bit_length()
        command, segment = self.command, self.segment.payload
        active = Signal()
        write = Signal()
        word = Signal(inside + 2 + self.row_bits)
        more = Signal(9)  # words after the first
        room = Signal(inside)
        last = Signal()
        m.d.comb += [
            room.eq(~word[:inside]),
            last.eq(more <= room),
            command.ready.eq(~active),
            self.segment.valid.eq(active),
            segment.write.eq(write),
            segment.last.eq(last),
            segment.unit.eq(Cat(Const(0, low), word[:inside])),
            segment.bank.eq(word[inside : inside + 2]),
            segment.row.eq(word[inside + 2 :]),
            segment.more.eq(Cat(Const(word_units - 1, low), Mux(last, more[:inside], room))),
        ]
        with m.If(command.ready):
            m.d.sync += [
                active.eq(command.valid),
                write.eq(command.payload.write),
                word.eq(command.payload.address >> align),
                more.eq(command.payload.beats - 1),
            ]
        with m.Elif(self.segment.ready):
            m.d.sync += [
                active.eq(~last),
                # A command stays within its page.
                word.eq(Cat(Const(0, inside), (word[inside:page] + 1)[: page - inside], word[page:])),
                more.eq(more - room - 1),
            ]
        return m


def _ones(count: int) -> int:
    """Return the initial value of a shift-right countdown of `count` cycles."""
    return (1 << max(count, 0)) - 1


class Scheduler(wiring.Component):
    """Scheduler that turns segments into commands of the chip, and initialises and refreshes it.

    Two segments are in progress. While the units of one are read or written, the row of the next is opened in the
    cycles between. Rows stay open until another row of the bank is needed or a refresh is due. A refresh never waits
    for data or room: it precedes the units of a waiting segment.

    Each wait is a unary countdown that shifts right, with bit 0 meaning "not yet", which needs no counter or
    comparison.

    Parameters
    ----------
    cycles : SdramCycles
    word_units : int
        Units per bus word.
    row_bits, column_bits, cas_latency : int

    Members
    -------
    segment : In(stream of segment_layout(row_bits, column_bits))
    have : In(1)
        A unit to write is available.
    room : In(1)
        There is room for a word read. It is sampled for the first unit of each word, and ignored in the next cycle.
    read, write : Out(1)
        A unit is read or written, by the command that `operation` has in the next cycle.
    reserve : Out(1)
        With `read`: the first unit of a word.
    written : Out(1)
        High for one cycle when the last unit of a write command is sent to the chip, before any later one.
    restart : In(1)
        While it is high and no segment is in progress, the chip gets no commands, from a few cycles later on.
        Afterwards it is initialised again.
    operation : Out(Operation)
    bank, address : Out(2), Out(13)
        Registered, like `operation`.
    awake : Out(1)
        The chip is initialised.
    """

    def __init__(
        self, cycles: SdramCycles, *, word_units: int, row_bits: int, column_bits: int, cas_latency: int
    ) -> None:
        self.cycles, self.cas_latency = cycles, cas_latency
        self.word_units, self.row_bits, self.column_bits = word_units, row_bits, column_bits
        self.layout = segment_layout(row_bits, column_bits)
        super().__init__(
            {
                "segment": In(stream.Signature(self.layout)),
                "have": In(1),
                "room": In(1),
                "read": Out(1),
                "write": Out(1),
                "reserve": Out(1),
                "written": Out(1),
                "restart": In(1),
                "operation": Out(Operation),
                "bank": Out(2),
                "address": Out(A_BITS),
                "awake": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._state()
        m.d.sync += self.operation.eq(Operation.NOP)
        self._countdowns(m)
        self._row(m)
        self._units(m)
        self._maintain(m)
        return m

    def _state(self) -> None:
        cycles = self.cycles
        # tRAS and tRP together then satisfy tRC.
        self._ras = max(cycles.ras, cycles.rc - cycles.rp)
        self._run = Signal(name="run")  # state RUN, in a register of its own because of its fan-out
        self._now = Signal(self.layout, name="now")
        self._now_valid = Signal(name="now_valid")
        self._next = Signal(self.layout, name="next")
        self._next_valid = Signal(name="next_valid")
        self._looked = Signal(name="looked")
        self._open = [Signal(name=f"open{bank}") for bank in range(BANKS)]
        self._rows = [Signal(self.row_bits, name=f"row{bank}") for bank in range(BANKS)]
        busy = max(self._ras, cycles.rp, cycles.wr + 1, 2) - 1
        self._busy = [Signal(busy, name=f"busy{bank}") for bank in range(BANKS)]
        self._rrd = Signal(max(cycles.rrd - 1, 1), name="rrd")
        self._rcd = Signal(max(cycles.rcd - 2, 1), name="rcd")
        self._turn = Signal(self.cas_latency + 2, name="turn")
        self._issue = Signal(name="issue")
        self._activate = Signal(name="activate")
        self._precharge = Signal(name="precharge")
        self._reopen = Signal(name="reopen")
        self._close_all = Signal(name="close_all")

    def _countdowns(self, m: Module) -> None:
        """Update the countdowns.

        They count the cycles until a bank may be closed (or, if closed, opened), until any bank may be opened, until
        the next segment may begin, and until the chip has released the data pads.
        """
        cycles, now, next_ = self.cycles, self._now, self._next
        for bank, (busy, opened) in enumerate(zip(self._busy, self._open, strict=True)):
            is_now, is_next = now.bank == bank, next_.bank == bank
            # A write delays the closing of its bank by tWR, a read by one cycle.
            column = Mux(now.write, _ones(cycles.wr), 0b1)
            activate = (self._activate & is_next) | (self._reopen & is_now)
            m.d.sync += busy.eq(
                (busy >> 1)
                | Mux(self._issue & is_now, column, 0)
                | Mux(activate, _ones(self._ras - 1), 0)
                | Mux((self._precharge & is_next) | self._close_all, _ones(cycles.rp - 1), 0)
            )
            with m.If(activate):
                m.d.sync += opened.eq(1)
            with m.Elif((self._precharge & is_next) | self._close_all):
                m.d.sync += opened.eq(0)
            with m.If(self._activate & is_next):
                m.d.sync += self._rows[bank].eq(next_.row)
        m.d.sync += [
            self._rrd.eq((self._rrd >> 1) | Mux(self._activate | self._reopen, _ones(cycles.rrd - 1), 0)),
            self._rcd.eq((self._rcd >> 1) | Mux(self._activate, _ones(cycles.rcd - 2), 0)),
            # One cycle more than the data, because the chip releases the pads only after the clock edge.
            self._turn.eq((self._turn >> 1) | Mux(self.read, _ones(self.cas_latency + 2), 0)),
        ]

    def _row(self, m: Module) -> None:
        """Open the row of the next segment."""
        next_, looked = self._next, self._looked
        hit = Signal()
        other = Signal()
        opened = Signal()
        opens = Array(self._open)[next_.bank]
        wanted = Signal()
        # The current segment's bank must keep its row open.
        same_bank = self._now_valid & (self._now.bank == next_.bank)
        m.d.comb += [
            wanted.eq(
                self._run
                & looked
                & ~hit
                & ~opened
                & ~same_bank
                & ~Array(busy[0] for busy in self._busy)[next_.bank]
                & ~self._issue
            ),
            self._precharge.eq(wanted & other),
            self._activate.eq(wanted & ~other & ~self._rrd[0]),
            self.segment.ready.eq(~self._next_valid),
        ]
        # A row that was just opened is a hit, too, but is not usable before tRCD.
        go = self._run & looked & Mux(opened, ~self._rcd[0], hit) & ~self._now_valid
        with m.If(self.segment.ready):
            m.d.sync += [next_.eq(self.segment.payload), self._next_valid.eq(self.segment.valid)]
        m.d.sync += [
            looked.eq(self._next_valid & self._run),
            hit.eq(opens & (Array(self._rows)[next_.bank] == next_.row)),
            other.eq(opens),
        ]
        with m.If(~self._run):
            m.d.sync += opened.eq(0)
        with m.If(self._activate):
            m.d.sync += opened.eq(1)
        with m.If(self._precharge):
            # Compare again, because the comparison in progress predates the precharge.
            m.d.sync += looked.eq(0)
        with m.If(go):
            m.d.sync += [
                self._now.eq(next_),
                self._now_valid.eq(1),
                self._next_valid.eq(0),
                looked.eq(0),
                opened.eq(0),
            ]
        # Without a command, bank and address are don't-care, so they need not wait for the decision.
        one_bank = Cat(next_.row[:10], next_.row[10:11] & ~other, next_.row[11:])
        m.d.sync += [self.bank.eq(next_.bank), self.address.eq(one_bank)]
        with m.If(self._precharge):
            m.d.sync += self.operation.eq(Operation.PRECHARGE)
        with m.If(self._activate):
            m.d.sync += self.operation.eq(Operation.ACTIVATE)

    def _units(self, m: Module) -> None:
        """Read or write the units of the current segment, at most one in two cycles."""
        now, issue = self._now, self._issue
        second = Signal()  # the second column of the last unit is on the data pads
        final = Signal()
        first = Signal()
        inside = (self.word_units - 1).bit_length()
        # A write waits for its data and for the turnaround of the data pads. A read needs room only for its first unit.
        ready = Mux(now.write, self.have & ~self._turn[0], self.room | ~first)
        m.d.comb += [
            first.eq(now.unit[:inside] == 0),
            final.eq(now.more == 0),
            issue.eq(self._run & self._now_valid & ~second & ready),
            self.read.eq(issue & ~now.write),
            self.write.eq(issue & now.write),
            self.reserve.eq(self.read & first),
        ]
        m.d.sync += [second.eq(issue), self.written.eq(self.write & final & now.last)]
        with m.If(issue):
            m.d.sync += [now.unit.eq(now.unit + 1), now.more.eq(now.more - 1)]
            with m.If(final):
                m.d.sync += self._now_valid.eq(0)
            m.d.sync += [
                self.operation.eq(Mux(now.write, Operation.WRITE, Operation.READ)),
                self.bank.eq(now.bank),
                self.address.eq(_column(now.unit)),
            ]

    def _maintain(self, m: Module) -> None:
        """Initialise the chip; then run, with pauses for refreshes."""
        cycles = self.cycles
        timer = Signal(range(max(cycles.power_up, cycles.rfc) + 1), init=cycles.power_up)
        elapsed = Signal()
        interval = Signal(range(cycles.refresh), init=cycles.refresh - 1)
        due = Signal()
        refreshes = Signal(range(INIT_REFRESHES), init=INIT_REFRESHES - 1)  # after the next one
        # `timer` counts down to the next state's command, `interval` to the next refresh.
        m.d.comb += elapsed.eq(timer == 0)
        m.d.sync += [timer.eq(timer - ~elapsed), interval.eq(interval - 1)]
        with m.If(interval == 0):
            m.d.sync += [interval.eq(cycles.refresh - 1), due.eq(1)]
        # Initialisation: precharge all banks, refresh several times, set the mode register. Later refreshes go through
        # CLOSE, REFRESH and REOPEN.
        mode = ModeRegister.const({"burst": (UNIT // 2 - 1).bit_length(), "cas_latency": self.cas_latency})
        with m.FSM():
            with m.State("CLOSE"):
                m.d.sync += self.address.eq(ALL_BANKS)
                with m.If(elapsed & ~Cat(busy[0] for busy in self._busy).any() & ~self.restart):
                    m.d.comb += self._close_all.eq(1)
                    m.d.sync += [self.operation.eq(Operation.PRECHARGE), timer.eq(cycles.rp - 1)]
                    m.next = "REFRESH"
            with m.State("REFRESH"):
                with m.If(self.restart):
                    m.next = "CLOSE"
                with m.Elif(elapsed):
                    m.d.sync += [
                        self.operation.eq(Operation.REFRESH),
                        timer.eq(cycles.rfc - 1),
                        due.eq(0),
                    ]
                    with m.If(refreshes != 0):
                        m.d.sync += refreshes.eq(refreshes - 1)
                    with m.Elif(self.awake):
                        m.next = "REOPEN"
                    with m.Else():
                        m.next = "MODE"
            with m.State("MODE"):
                m.d.sync += [self.bank.eq(0), self.address.eq(mode)]
                with m.If(elapsed):
                    m.d.sync += [
                        self.operation.eq(Operation.MODE),
                        timer.eq(cycles.mrd - 1),
                        self.awake.eq(1),
                    ]
                    m.next = "WAIT"
            with m.State("REOPEN"):
                m.d.sync += [self.bank.eq(self._now.bank), self.address.eq(self._now.row)]
                with m.If(elapsed):
                    with m.If(self._now_valid):  # the refresh interrupted this segment
                        m.d.comb += self._reopen.eq(1)
                        m.d.sync += [self.operation.eq(Operation.ACTIVATE), timer.eq(cycles.rcd - 1)]
                    m.next = "WAIT"
            with m.State("WAIT"), m.If(elapsed):
                m.next = "RUN"
                m.d.sync += self._run.eq(1)
            with m.State("RUN"), m.If(due | ~self.awake):
                m.next = "CLOSE"
                m.d.sync += self._run.eq(0)
        with m.If(self.restart):
            m.d.sync += [self.awake.eq(0), refreshes.eq(INIT_REFRESHES - 1)]


def _column(unit: Value) -> Value:
    """Return the address pads for the first column of `unit`. Pad 10 is not part of the column."""
    column = Cat(Const(0, 1), unit)
    return Cat(column[:10], Const(0, 1), column[10:])
