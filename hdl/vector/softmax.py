"""The softmax pipeline that follows requantisation: mask, probabilities, row states, alignments."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.lib import ports
from weft.hdl.lib.pipeline import Tap
from weft.hdl.lib.ports import ALIGNMENT_BITS
from weft.hdl.vector.probabilities import (
    PEAK,
    PEAK_BITS,
    PROBABILITY,
    Probabilities,
    delay,
    sum_latency,
    sum_width,
    tree_stages,
)
from weft.hdl.vector.requantise import SCORE_BITS

_WIDTH = 21
"""Bits of a signed distance in columns: the sum of an int16 and 4096 groups of 128 columns."""


class Mask(wiring.Component):
    """Generator of the mask of a `weft.hdl.isa.Softmax` instruction: the number of valid columns of each vector.

    Of the N columns of a vector, the first `by_length` are within the length, and the first `by_diagonal` are before
    the diagonal.

    Parameters
    ----------
    config : Config

    Members
    -------
    start : In(1)
        A new instruction begins. The fields below are valid from the next cycle on, until the last step.
    causal, relative, register, length, diagonal : In
        Fields of the instruction.
    bases : In(BASES x 32)
        Base registers. Only without loops; with loops, ``register`` is the register's value.
    ready : Out(1)
        The outputs below are valid for the current vector.
    step : In(1)
        Advance to the next vector.
    last_ox, last_oy : In(1)
        The current vector is the last of its loop.
    by_length, by_diagonal : Out(range(N + 1))
    """

    def __init__(self, config: Config) -> None:
        self.n, self.loops = config.n, bool(config.loops)
        super().__init__(
            {
                "start": In(1),
                "causal": In(1),
                "relative": In(1),
                "register": In(32) if config.loops else In(range(BASES)),
                "length": In(signed(16)),
                "diagonal": In(signed(16)),
                **({} if config.loops else {"bases": In(data.ArrayLayout(32, BASES))}),
                "ready": Out(1),
                "step": In(1),
                "last_ox": In(1),
                "last_oy": In(1),
                "by_length": Out(range(config.n + 1)),
                "by_diagonal": Out(range(config.n + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Numbers of columns, counted from the first column of the current group.
        left = Signal(signed(_WIDTH), reset_less=True)  # within the length
        outer = Signal(signed(_WIDTH), reset_less=True)  # before the diagonal in row ox = 0
        inner = Signal(signed(_WIDTH), reset_less=True)  # before the diagonal in the current row

        # One adder computes both limits in turn.
        # Phase 0 reads the register, 1 adds the length, 2 stores this sum and adds the diagonal, 3 stores that sum.
        phase = Signal(3)
        base = Signal(32, reset_less=True)
        total = Signal(signed(32), reset_less=True)
        limit = Signal(signed(16))
        fits = total[15:].all() | ~total[15:].any()
        m.d.comb += limit.eq(Mux(fits, total[:16], Cat((~total[31]).replicate(15), total[31])))
        register_value = self.register if self.loops else self.bases[self.register]
        m.d.sync += [
            base.eq(Mux(self.relative, register_value, 0)),
            total.eq(base + Mux(phase[1], self.diagonal, self.length)),
        ]
        m.d.comb += self.ready.eq(phase[2])
        with m.If(self.start):
            m.d.sync += phase.eq(0)
        with m.Elif(~self.ready):
            m.d.sync += phase.eq(phase + 1)
        with m.If(phase == 2):
            m.d.sync += left.eq(limit)
        with m.If(phase == 3):
            # Columns up to the limit, inclusive.
            m.d.sync += Cat(outer, inner).eq((limit + Const(1, signed(_WIDTH)))[:_WIDTH].replicate(2))

        # In the next row one more column is before the diagonal; in the next group N fewer columns are valid.
        following = Signal(signed(_WIDTH))
        group = self.last_ox & self.last_oy
        m.d.comb += following.eq(
            Mux(self.last_ox, outer, inner) + Mux(self.last_ox, Mux(group, -self.n, 0), 1)
        )
        with m.If(self.step):
            m.d.sync += inner.eq(following)
            with m.If(group):
                m.d.sync += [outer.eq(following), left.eq(left - self.n)]

        m.d.comb += [
            self.by_length.eq(self._clamp(left)),
            self.by_diagonal.eq(Mux(self.causal, self._clamp(inner), self.n)),
        ]
        return m

    def _clamp(self, value: Value) -> Value:
        bits = (self.n - 1).bit_length()
        return Mux(value[-1], 0, Mux(value[bits:-1].any(), self.n, value[:bits]))


TOTAL = 3
"""Cycles from `RowStates.valid` to the sum of the vector."""
ALIGNED = 5
"""Cycles from `RowStates.valid` to the alignment."""
WRITTEN = 6
"""Cycles from `RowStates.valid` to the write; later reads return the new state."""
_CLAMP = 31


class RowStates(wiring.Component):
    """Memory of row states, with a pipeline without back-pressure that updates them.

    The arithmetic is defined by `weft.hdl.isa.Softmax`, where `peak` is called ``e``. One of the shifts ``u`` and ``v``
    is always 0, so only one of the two sums is shifted.

    Parameters
    ----------
    config : Config

    Members
    -------
    address : In(range(row_states))
        Address of the state to read.
    sum : Out(32)
        ``l`` of the state at `address` of two cycles ago, a register.
    valid : In(1)
        Update the state at `address`. Only after the previous update of this state has been written.
    fresh : In(1)
        Read with `valid`: start from m = -256, l = 0 instead of the stored state.
    peak : In(int10)
        Two cycles after `valid`.
    total : In(sum_width)
        `TOTAL` cycles after `valid`.
    final : In(1)
        Do not write states. Must not change while updates are in flight.
    aligned, alignment : Out(1), Out(signed)
        `ALIGNED` cycles after `valid`.
    written, write_address : Out(1), In(range(row_states))
        `WRITTEN` cycles after `valid`: the state is written to `write_address`, which has to be its `address`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "address": In(range(config.row_states)),
                "sum": Out(32),
                "valid": In(1),
                "fresh": In(1),
                "peak": In(signed(PEAK_BITS)),
                "total": In(sum_width(config)),
                "final": In(1),
                "aligned": Out(1),
                "alignment": Out(signed(ALIGNMENT_BITS)),
                "written": Out(1),
                "write_address": In(range(config.row_states)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        state = data.StructLayout({"m": signed(PEAK_BITS), "l": 32})
        m.submodules.ram = ram = memory.Memory(shape=state, depth=self.config.row_states, init=[])
        fetch = ram.read_port()
        store = ram.write_port()
        old = Signal(state, reset_less=True)
        m.d.comb += [fetch.en.eq(1), fetch.addr.eq(self.address), self.sum.eq(old.l)]
        m.d.sync += old.eq(fetch.data)

        # Two cycles after `valid`: the distance between the maxima, with either sign.
        fresh = delay(m, self.fresh, 2, "fresh")
        maximum = Signal(signed(PEAK_BITS))
        next_peak = Signal(signed(PEAK_BITS), reset_less=True)
        before = Signal(signed(PEAK_BITS), reset_less=True)
        old_sum = Signal(32, reset_less=True)
        higher = Signal(signed(PEAK_BITS + 1), reset_less=True)
        lower = Signal(signed(PEAK_BITS + 1), reset_less=True)
        m.d.comb += maximum.eq(Mux(fresh, PEAK, old.m))
        m.d.sync += [
            next_peak.eq(self.peak),
            before.eq(maximum),
            old_sum.eq(Mux(fresh, 0, old.l)),
            higher.eq(self.peak - maximum),
            lower.eq(maximum - self.peak),
        ]

        # Three cycles after: the sum with the lower maximum is to be shifted.
        rising = Signal()
        apart = Signal(PEAK_BITS + 1)
        m.d.comb += [rising.eq(~higher[-1]), apart.eq(Mux(rising, higher, lower))]
        added = self.total << 8
        amount = Signal(range(_CLAMP + 1), reset_less=True)
        rose = Signal(reset_less=True)
        shifted = Signal(32, reset_less=True)
        kept = Signal(32, reset_less=True)
        following = Signal(signed(PEAK_BITS), reset_less=True)
        m.d.sync += [
            amount.eq(Mux(apart[5:].any(), _CLAMP, apart[:5])),
            rose.eq(rising),
            following.eq(Mux(rising, next_peak, before)),
            shifted.eq(Mux(rising, old_sum, added)),
            kept.eq(Mux(rising, added, old_sum)),
        ]

        # Four cycles after: shift; the last bit that is shifted out rounds.
        quotient = Signal(33, reset_less=True)
        kept_next = Signal(32, reset_less=True)
        m.d.sync += [
            quotient.eq(Cat(0, shifted)[:33] >> amount),
            kept_next.eq(kept),
            self.alignment.eq(Mux(self.final, Mux(rose, 0, amount), Mux(rose, amount, -amount))),
        ]

        # Five cycles after: add and round.
        m.d.sync += [
            store.data.l.eq(kept_next + quotient[1:] + quotient[0]),
            store.data.m.eq(delay(m, following, 1, "following")),
        ]
        written = delay(m, self.valid, ALIGNED, "valid")
        m.d.comb += self.aligned.eq(written)
        m.d.sync += self.written.eq(written)
        m.d.comb += [store.en.eq(self.written & ~self.final), store.addr.eq(self.write_address)]
        return m


def vector_layout(config: Config) -> data.StructLayout:
    """Return the layout of the control data that accompanies a vector of scores.

    ``state``: address of its row state. ``fresh``: restart this state. ``dst``, ``alignment``: destinations of the
    results. ``end``: the vector is the last of its instruction.
    """
    return data.StructLayout(
        {
            "state": range(config.row_states),
            "fresh": 1,
            "dst": config.widths.scratchpad_address,
            "alignment": range(config.alignments),
            "end": 1,
        }
    )


class SoftmaxPipe(wiring.Component):
    """Softmax pipeline: `Probabilities` and `RowStates`, with taps that delay the control data of vectors.

    Parameters
    ----------
    config : Config
    entry : int
        Cycles from `push` to the last scores of the vector.

    Members
    -------
    begin, limit : In(1), In(range(N + 1))
        Begin a vector with `limit` valid columns, whose first scores follow `entry` cycles later.
    push, vector : In(1), In(vector_layout)
        Control data of a vector, whose last scores follow `entry` cycles later.
    valid, last, index, scores
        See `Probabilities`.
    final : In(1)
        See `RowStates`.
    table_start, table_fill, table_byte
        See `Exp2Table`. Not while scores are in flight.
    dividing, row, sum : In(1), In(range(row_states)), Out(32)
        While `dividing`, `sum` is the sum of state `row` of two cycles ago.
    p_valid, p, p_index, dst : Out(1), Out(lanes x 8), Out(range(groups)), Out
        Probabilities of a lane group, and the destination of the vector.
    alignment_write : Out(ports.alignment_write(config))
    ended : Out(1)
        The instruction's last vector has been written. Its alignment is written in this cycle, its state in the next.
    """

    def __init__(self, config: Config, entry: int) -> None:
        self.config = config
        self.entry = entry
        index = range(max(config.groups, 2))
        super().__init__(
            {
                "begin": In(1),
                "limit": In(range(config.n + 1)),
                "push": In(1),
                "vector": In(vector_layout(config)),
                "valid": In(1),
                "last": In(1),
                "index": In(index),
                "scores": In(data.ArrayLayout(signed(SCORE_BITS), config.lanes)),
                "final": In(1),
                "table_start": In(1),
                "table_fill": In(1),
                "table_byte": In(8),
                "dividing": In(1),
                "row": In(range(config.row_states)),
                "sum": Out(32),
                "p_valid": Out(1),
                "p": Out(data.ArrayLayout(8, config.lanes)),
                "p_index": Out(index),
                "dst": Out(config.widths.scratchpad_address),
                "alignment_write": Out(ports.alignment_write(config)),
                "ended": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config, stages = self.config, tree_stages(self.config)
        m.submodules.probabilities = probabilities = Probabilities(config)
        m.submodules.states = states = RowStates(config)
        for name in ("valid", "last", "index", "scores", "table_start", "table_fill", "table_byte"):
            m.d.comb += getattr(probabilities, name).eq(getattr(self, name))
        m.d.comb += [
            getattr(self, name).eq(getattr(probabilities, name)) for name in ("p_valid", "p", "p_index")
        ]

        # Cycles from `push`.
        ends = self.entry + stages + 2 + config.groups
        read = ends + sum_latency(config) - TOTAL
        event = delay(m, probabilities.ends, sum_latency(config) - TOTAL, "event")
        started = delay(m, event, TOTAL - 1, "started")
        # The first lane group may need its limit before the reads of the other groups are granted.
        m.submodules.limits = limits = Tap(self.limit.shape(), (self.entry + 1) // config.groups + 3)
        dst = self._tap(
            m, ("dst",), ends + PROBABILITY, delay(m, probabilities.ends, PROBABILITY, "dst_ends")
        )
        state = self._tap(m, ("state", "fresh"), read, event)
        aligned = self._tap(m, ("alignment", "end"), read + ALIGNED, states.aligned)
        written = self._tap(m, ("state",), read + WRITTEN, states.written)
        peak_words = (config.groups + sum_latency(config)) // config.groups + 2
        m.submodules.peaks = peaks = Tap(probabilities.peak.shape(), peak_words)
        m.d.comb += [
            limits.push.eq(self.begin),
            limits.i.eq(self.limit),
            limits.pop.eq(probabilities.used),
            probabilities.limit.eq(limits.o),
            self.dst.eq(dst.dst),
            peaks.push.eq(probabilities.found),
            peaks.i.eq(probabilities.peak),
            # The row state reads the exponent in this cycle, two cycles after `event`.
            peaks.pop.eq(started),
            states.valid.eq(event),
            states.address.eq(Mux(self.dividing, self.row, state.state)),
            states.fresh.eq(state.fresh),
            states.peak.eq(peaks.o),
            states.total.eq(probabilities.total),
            states.final.eq(self.final),
            states.write_address.eq(written.state),
            self.sum.eq(states.sum),
            self.alignment_write.valid.eq(states.aligned),
            self.alignment_write.address.eq(aligned.alignment),
            self.alignment_write.data.eq(states.alignment),
            self.ended.eq(states.aligned & aligned.end),
        ]
        return m

    def _tap(self, m: Module, names: tuple[str, ...], cycles: int, pop: Signal) -> data.View:
        """Return some fields of `vector`, delayed from `push` to `pop`, which is `cycles` later."""
        layout = data.StructLayout({name: self.vector[name].shape() for name in names})
        tap = Tap(layout, cycles // self.config.groups + 2)
        m.submodules[f"tap_{names[0]}_{cycles}"] = tap
        m.d.comb += [tap.push.eq(self.push), tap.pop.eq(pop)]
        m.d.comb += [tap.i[name].eq(self.vector[name]) for name in names]
        return tap.o
