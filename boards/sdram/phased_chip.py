"""SDRAM chip behind the FPGA's pads, for simulation: with a fixed clock in whole cycles, or with a movable clock
phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Instance, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.sdram.chip import A_BITS, COLUMN_BITS, ROW_BITS, SdramTiming, sdram_pads
from weft.boards.sdram.eye import CAPTURES, CAS_LATENCY, PadDelays, arrival, best_eye, eye_at, phase_of
from weft.boards.sdram.model import Rule, SdramModel

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
