"""The parts of the vector unit for softmax: they follow its sequence of reads, and work on requantised scores."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import BASES, Normalise, Softmax, Table, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.latencies import READ_LATENCY
from weft.hdl.lib import ports
from weft.hdl.lib.divide import RESULT, Divider
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.vector.mask import Mask
from weft.hdl.vector.probabilities import delayed
from weft.hdl.vector.requantise import LATENCY, SCORE_BITS, column_layout
from weft.hdl.vector.row_states import WRITTEN
from weft.hdl.vector.softmax import SoftmaxPipe, vector_layout
from weft.hdl.vector.vec_kinds import is_kind, row_strides, view

CHOSEN = READ_LATENCY + 2
"""Cycles from the grant of a read to the entry of requantisation."""
_UNDER_WAY = 15
"""More vectors than can be between the loop nest and the write of their row state."""

PLACE = data.StructLayout(
    dict.fromkeys(("first_ob", "first_ox", "first_g", "last_oy", "last_ox", "last_g"), 1)
)
"""The position of the unit's loop nest."""


def settings_layout(config: Config) -> data.StructLayout:
    """Fields of Softmax and Normalise that are needed after the start."""
    fields = {name: Softmax.layout()[name].shape for name in _SOFTMAX_FIELDS}
    return data.StructLayout(fields | {name: Normalise.layout()[name].shape for name in _NORMALISE_FIELDS})


_SOFTMAX_FIELDS = ("first", "final", "causal", "relative", "register", "length", "diagonal")
_NORMALISE_FIELDS = ("scaled", "scale", "exponent", "v_zero")
_GRANT = ("granted", "granted_note", "dst", "alignment", "first", "last", "end")


def note_layout(config: Config) -> data.StructLayout:
    """Facts about a vector of scores, noted when its read is requested: its row state, whether that is new, and how
    many of its lanes each mask leaves."""
    return data.StructLayout(
        {
            "state": range(config.row_states),
            "fresh": 1,
            "by_length": range(config.n + 1),
            "by_diagonal": range(config.n + 1),
        }
    )


class VecSoftmax(wiring.Component):
    """Row states, masks, divisions and probabilities for the vector unit.

    Parameters
    ----------
    config : Config

    Members
    -------
    load, payload : In(1), In(Vec.layout())
        The unit starts this instruction, of any kind.
    bases : In(BASES x 32)
        Base registers.
    softmax, normalise, table : Out(1)
        The kind of the current instruction; none of them for `Vec`.
    place, step : In(PLACE), In(1)
        Where the loop nest stands; it goes on.
    hold : Out(1)
        It must not go on yet.
    may_step : In(1)
        It goes on unless there is `hold`.
    note : Out(note_layout(config))
        What belongs to the vector of a `step`, for its `granted`.
    granted, granted_note, dst, alignment, first, last, end : In
        The read that a `step` led to is granted (or there was nothing to read), with the addresses of the
        vector in scratchpad and alignments, whether it is the vector's first or last one, and the instruction's last.
    row : In(1)
        Normalise begins a row: the first of its elements enters requantisation in the next cycle. From a register.
    scale : Out(column_layout)
        What Normalise has for parameters, in the cycle in which an element enters requantisation. 0 for others.
    byte_valid, byte : In(1), In(8)
        An element of `Table`.
    scores_valid, scores_last, scores_index, scores
        From requantisation, see `SoftmaxPipe`.
    p_valid, p, p_index, dst_written, ended
        See `SoftmaxPipe`, where `dst_written` is ``dst``.
    alignment_read, alignment_write
        See `weft.hdl.lib.ports`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        index = range(max(config.groups, 2))
        super().__init__(
            {
                "load": In(1),
                "payload": In(Vec.layout()),
                "bases": In(data.ArrayLayout(32, BASES)),
                "softmax": Out(1),
                "normalise": Out(1),
                "table": Out(1),
                "place": In(PLACE),
                "may_step": In(1),
                "step": In(1),
                "hold": Out(1),
                "note": Out(note_layout(config)),
                "granted": In(1),
                "granted_note": In(note_layout(config)),
                "dst": In(config.widths.scratchpad_address),
                "alignment": In(range(config.alignments)),
                "first": In(1),
                "last": In(1),
                "end": In(1),
                "row": In(1),
                "scale": Out(column_layout(config)),
                "byte_valid": In(1),
                "byte": In(8),
                "scores_valid": In(1),
                "scores_last": In(1),
                "scores_index": In(index),
                "scores": In(data.ArrayLayout(signed(SCORE_BITS), config.lanes)),
                "p_valid": Out(1),
                "p": Out(data.ArrayLayout(8, config.lanes)),
                "p_index": Out(index),
                "dst_written": Out(config.widths.scratchpad_address),
                "ended": Out(1),
                "alignment_read": Out(ports.alignment_read(config)),
                "alignment_write": Out(ports.alignment_write(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        settings = Signal(settings_layout(self.config), reset_less=True)
        with m.If(self.load):
            for kind, names in ((Softmax, _SOFTMAX_FIELDS), (Normalise, _NORMALISE_FIELDS)):
                m.d.sync += [settings[name].eq(view(kind, self.payload)[name]) for name in names]
            m.d.sync += [
                self.softmax.eq(is_kind(Softmax, self.payload)),
                self.normalise.eq(is_kind(Normalise, self.payload)),
                self.table.eq(is_kind(Table, self.payload)),
            ]
        # A grant is known late in its cycle, and wanted all over the place.
        grant = Signal(data.StructLayout({name: getattr(self, name).shape() for name in _GRANT}))
        m.d.sync += [grant[name].eq(getattr(self, name)) for name in _GRANT]
        m.submodules.rows = rows = self._rows(m)
        m.submodules.pipe = pipe = SoftmaxPipe(self.config, CHOSEN - 1 + LATENCY)
        self._scores(m, settings, rows, pipe)
        m.submodules.divider = divider = Divider()
        self._divide(m, settings, grant, pipe, divider)
        m.d.comb += divider.row.eq(self.normalise & rows.active)

        waits_for_state = self._under_way(m, grant)
        masked = self._mask(m, settings, rows, grant, pipe)
        new_row = self.place.first_ox & self.place.first_g
        holds = self.softmax & (waits_for_state | ~masked)
        m.d.comb += [
            self.hold.eq(holds | self.normalise & new_row & ~divider.ready),
            divider.issue.eq(self.normalise & new_row & self.step),
            # `step` without what only a division holds up.
            rows.step.eq(
                Mux(self.normalise, divider.step, self.softmax & self.may_step & ~holds & self.place.last_g)
            ),
        ]
        return m

    def _rows(self, m: Module) -> LoopNest:
        """Row states in the order of Softmax's vectors, or of Normalise's rows."""
        width = (self.config.row_states - 1).bit_length()
        loops = dict.fromkeys(("ob", "oy", "ox"), 12)
        rows = LoopNest(loops, {"state": (width, dict.fromkeys(loops, width))})
        fields = {loop: self.payload[loop] for loop in loops} | row_strides(m, self.payload)
        fields["ox"] = Mux(is_kind(Normalise, self.payload), 1, self.payload.ox)
        m.d.comb += [rows.load.eq(self.load), *rows.take(fields)]
        return rows

    def _under_way(self, m: Module, grant: data.View) -> Signal:
        """Whether the row state that the next vector needs may not be written yet.

        Rows come in the same order again and again, so the last vector of the same row is as many vectors ago as
        there are rows, and fewer than that must be under way. A vector counts as under way until one that is sent
        then reads its state behind this one's write.
        """
        rows, under_way = Signal(range(_UNDER_WAY + 1)), Signal(range(_UNDER_WAY + 1))
        excess = Signal(signed(len(rows) + 1))  # under_way - rows, of which only the sign is looked at
        begins = self.softmax & self.step & self.place.first_g
        # From the grant to here is what a step takes to get here at least, and from the first of the groups that
        # follow to the last there are as many cycles as groups, less one.
        early = CHOSEN + 1 + self.config.groups
        ends = delayed(m, self.softmax & grant.granted & grant.last, CHOSEN - 1 + max(WRITTEN + 1 - early, 0))
        m.d.sync += [under_way.eq(under_way + begins - ends), excess.eq(excess + begins - ends)]
        with m.If(self.load):
            m.d.sync += [rows.eq(0), excess.eq(under_way + begins - ends)]
        with m.Elif(begins & self.place.first_ob & (rows != _UNDER_WAY)):
            m.d.sync += [rows.eq(rows + 1), excess.eq(excess - ends)]
        waits = Signal()
        m.d.comb += waits.eq(self.place.first_g & ~self.place.first_ob & ~excess[-1])
        return waits

    def _mask(
        self, m: Module, settings: data.View, rows: LoopNest, grant: data.View, pipe: SoftmaxPipe
    ) -> Value:
        """Note facts about a vector at its step, and use them at the grant. Returns whether masks are ready."""
        m.submodules.mask = mask = Mask(self.config)
        m.d.comb += [getattr(mask, name).eq(settings[name]) for name in _SOFTMAX_FIELDS[2:]]
        m.d.comb += [
            mask.bases.eq(self.bases),
            mask.start.eq(self.load),
            mask.step.eq(self.softmax & self.step & self.place.last_g),
            mask.last_ox.eq(self.place.last_ox),
            mask.last_oy.eq(self.place.last_oy),
        ]
        note, granted = self.note, grant.granted_note
        vector = Signal(vector_layout(self.config))
        m.d.comb += [
            note.state.eq(rows.values.state),
            note.fresh.eq(settings.first & self.place.first_ob),
            note.by_length.eq(mask.by_length),
            note.by_diagonal.eq(mask.by_diagonal),
            vector.state.eq(granted.state),
            vector.fresh.eq(granted.fresh),
            vector.dst.eq(grant.dst),
            vector.alignment.eq(grant.alignment),
            vector.end.eq(grant.end),
            pipe.vector.eq(vector),
            pipe.begin.eq(self.softmax & grant.granted & grant.first),
            pipe.limit.eq(
                Mux(granted.by_length < granted.by_diagonal, granted.by_length, granted.by_diagonal)
            ),
            pipe.push.eq(self.softmax & grant.granted & grant.last),
        ]
        return mask.ready

    def _scores(self, m: Module, settings: data.View, rows: LoopNest, pipe: SoftmaxPipe) -> None:
        byte, fill = Signal(8, reset_less=True), Signal()
        m.d.sync += [byte.eq(self.byte), fill.eq(self.table & self.byte_valid)]
        m.d.comb += [
            pipe.valid.eq(self.softmax & self.scores_valid),
            pipe.last.eq(self.scores_last),
            pipe.index.eq(self.scores_index),
            pipe.scores.eq(self.scores),
            pipe.final.eq(settings.final),
            pipe.table_start.eq(self.load),
            pipe.table_fill.eq(fill),
            pipe.table_byte.eq(byte),
            pipe.dividing.eq(self.normalise),
            pipe.row.eq(rows.values.state),
            self.p_valid.eq(pipe.p_valid),
            self.p.eq(pipe.p),
            self.p_index.eq(pipe.p_index),
            self.dst_written.eq(pipe.dst),
            self.ended.eq(pipe.ended),
            self.alignment_write.valid.eq(pipe.alignment_write.valid),
            self.alignment_write.address.eq(pipe.alignment_write.address),
            self.alignment_write.data.eq(pipe.alignment_write.data),
        ]

    def _divide(
        self, m: Module, settings: data.View, grant: data.View, pipe: SoftmaxPipe, divider: Divider
    ) -> None:
        """Results of the division, from the row's first element to its last."""
        row = Signal(RESULT)
        alignment = Signal(signed(ports.ALIGNMENT_BITS))
        m.d.comb += [
            divider.start.eq(self.load),
            divider.sum.eq(pipe.sum),
            divider.take.eq(self.row),
            self.alignment_read.valid.eq(self.normalise & grant.granted),
            self.alignment_read.address.eq(grant.alignment),
        ]
        m.d.comb += [getattr(divider, name).eq(settings[name]) for name in _NORMALISE_FIELDS[1:]]
        scaled = Mux(settings.scaled, self.alignment_read.data, 0)
        m.d.comb += alignment.eq(delayed(m, scaled, CHOSEN - 1 - READ_LATENCY))
        with m.If(self.load):
            m.d.sync += row.eq(0)
        with m.Elif(divider.take):
            m.d.sync += row.eq(divider.result)

        shift = row.shift + alignment
        clamped = Mux(shift[-1], 0, Mux(shift[6:-1].any(), 63, shift[:6]))
        m.d.comb += [
            self.scale.bias.eq(row.bias),
            self.scale.mantissa.eq(row.mantissa),
            self.scale.shift.eq(Mux(self.normalise, clamped, 0)),
        ]
