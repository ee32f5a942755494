"""An SDRAM chip behind the FPGA's pads, for simulation: in whole cycles, or with a clock whose phase can be moved."""

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
"""Pads that can be weak: name and bit."""
_FIELDS = {"capture": 2, "lost": 1, "weak": 1, "line": 6}
EYE_ARGUMENT = "sdram_eye"
"""Of the simulator's command line: what `encode` gives, in hexadecimal digits."""

EYE_VERILOG = f"""
module weft_sdram_eye #(parameter BITS = 1, parameter [BITS-1:0] USUAL = 0) (output [BITS-1:0] eye);
    reg [BITS-1:0] given;
    assign eye = given;
    initial if (!$value$plusargs("{EYE_ARGUMENT}=%h", given)) given = USUAL;
endmodule
"""
"""What a design with `usual_eye` needs."""


@dataclass(frozen=True)
class Phase:
    """What works in one phase of the chip's clock.

    Attributes
    ----------
    capture : int
        The one of `weft.boards.sdram.eye.CAPTURES` with which words are read; 0: with none, they are noise.
    lost : bool
        Commands are lost, and those before are forgotten.
    weak : bool
        One of `LINES`, that with the number `line`, comes too late at the chip in about every second cycle.
    """

    capture: int
    lost: bool = False
    weak: bool = False
    line: int = 0


def encode(eye: Sequence[Phase]) -> int:
    """An eye as `ChipBehindPads` takes it: phases from half a cycle before the calculated one on."""
    word = 0
    for phase in reversed(eye):
        bits = at = 0
        for value, width in zip(astuple(phase), _FIELDS.values(), strict=True):
            bits, at = bits | int(value) << at, at + width
        word = word << at | bits
    return word


def eye_layout(phases: int) -> data.ArrayLayout:
    """An encoded eye."""
    return data.ArrayLayout(data.StructLayout(_FIELDS), phases)


def eye_of(clock: float, phases: int, pads: PadDelays | None = None) -> list[Phase]:
    """The eye with the delays of some pads at a clock in Hz."""
    found = []
    for number in range(phases):
        degrees = 360 * ((phase_of(clock, phases) + number - phases // 2) % phases) / phases
        eyes = [eye_at(clock, degrees, capture, pads=pads) for capture in CAPTURES]
        read = [eye.capture for eye in eyes if min(eye.read_setup, eye.read_hold) >= 0]
        lost = min(eyes[0].write_setup, eyes[0].write_hold) < 0
        found.append(Phase(read[0] if read else 0, lost))
    return found


class ChipBehindPads(wiring.Component):
    """An SDRAM chip with the registers in the FPGA's pads, in front of a controller.

    Without `phases`, the chip's clock is late by the phase of `weft.boards.sdram.eye.best_eye`. In whole cycles that
    only shows in when a word that was read stands at its register: `weft.boards.sdram.eye.arrival` says so from the
    delays on its way.

    Parameters
    ----------
    clock : float
        Frequency in Hz.
    timing : SdramTiming, optional
    row_bits, column_bits : int
        See `weft.boards.sdram.model.SdramModel`.
    phases : int, optional
        Of a cycle.

    Members
    -------
    pads : In(sdram_pads())
    violation : Out(len(Rule))
    step : In(1)
        With `phases`: the clock moves to the next phase when it falls. The first one is in the middle of the eye's
        list.
    eye : In(eye_layout(phases))
        With `phases`.
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
        moved = {} if phases is None else {"step": In(1), "eye": In(eye_layout(phases))}
        super().__init__({"pads": In(sdram_pads()), "violation": Out(len(Rule)), **moved})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.chip = chip = self.chip
        pads = self.pads
        m.d.comb += self.violation.eq(chip.violation)
        outputs = (name for name, member in sdram_pads().members.items() if member.flow is Out)
        m.d.sync += [getattr(chip.pads, name).eq(getattr(pads, name)) for name in outputs]
        # The model's word stands for the cycle that begins with the chip's edge, the register's included.
        if self.phases is None:
            word: Value = self._taken(m, arrival(self.clock, best_eye(self.clock).phase) - CAS_LATENCY)[-1]
        else:
            word = self._phased(m, self.phases)
        m.d.comb += pads.dq_i.eq(word)
        return m

    def _taken(self, m: Module, stages: int) -> list[Value]:
        """The chip's word now and in earlier cycles."""
        words: list[Value] = [self.chip.pads.dq_i]
        for stage in range(stages):
            words.append(Signal(16, name=f"taken{stage}"))
            m.d.sync += words[-1].eq(words[-2])
        return words

    def _phased(self, m: Module, phases: int) -> Value:
        """What stands at the pads in the phase where the clock is."""
        number, before, noise = Signal(range(phases), init=phases // 2), Signal(), Signal(16, init=1)
        now: Any = Signal(data.StructLayout(_FIELDS))
        m.d.sync += [before.eq(self.step), noise.eq(Cat(noise[1:], (noise & 0x002D).xor()))]
        with m.If(before & ~self.step):
            m.d.sync += number.eq(Mux(number == phases - 1, 0, number + 1))
        m.d.comb += [now.eq(self.eye[number]), self.chip.upset.eq(now.lost)]
        earlier = Signal(len(LINES))  # what the registers in the pads held a cycle ago
        m.d.sync += earlier.eq(Cat(Value.cast(getattr(self.pads, name))[bit] for name, bit in LINES))
        for line, (name, bit) in enumerate(LINES):
            pad = Value.cast(getattr(self.chip.pads, name))[bit]
            with m.If(now.weak & (now.line == line) & noise[0]):
                m.d.sync += pad.eq(earlier[line])
        words = self._taken(m, len(CAPTURES) - 1)
        word = Signal(16)
        m.d.comb += word.eq(noise)
        for capture in CAPTURES:
            with m.If((now.capture == capture) & ~now.lost):
                m.d.comb += word.eq(words[capture - CAPTURES[0]])
        return word


def usual_eye(eye: Sequence[Phase], port: data.View) -> Instance:
    """The cell that gives a `ChipBehindPads` the eye of the simulator's command line, or else this one."""
    bits = len(Value.cast(port))
    return Instance("weft_sdram_eye", p_BITS=bits, p_USUAL=Const(encode(eye), bits), o_eye=Value.cast(port))
