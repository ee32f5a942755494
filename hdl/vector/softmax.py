"""The pipeline of softmax behind requantisation: probabilities, row states, alignments."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib import ports
from weft.hdl.lib.tap import Tap
from weft.hdl.vector.probabilities import (
    PROBABILITY,
    Probabilities,
    delayed,
    sum_latency,
    tree_stages,
)
from weft.hdl.vector.requantise import SCORE_BITS
from weft.hdl.vector.row_states import ALIGNED, TOTAL, WRITTEN, RowStates


def vector_layout(config: Config) -> data.StructLayout:
    """Control that travels with a vector of scores: the address of its row state and whether to start that
    anew, where its results go, and whether it is the last of its instruction."""
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
    """`Probabilities` and `RowStates`, with what vectors bring along waiting in taps for its time.

    Parameters
    ----------
    config : Config
    entry : int
        Cycles from `push` to the last scores of the vector.

    Members
    -------
    begin, limit : In(1), In(range(N + 1))
        A vector with that many valid columns, whose first scores come `entry` cycles later.
    push, vector : In(1), In(vector_layout)
        A vector whose last scores come `entry` cycles later.
    valid, last, index, scores
        See `Probabilities`.
    final : In(1)
        See `RowStates`.
    table_start, table_fill, table_byte
        See `Exp2Table`. Not while scores are under way.
    dividing, row, sum : In(1), In(range(row_states)), Out(32)
        While `dividing`, `sum` is the one of state `row` two cycles ago.
    p_valid, p, p_index, dst : Out(1), Out(lanes x 8), Out(range(groups)), Out
        Probabilities of a lane group, and the address of the vector.
    alignment_write : Out(ports.alignment_write(config))
    ended : Out(1)
        The last vector of the instruction has been written, its alignment is being written, and its state in the next
        cycle.
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
        event = delayed(m, probabilities.ends, sum_latency(config) - TOTAL)
        started = delayed(m, event, TOTAL - 1)
        # The first lane group needs its limit while others may still have to be granted.
        m.submodules.limits = limits = Tap(self.limit.shape(), (self.entry + 1) // config.groups + 3)
        dst = self._tap(m, ("dst",), ends + PROBABILITY, delayed(m, probabilities.ends, PROBABILITY))
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
        """Some members of `vector` from `push` to `pop`, `cycles` later."""
        layout = data.StructLayout({name: self.vector[name].shape() for name in names})
        tap = Tap(layout, cycles // self.config.groups + 2)
        m.submodules[f"tap_{names[0]}_{cycles}"] = tap
        m.d.comb += [tap.push.eq(self.push), tap.pop.eq(pop)]
        m.d.comb += [tap.i[name].eq(self.vector[name]) for name in names]
        return tap.o
