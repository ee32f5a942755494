"""Simulation model of the SDRAM chip, which checks every command against the data sheet's rules.

Behind the FPGA's pads, the chip has a fixed clock in whole cycles, or a movable clock phase.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from amaranth.hdl import Array, Cat, ClockSignal, Const, Instance, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.boards.flash.model import ChipModel
from weft.boards.sdram.chip import (
    A_BITS,
    BANKS,
    COLUMN_BITS,
    INIT_REFRESHES,
    ROW_BITS,
    ModeRegister,
    Operation,
    SdramTiming,
    sdram_pads,
)
from weft.boards.sdram.eye import CAPTURES, CAS_LATENCY, PadDelays, arrival, best_eye, eye_at, phase_of

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
        all_banks = is_[Operation.REFRESH] | is_[Operation.MODE]
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
            self._report_violation(m, Rule.RP, (activating | all_banks) & (closed < cycles.rp))
            self._report_violation(m, Rule.RAS, closing & opened & (age < cycles.ras))
            self._report_violation(m, Rule.RC, activating & (age < cycles.rc))
            # A word written in the same cycle belongs to a burst that is cut short.
            self._report_violation(m, Rule.WR, closing & opened & (written < cycles.wr))
            self._report_violation(m, Rule.CLOSED, column & mine & ~opened)
            self._report_violation(m, Rule.OPEN, (activating | all_banks) & opened)

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


LINES = [
    *(("dq_o", bit) for bit in range(16)),
    *(("a", bit) for bit in range(A_BITS)),
    *((name, bit) for name in ("ba", "dqm") for bit in range(2)),
    *((name, 0) for name in ("ras", "cas", "we")),
]
"""Pads that can be marginal, as (name, bit)."""
_FIELDS = {"capture": 2, "lost": 1, "weak": 1, "line": 6}
EYE_ARGUMENT = "sdram_eye"
"""Simulator argument: an encoded eye, in hexadecimal digits."""

EYE_VERILOG = f"""
module weft_sdram_eye #(parameter BITS = 1, parameter [BITS-1:0] USUAL = 0) (output [BITS-1:0] eye);
    reg [BITS-1:0] given;
    assign eye = given;
    initial if (!$value$plusargs("{EYE_ARGUMENT}=%h", given)) given = USUAL;
endmodule
"""
"""Verilog for designs with `usual_eye`."""


@dataclass(frozen=True)
class Phase:
    """Behaviour of the chip at one phase of its clock.

    Attributes
    ----------
    capture : int
        Capture cycle with which words read are correct, one of `weft.boards.sdram.eye.CAPTURES`; 0 if none, when words
        are noise.
    lost : bool
        Commands are lost, and the chip forgets earlier ones.
    weak : bool
        One pad reaches the chip too late in about every second cycle.
    line : int
        Index of that pad in `LINES`.
    """

    capture: int
    lost: bool = False
    weak: bool = False
    line: int = 0


def encode(eye: Sequence[Phase]) -> int:
    """Return an eye in the encoding of `ChipBehindPads`: phases from half a cycle before the calculated one on."""
    word = 0
    for phase in reversed(eye):
        bits = at = 0
        for value, width in zip(astuple(phase), _FIELDS.values(), strict=True):
            bits, at = bits | int(value) << at, at + width
        word = word << at | bits
    return word


def eye_layout(phases: int) -> data.ArrayLayout:
    """Return the layout of an encoded eye."""
    return data.ArrayLayout(data.StructLayout(_FIELDS), phases)


def eye_of(clock: float, phases: int, pads: PadDelays | None = None) -> list[Phase]:
    """Return the eye for the delays of `pads` at a clock in Hz."""
    eye = []
    for number in range(phases):
        degrees = 360 * ((phase_of(clock, phases) + number - phases // 2) % phases) / phases
        margins = [eye_at(clock, degrees, capture, pads=pads) for capture in CAPTURES]
        captures = [each.capture for each in margins if min(each.read_setup, each.read_hold) >= 0]
        lost = min(margins[0].write_setup, margins[0].write_hold) < 0
        eye.append(Phase(captures[0] if captures else 0, lost))
    return eye


class ChipBehindPads(wiring.Component):
    """SDRAM chip with the registers in the FPGA's pads, for a controller in simulation.

    Without `phases`, the chip's clock has the phase of `weft.boards.sdram.eye.best_eye`. In whole cycles, this phase
    only affects when a word read is at its register, which `weft.boards.sdram.eye.arrival` computes from the delays.

    Parameters
    ----------
    clock : float
        Frequency in Hz.
    timing : SdramTiming, optional
    row_bits, column_bits : int
        See `weft.boards.sdram.model.SdramModel`.
    phases : int, optional
        Phases per cycle.

    Members
    -------
    pads : In(sdram_pads())
    violation : Out(len(Rule))
    step : In(1)
        Only with `phases`: a falling edge moves the clock to the next phase. The first phase is the middle of the eye's
        list.
    eye : In(eye_layout(phases))
        Only with `phases`.
    """

    def __init__(
        self,
        clock: float,
        timing: SdramTiming | None = None,
        *,
        row_bits: int = ROW_BITS,
        column_bits: int = COLUMN_BITS,
        phases: int | None = None,
    ) -> None:
        self.clock, self.phases = clock, phases
        self.chip = SdramModel(clock, timing, row_bits=row_bits, column_bits=column_bits)
        members = {} if phases is None else {"step": In(1), "eye": In(eye_layout(phases))}
        super().__init__({"pads": In(sdram_pads()), "violation": Out(len(Rule)), **members})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.chip = chip = self.chip
        pads = self.pads
        m.d.comb += self.violation.eq(chip.violation)
        outputs = (name for name, member in sdram_pads().members.items() if member.flow is Out)
        m.d.sync += [getattr(chip.pads, name).eq(getattr(pads, name)) for name in outputs]
        # The model's word is valid in the cycle that begins with the chip's clock edge, including the register's cycle.
        if self.phases is None:
            word: Value = self._delay_words(m, arrival(self.clock, best_eye(self.clock).phase) - CAS_LATENCY)[
                -1
            ]
        else:
            word = self._word_at_phase(m, self.phases)
        m.d.comb += pads.dq_i.eq(word)
        return m

    def _delay_words(self, m: Module, stages: int) -> list[Value]:
        """Return the chip's word in this cycle and in `stages` earlier cycles."""
        words: list[Value] = [self.chip.pads.dq_i]
        for stage in range(stages):
            words.append(Signal(16, name=f"taken{stage}"))
            m.d.sync += words[-1].eq(words[-2])
        return words

    def _word_at_phase(self, m: Module, phases: int) -> Value:
        """Return the word at the pads at the clock's current phase."""
        number = Signal(range(phases), init=phases // 2)
        before = Signal()
        noise = Signal(16, init=1)
        now: Any = Signal(data.StructLayout(_FIELDS))
        m.d.sync += [before.eq(self.step), noise.eq(Cat(noise[1:], (noise & 0x002D).xor()))]
        with m.If(before & ~self.step):
            m.d.sync += number.eq(Mux(number == phases - 1, 0, number + 1))
        m.d.comb += [now.eq(self.eye[number]), self.chip.upset.eq(now.lost)]
        earlier = Signal(len(LINES))  # contents of the registers in the pads one cycle ago
        m.d.sync += earlier.eq(Cat(Value.cast(getattr(self.pads, name))[bit] for name, bit in LINES))
        for line, (name, bit) in enumerate(LINES):
            pad = Value.cast(getattr(self.chip.pads, name))[bit]
            with m.If(now.weak & (now.line == line) & noise[0]):
                m.d.sync += pad.eq(earlier[line])
        # A larger capture cycle takes an older word.
        words = self._delay_words(m, len(CAPTURES) - 1)
        # The controller reads noise unless its capture cycle is right for the phase.
        word = Signal(16)
        m.d.comb += word.eq(noise)
        for capture in CAPTURES:
            with m.If((now.capture == capture) & ~now.lost):
                m.d.comb += word.eq(words[capture - CAPTURES[0]])
        return word


def usual_eye(eye: Sequence[Phase], port: data.View) -> Instance:
    """Return a cell that drives `port` with the simulator argument's eye, or else with `eye`."""
    bits = len(Value.cast(port))
    return Instance("weft_sdram_eye", p_BITS=bits, p_USUAL=Const(encode(eye), bits), o_eye=Value.cast(port))
