"""Simulation model of the SDRAM chip, which checks every command against the data sheet's rules."""

from __future__ import annotations

import enum

from amaranth.hdl import Array, Cat, ClockSignal, Const, Instance, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from weft.boards.flash.model import ChipModel
from weft.boards.sdram.chip import (
    BANKS,
    COLUMN_BITS,
    INIT_REFRESHES,
    ROW_BITS,
    ModeRegister,
    Operation,
    SdramTiming,
    sdram_pads,
)

POSTPONED = 8
"""Largest number of overdue refreshes."""
MASK_LATENCY = 2
"""Cycles from a mask to the word read that it hides."""
SMALL_BITS = 14
"""log2 of the largest number of words for which the array is an Amaranth memory."""


class Rule(enum.IntEnum):
    """Rules for command sequences; the value is the bit in `SdramModel.violation`."""

    INIT = 0
    """Command before power-up is complete; refresh or mode register before all banks were precharged; activate before 8
    refreshes and the mode register."""
    MODE = 1
    """Mode register with a reserved value, interleaved bursts, or a CAS latency too short for the clock."""
    UNSUPPORTED = 2
    """Valid operation that this model does not implement: burst stop, auto-precharge, power-down, self-refresh."""
    RCD = 3
    RP = 4
    RAS = 5
    RC = 6
    RRD = 7
    RFC = 8
    WR = 9
    MRD = 10
    REFRESH = 11
    """More overdue refreshes than `POSTPONED`."""
    CLOSED = 12
    """Read or write of a bank whose row is not open."""
    OPEN = 13
    """Activate of a bank whose row is open; refresh or mode register while a row is open."""
    BURST = 14
    """Burst cut short by the next burst or by a precharge. The chip allows it, but data are lost."""
    CONTENTION = 15
    """Data pads driven by both sides, or by the controller in the cycle after the chip."""
    UNDRIVEN = 16
    """Unmasked word that is written but not driven by the controller."""


class SdramModel(ChipModel):
    """16-bit single-data-rate SDRAM with four banks. A cycle of its clock is one of `sync`.

    Parameters
    ----------
    clock : float
        Frequency in Hz, for the timings.
    timing : SdramTiming
    row_bits, column_bits : int
        Address bits of stored rows and columns; higher address bits are ignored. The default is a chip of 32 MB. Above
        32 KB the design's Verilog needs `weft.boards.sdram.chip.ARRAY_VERILOG`.
    delay : int
        Cycles that words read take to the controller in addition to the CAS latency: the controller's `capture`.

    Members
    -------
    upset : In(1)
        The clock edge coincides with changing pads: commands are lost, and the chip's state, too.
    pads : In(sdram_pads())
        ``dq_i`` has an alternating pattern if no side drives it or the mask hides it.
    violation : Out(len(Rule))
        Rules broken since reset, one bit each; see `weft.boards.flash.model.broken_rules`.
    """

    def __init__(
        self,
        clock: float,
        timing: SdramTiming | None = None,
        *,
        row_bits: int = ROW_BITS,
        column_bits: int = COLUMN_BITS,
        delay: int = 0,
    ) -> None:
        self.timing, self.clock = timing or SdramTiming(), clock
        self.cycles = self.timing.cycles(clock)
        self.row_bits, self.column_bits, self.delay = row_bits, column_bits, delay
        super().__init__(sdram_pads(), Rule, upset=In(1))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        pads = self.pads
        operation = Signal(Operation)
        m.d.comb += operation.eq(
            Mux(pads.clk_en & pads.cs & ~self.upset, Cat(pads.ras, pads.cas, pads.we), Operation.NOP)
        )
        self._is = {kind: operation == kind for kind in Operation}
        self._mode = Signal(ModeRegister)
        self._initialise(m)
        self._timings(m)
        self._burst(m)
        return m

    def _age(self, m: Module, event: Value, name: str) -> Signal:
        """Return the number of cycles since `event`, saturating at 255."""
        age = Signal(8, init=255, name=name)
        m.d.sync += age.eq(Mux(event, 1, age + (age != 255)))
        return age

    def _initialise(self, m: Module) -> None:
        is_, pads, cycles = self._is, self.pads, self.cycles
        power = Signal(range(cycles.power_up + 1))
        closed = Signal()
        mode_set = Signal()
        refreshes = Signal(range(INIT_REFRESHES + 1))
        with m.If((power != cycles.power_up) & pads.clk_en):
            m.d.sync += power.eq(power + 1)
        with m.If(is_[Operation.PRECHARGE] & pads.a[10]):
            m.d.sync += closed.eq(1)
        with m.If(is_[Operation.REFRESH] & (refreshes != INIT_REFRESHES)):
            m.d.sync += refreshes.eq(refreshes + 1)
        mode = ModeRegister(pads.a)
        with m.If(is_[Operation.MODE]):
            m.d.sync += [mode_set.eq(1), self._mode.eq(mode)]
        with m.If(self.upset):
            m.d.sync += [closed.eq(0), refreshes.eq(0), mode_set.eq(0), self._mode.as_value().eq(~0)]
        # `closed`: all banks were precharged once. `mode_set`: the mode register was written.
        early = (power != cycles.power_up) & ~is_[Operation.NOP]
        unclosed = (is_[Operation.REFRESH] | is_[Operation.MODE]) & ~closed
        unset = is_[Operation.ACTIVATE] & ~(mode_set & (refreshes == INIT_REFRESHES))
        self._report_violation(m, Rule.INIT, early | unclosed | unset)

        fast = [latency for latency in (2, 3) if not self._too_fast(latency)]
        latency_good = Cat(*(mode.cas_latency == latency for latency in fast)).any()
        good = latency_good & (mode.burst <= 3) & ~mode.interleaved
        self._report_violation(
            m,
            Rule.MODE,
            is_[Operation.MODE] & ~(good & ~mode.reserved.any() & ~mode.reserved_high.any() & (pads.ba == 0)),
        )
        column = is_[Operation.READ] | is_[Operation.WRITE]
        slept = ~pads.clk_en & (power != 0)
        self._report_violation(m, Rule.UNSUPPORTED, is_[Operation.STOP] | (column & pads.a[10]) | slept)

        owed = Signal(range((POSTPONED + 1) * cycles.refresh + 2))
        limit = (POSTPONED + 1) * cycles.refresh + 1
        # `owed` grows by one per cycle, and a refresh pays for one interval.
        with m.If(mode_set):
            paid = Mux(owed < cycles.refresh, 0, owed - cycles.refresh)
            m.d.sync += owed.eq(Mux(is_[Operation.REFRESH], paid, owed + (owed != limit)))
        self._report_violation(m, Rule.REFRESH, owed == limit)

    def _too_fast(self, latency: int) -> bool:
        try:
            self.timing.check_clock(self.clock, latency)
        except ValueError:
            return True
        return False

    def _timings(self, m: Module) -> None:
        """Track open rows, and check all rules on the time between two commands."""
        is_, pads, cycles = self._is, self.pads, self.cycles
        activate, precharge = is_[Operation.ACTIVATE], is_[Operation.PRECHARGE]
        column = is_[Operation.READ] | is_[Operation.WRITE]
        whole = is_[Operation.REFRESH] | is_[Operation.MODE]
        self._row = [Signal(self.row_bits, name=f"row{bank}") for bank in range(BANKS)]
        self._written = Signal(BANKS)  # one bit per bank: a word is written in this cycle
        opens = [Signal(name=f"open{bank}") for bank in range(BANKS)]
        activated = self._age(m, activate, "activated")
        refreshed = self._age(m, is_[Operation.REFRESH], "refreshed")
        moded = self._age(m, is_[Operation.MODE], "moded")
        self._report_violation(m, Rule.RRD, activate & (activated < cycles.rrd))
        self._report_violation(m, Rule.RFC, ~is_[Operation.NOP] & (refreshed < cycles.rfc))
        self._report_violation(m, Rule.MRD, ~is_[Operation.NOP] & (moded < cycles.mrd))
        for bank, opened in enumerate(opens):
            mine = pads.ba == bank
            closing = precharge & (mine | pads.a[10])
            activating = activate & mine
            age = self._age(m, activating, f"activated{bank}")
            closed = self._age(m, closing & opened, f"closed{bank}")
            written = self._age(m, self._written[bank], f"written{bank}")
            with m.If(activating):
                m.d.sync += [opened.eq(1), self._row[bank].eq(pads.a)]
            with m.If(closing | self.upset):
                m.d.sync += opened.eq(0)
            self._report_violation(m, Rule.RCD, column & mine & (age < cycles.rcd))
            self._report_violation(m, Rule.RP, (activating | whole) & (closed < cycles.rp))
            self._report_violation(m, Rule.RAS, closing & opened & (age < cycles.ras))
            self._report_violation(m, Rule.RC, activating & (age < cycles.rc))
            # A word written in the same cycle belongs to a burst that is cut short.
            self._report_violation(m, Rule.WR, closing & opened & (written < cycles.wr))
            self._report_violation(m, Rule.CLOSED, column & mine & ~opened)
            self._report_violation(m, Rule.OPEN, (activating | whole) & opened)

    def _burst(self, m: Module) -> None:
        """Track the current burst, and move its words to and from the array."""
        is_, pads = self._is, self.pads
        read, write = is_[Operation.READ], is_[Operation.WRITE]
        begins = read | write
        left = Signal(3)  # words of the burst that are left after the previous cycle
        length = ((1 << self._mode.burst) - 1)[:3]
        writes = Signal()
        bank = Signal(2)
        column = Signal(self.column_bits)
        now_writes, now_bank = Mux(begins, write, writes), Mux(begins, pads.ba, bank)
        asked = Cat(pads.a[:10], pads.a[11:])[: self.column_bits]
        now_column = Signal(self.column_bits)
        word = Signal()
        m.d.comb += [now_column.eq(Mux(begins, asked, column)), word.eq(begins | (left != 0))]
        # A burst stays within its block of columns.
        following = Cat(
            *(Mux(length[bit], (now_column + 1)[bit], now_column[bit]) for bit in range(3)), now_column[3:]
        )
        m.d.sync += [
            left.eq(Mux(begins, length, left - (left != 0))),
            column.eq(following),
            writes.eq(now_writes),
            bank.eq(now_bank),
        ]
        closes = is_[Operation.PRECHARGE] & (pads.a[10] | (pads.ba == bank))
        self._report_violation(m, Rule.BURST, (left != 0) & (begins | closes))
        stores = word & now_writes & ~(closes & ~begins)
        m.d.comb += self._written.eq(Mux(stores, 1 << now_bank, 0))
        self._report_violation(m, Rule.UNDRIVEN, stores & ~pads.dq_oe & ~pads.dqm.all())

        address = Cat(now_column, Array(self._row)[now_bank], now_bank)
        loaded = self._array(m, address, Mux(stores, ~pads.dqm, 0))
        self._send(m, word & ~now_writes, loaded)

    def _send(self, m: Module, valid: Value, word: Value) -> None:
        """Send words read to the pads after the CAS latency."""
        pads = self.pads
        # Pipeline of up to 3 cycles; a CAS latency of 2 takes the word one stage earlier.
        sent: list[tuple[Value, Value]] = []
        for stage in range(3):
            next_valid = Signal(name=f"valid{stage}")
            next_word = Signal(16, name=f"word{stage}")
            m.d.sync += [next_valid.eq(valid), next_word.eq(word)]
            valid, word = next_valid, next_word
            sent.append((valid, word))
        late = self._mode.cas_latency == 3
        drives = Mux(late, sent[2][0], sent[1][0])
        masks = [pads.dqm]
        for stage in range(MASK_LATENCY):
            masks.append(Signal(2, name=f"mask{stage}"))
            m.d.sync += masks[-1].eq(masks[-2])
        # Masks hide words `MASK_LATENCY` cycles later.
        drove = Signal()
        m.d.sync += drove.eq(drives & ~masks[-1].all())
        self._report_violation(m, Rule.CONTENTION, pads.dq_oe & ((drives & ~masks[-1].all()) | drove))

        # Undriven and masked bytes show an alternating pattern.
        visible = Cat((drives & ~mask).replicate(8) for mask in masks[-1])
        seen: Value = (Mux(late, sent[2][1], sent[1][1]) & visible) | (Const(0xA55A, 16) & ~visible)
        for stage in range(self.delay):
            delayed = Signal(16, name=f"delayed{stage}")
            m.d.sync += delayed.eq(seen)
            seen = delayed
        m.d.comb += pads.dq_i.eq(seen)

    def _array(self, m: Module, address: Value, strobe: Value) -> Value:
        """Return the word at `address`; write the word at the pads there, in the bytes that `strobe` selects."""
        bits = len(address)
        if bits <= SMALL_BITS:
            memory = Memory(shape=16, depth=1 << bits, init=[])
            m.submodules.array = memory
            write = memory.write_port(granularity=8)
            read = memory.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(address),
                write.data.eq(self.pads.dq_o),
                write.en.eq(strobe),
                read.addr.eq(address),
            ]
            return read.data
        word = Signal(16)
        m.submodules.array = Instance(
            "weft_sdram_array",
            p_BITS=bits,
            i_clk=ClockSignal(),
            i_address=address,
            i_write=strobe,
            i_write_data=self.pads.dq_o,
            o_read_data=word,
        )
        return word
