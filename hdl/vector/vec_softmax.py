"""The softmax stage of the vector unit, which follows the sequence of reads and works on requantised scores."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Normalise, Softmax, Table
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.lib import ports
from weft.hdl.lib.arithmetic import RESULT, Divider
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.pipeline import register_port
from weft.hdl.vector.probabilities import delay
from weft.hdl.vector.requantise import LATENCY, SCORE_BITS, column_layout
from weft.hdl.vector.softmax import WRITTEN, Mask, SoftmaxPipe, vector_layout
from weft.hdl.vector.vec_streams import (
    VecSequence,
    grant_layout,
    index_range,
    is_kind,
    results_layout,
    row_strides,
    view,
)

CHOSEN = READ_LATENCY + 2
"""Cycles from the grant of a read to the entry of the element into requantisation."""
_IN_FLIGHT = 15
"""Exceeds the number of vectors that can be between the loop nest and the write of their row state."""


def settings_layout(config: Config) -> data.StructLayout:
    """Return the layout of the fields of Softmax and Normalise that are needed after the start.

    With loops, ``register`` is the register's value.
    """
    fields = {name: Softmax.layout()[name].shape for name in _SOFTMAX_FIELDS}
    if config.loops:
        fields["register"] = unsigned(32)
    return data.StructLayout(fields | {name: Normalise.layout()[name].shape for name in _NORMALISE_FIELDS})


_SOFTMAX_FIELDS = ("first", "final", "causal", "relative", "register", "length", "diagonal")
_NORMALISE_FIELDS = ("scaled", "scale", "exponent", "v_zero")


class VecSoftmax(wiring.Component):
    """Softmax stage of the vector unit: masks, probabilities, row states, and the divisions of Normalise.

    Parameters
    ----------
    config : Config

    Members
    -------
    sequence : In(Sequence(config))
        The reads of all kinds of instructions.
    bases or values
        See `weft.hdl.lib.pipeline.register_port`.
    normalise : Out(1)
        The current instruction is Normalise.
    row : In(1)
        The first element of a row enters requantisation in the next cycle. A register.
    scale : Out(column_layout)
        Parameters of Normalise, in the cycle in which an element enters requantisation; 0 for other instructions.
    byte_valid, byte : In(1), In(8)
        An element for `Table` to store.
    scores_valid, scores_last, scores_index, scores : In(1), In(1), In(index_range(config)), In(lanes x int16)
        Scores of a lane group from requantisation; `scores_last`: it is the last group of its vector.
    i, o : In(results_layout(config)), Out(results_layout(config))
        Results; and the data to write, which for Softmax are probabilities.
    alignment_read, alignment_write
        See `weft.hdl.lib.ports`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "sequence": In(VecSequence(config)),
                **register_port(Softmax, config),
                "normalise": Out(1),
                "row": In(1),
                "scale": Out(column_layout(config)),
                "byte_valid": In(1),
                "byte": In(8),
                "scores_valid": In(1),
                "scores_last": In(1),
                "scores_index": In(index_range(config)),
                "scores": In(data.ArrayLayout(signed(SCORE_BITS), config.lanes)),
                "i": In(results_layout(config)),
                "o": Out(results_layout(config)),
                "alignment_read": Out(ports.alignment_read(config)),
                "alignment_write": Out(ports.alignment_write(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sequence, place = self.sequence, self.sequence.place
        settings = Signal(settings_layout(self.config), reset_less=True)
        softmax = Signal()
        table = Signal()
        with m.If(sequence.load):
            for kind, names in ((Softmax, _SOFTMAX_FIELDS), (Normalise, _NORMALISE_FIELDS)):
                m.d.sync += [settings[name].eq(view(kind, sequence.payload)[name]) for name in names]
            if self.config.loops:
                m.d.sync += settings.register.eq(self.values[0])
            m.d.sync += [
                softmax.eq(is_kind(Softmax, sequence.payload)),
                self.normalise.eq(is_kind(Normalise, sequence.payload)),
                table.eq(is_kind(Table, sequence.payload)),
            ]
        # Registered, because a grant is late in its cycle and has a high fan-out.
        grant = Signal(grant_layout(self.config))
        m.d.sync += grant.eq(sequence.grant)
        m.submodules.rows = rows = self._rows(m)
        m.submodules.pipe = pipe = SoftmaxPipe(self.config, CHOSEN - 1 + LATENCY)
        self._scores(m, settings, rows, pipe, softmax, table)
        self._results(m, pipe, softmax)
        m.submodules.divider = divider = Divider()
        self._divide(m, settings, grant, pipe, divider)
        m.d.comb += divider.row.eq(self.normalise & rows.active)

        waits_for_state = self._wait_for_state(m, grant, softmax)
        masked = self._mask(m, settings, rows, grant, pipe, softmax)
        new_row = place.first_ox & place.first_g
        holds = softmax & (waits_for_state | ~masked)
        m.d.comb += [
            sequence.hold.eq(holds | self.normalise & new_row & ~divider.ready),
            divider.issue.eq(self.normalise & new_row & sequence.step),
            # `step`, without the condition that only holds up divisions.
            rows.step.eq(
                Mux(self.normalise, divider.step, softmax & sequence.may_step & ~holds & place.last_g)
            ),
        ]
        return m

    def _rows(self, m: Module) -> LoopNest:
        """Return a loop nest over the row states, in the order of Softmax's vectors or of Normalise's rows."""
        width = (self.config.row_states - 1).bit_length()
        loops = dict.fromkeys(("ob", "oy", "ox"), 12)
        rows = LoopNest(loops, {"state": (width, dict.fromkeys(loops, width))})
        payload = self.sequence.payload
        fields = {loop: payload[loop] for loop in loops} | row_strides(m, payload)
        fields["ox"] = Mux(is_kind(Normalise, payload), 1, payload.ox)
        m.d.comb += [rows.load.eq(self.sequence.load), *rows.take(fields)]
        return rows

    def _wait_for_state(self, m: Module, grant: data.View, softmax: Signal) -> Signal:
        """Return a flag: the row state that the next vector needs may not have been written yet.

        Rows repeat in the same order, so the previous vector of the same row is `row_count` vectors ago. Fewer vectors
        than that may be in flight. A vector is in flight until a vector that is issued then would read its state after
        the write.
        """
        place = self.sequence.place
        row_count = Signal(range(_IN_FLIGHT + 1))
        in_flight = Signal(range(_IN_FLIGHT + 1))
        excess = Signal(signed(len(row_count) + 1))  # in_flight - row_count; only the sign is used
        begins = softmax & self.sequence.step & place.first_g
        # A vector that is issued now uses its state at least `early` cycles later: its reads have a latency, and its
        # last lane group follows its first by `groups - 1` cycles. So `ends` may precede the write by this much.
        early = CHOSEN + 1 + self.config.groups
        ends = delay(
            m, softmax & grant.granted & grant.last, CHOSEN - 1 + max(WRITTEN + 1 - early, 0), "ends"
        )
        m.d.sync += [in_flight.eq(in_flight + begins - ends), excess.eq(excess + begins - ends)]
        with m.If(self.sequence.load):
            m.d.sync += [row_count.eq(0), excess.eq(in_flight + begins - ends)]
        with m.Elif(begins & place.first_ob & (row_count != _IN_FLIGHT)):
            m.d.sync += [row_count.eq(row_count + 1), excess.eq(excess - ends)]
        waits = Signal()
        m.d.comb += waits.eq(place.first_g & ~place.first_ob & ~excess[-1])
        return waits

    def _mask(
        self,
        m: Module,
        settings: data.View,
        rows: LoopNest,
        grant: data.View,
        pipe: SoftmaxPipe,
        softmax: Signal,
    ) -> Value:
        """Store the data of a vector at its step, and use it at the grant. Returns a flag: the mask is ready."""
        sequence = self.sequence
        m.submodules.mask = mask = Mask(self.config)
        m.d.comb += [getattr(mask, name).eq(settings[name]) for name in _SOFTMAX_FIELDS[2:]]
        m.d.comb += [
            *([] if self.config.loops else [mask.bases.eq(self.bases)]),
            mask.start.eq(sequence.load),
            mask.step.eq(softmax & sequence.step & sequence.place.last_g),
            mask.last_ox.eq(sequence.place.last_ox),
            mask.last_oy.eq(sequence.place.last_oy),
        ]
        note, granted = sequence.note, grant.note
        vector = Signal(vector_layout(self.config))
        m.d.comb += [
            note.state.eq(rows.values.state),
            note.fresh.eq(settings.first & sequence.place.first_ob),
            note.by_length.eq(mask.by_length),
            note.by_diagonal.eq(mask.by_diagonal),
            vector.state.eq(granted.state),
            vector.fresh.eq(granted.fresh),
            vector.dst.eq(grant.dst),
            vector.alignment.eq(grant.alignment),
            vector.end.eq(grant.end),
            pipe.vector.eq(vector),
            pipe.begin.eq(softmax & grant.granted & grant.first),
            pipe.limit.eq(
                Mux(granted.by_length < granted.by_diagonal, granted.by_length, granted.by_diagonal)
            ),
            pipe.push.eq(softmax & grant.granted & grant.last),
        ]
        return mask.ready

    def _scores(
        self,
        m: Module,
        settings: data.View,
        rows: LoopNest,
        pipe: SoftmaxPipe,
        softmax: Signal,
        table: Signal,
    ) -> None:
        entry_byte = Signal(8, reset_less=True)
        fill = Signal()
        m.d.sync += [entry_byte.eq(self.byte), fill.eq(table & self.byte_valid)]
        m.d.comb += [
            pipe.valid.eq(softmax & self.scores_valid),
            pipe.last.eq(self.scores_last),
            pipe.index.eq(self.scores_index),
            pipe.scores.eq(self.scores),
            pipe.final.eq(settings.final),
            pipe.table_start.eq(self.sequence.load),
            pipe.table_fill.eq(fill),
            pipe.table_byte.eq(entry_byte),
            pipe.dividing.eq(self.normalise),
            pipe.row.eq(rows.values.state),
            self.alignment_write.valid.eq(pipe.alignment_write.valid),
            self.alignment_write.address.eq(pipe.alignment_write.address),
            self.alignment_write.data.eq(pipe.alignment_write.data),
        ]

    def _results(self, m: Module, pipe: SoftmaxPipe, softmax: Signal) -> None:
        """Drive the output with probabilities if the instruction is Softmax, else with results."""
        # Probabilities of 8 bits are stored minus 128.
        offset = 0x80 if self.config.probability_bits == 8 else 0
        last = pipe.p_index == self.config.groups - 1
        with m.If(softmax):
            m.d.comb += [
                self.o.write.eq(pipe.p_valid & last),
                self.o.end.eq(pipe.ended),
                self.o.index.eq(pipe.p_index),
                self.o.dst.eq(pipe.dst),
                *(self.o.bytes[lane].eq(p ^ offset) for lane, p in enumerate(pipe.p)),
            ]
        with m.Else():
            m.d.comb += self.o.eq(self.i)

    def _divide(
        self, m: Module, settings: data.View, grant: data.View, pipe: SoftmaxPipe, divider: Divider
    ) -> None:
        """Drive `scale` with the result of the division, from the first element of a row to its last."""
        row_result = Signal(RESULT)
        alignment = Signal(signed(ports.ALIGNMENT_BITS))
        m.d.comb += [
            divider.start.eq(self.sequence.load),
            divider.sum.eq(pipe.sum),
            divider.take.eq(self.normalise & self.row),
            self.alignment_read.valid.eq(self.normalise & grant.granted),
            self.alignment_read.address.eq(grant.alignment),
        ]
        m.d.comb += [getattr(divider, name).eq(settings[name]) for name in _NORMALISE_FIELDS[1:]]
        scaled = Mux(settings.scaled, self.alignment_read.data, 0)
        # `grant` is one cycle late, and the element enters requantisation `CHOSEN` cycles after its grant.
        m.d.comb += alignment.eq(delay(m, scaled, CHOSEN - 1 - READ_LATENCY, "alignment"))
        with m.If(self.sequence.load):
            # The operand stage combines `scale` with stored parameters by OR.
            m.d.sync += row_result.eq(0)
        with m.Elif(divider.take):
            m.d.sync += row_result.eq(divider.result)

        # The requantiser shifts by 0 to 63.
        shift = row_result.shift + alignment
        clamped = Mux(shift[-1], 0, Mux(shift[6:-1].any(), 63, shift[:6]))
        m.d.comb += [
            self.scale.bias.eq(row_result.bias),
            self.scale.mantissa.eq(row_result.mantissa),
            self.scale.shift.eq(Mux(self.normalise, clamped, 0)),
        ]
