"""Conversion of scores to probabilities in block floating point: exponent, table of powers of two, and sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.vector.requantise import SCORE_BITS


def lane_tables(
    m: Module,
    depth: int,
    indices: Sequence[Value],
    fill: Value,
    entry: Value,
    byte: Value,
    *,
    exclusive: bool = False,
) -> list[Signal]:
    """Add a table of `depth` bytes to `m`, with a read port for each lane.

    Two lanes share a copy, which is written through the port of the first lane. In a cycle with `fill`, `byte` is
    written to `entry`, and the results of reads are undefined. With `exclusive` nothing is read in such a cycle, so
    that synthesis can map a copy to one block RAM with two ports.

    Returns the entries at the lanes' `indices` of two cycles ago, in registers.
    """
    outputs = []
    for pair in range(0, len(indices), 2):
        m.submodules[f"copy_{pair}"] = ram = memory.Memory(shape=8, depth=depth, init=[])
        store = ram.write_port()
        m.d.comb += [store.en.eq(fill), store.data.eq(byte)]
        first = ram.read_port()
        ports = [first]
        if pair + 1 < len(indices):
            second = ram.read_port()
            ports.append(second)
        for lane, port in enumerate(ports, pair):
            m.d.comb += [port.en.eq(~fill if exclusive else 1), port.addr.eq(indices[lane])]
            output = Signal(8, name=f"output_{lane}", reset_less=True)
            m.d.sync += output.eq(port.data)
            outputs.append(output)
        m.d.comb += [
            first.addr.eq(Mux(fill, entry, indices[pair])),
            store.addr.eq(first.addr),
            first.en.eq(~fill),
        ]
    return outputs


PROBABILITY = 6
"""Cycles from `Probabilities.ends` to a vector's last probabilities."""
PEAK = -256
"""Exponent of a vector without valid scores."""
PEAK_BITS = 10
FRACTION = 7
"""Bits of a score below the binary point."""


def tree_stages(config: Config) -> int:
    """Return the number of pipeline registers in a tree over the lanes: one for every two levels."""
    return ((config.lanes - 1).bit_length() + 1) // 2


def sum_latency(config: Config) -> int:
    """Return the cycles from `Probabilities.ends` to the vector's sum."""
    return PROBABILITY + tree_stages(config) + 1


def sum_width(config: Config) -> int:
    return 8 + (config.n - 1).bit_length()


class Exp2Table(wiring.Component):
    """Table of powers of two, written by `weft.hdl.isa.Table`, with a read port for each lane.

    Members
    -------
    start : In(1)
        The next byte is written to entry 0.
    fill : In(1)
        Write `byte`. The results of reads in this cycle are undefined.
    byte : In(8)
    index : In(lanes x log2(table_depth))
    p : Out(lanes x 8)
        Entries at the indices of two cycles ago, in registers.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "fill": In(1),
                "byte": In(8),
                "index": In(data.ArrayLayout(range(config.table_depth), config.lanes)),
                "p": Out(data.ArrayLayout(8, config.lanes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entry = Signal(range(self.config.table_depth))
        with m.If(self.start):
            m.d.sync += entry.eq(0)
        with m.Elif(self.fill):
            m.d.sync += entry.eq(entry + 1)
        outputs = lane_tables(m, self.config.table_depth, list(self.index), self.fill, entry, self.byte)
        m.d.comb += [p.eq(output) for p, output in zip(self.p, outputs, strict=True)]
        return m


class Probabilities(wiring.Component):
    """Pipeline without back-pressure that converts scores to probabilities in block floating point.

    The first part takes up to one lane group of scores a cycle, stores it, and finds the exponent of the vector. The
    second part then takes all lane groups of the vector in consecutive cycles. The arithmetic is defined by
    `weft.hdl.isa.Softmax`, where ``peak`` is called ``e``.

    Parameters
    ----------
    config : Config

    Members
    -------
    valid, last, index : In(1), In(1), In(range(groups))
        `scores` belong to lane group `index`; it is the last group of its vector. Groups arrive in order.
    scores : In(lanes x int16)
        Q8.7.
    limit : In(range(N + 1))
        Number of valid columns of the vector, one cycle after each of its groups.
    used : Out(1)
        `limit` is used for the last group of a vector in this cycle.
    found : Out(1)
        `peak` changes to the exponent of the next vector, and stays for at least as many cycles as there are groups.
    peak : Out(int10)
    ends : Out(1)
        The vector's last probabilities follow `PROBABILITY` cycles later, and its sum `sum_latency` cycles later.
    p_valid, p, p_index : Out(1), Out(lanes x 8), Out(range(groups))
        Probabilities of a lane group.
    total : Out(sum_width)
        Sum of all probabilities of the vector, valid for one cycle.
    table_start, table_fill, table_byte : In(1), In(1), In(8)
        See `Exp2Table`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        index = range(max(config.groups, 2))
        super().__init__(
            {
                "valid": In(1),
                "last": In(1),
                "index": In(index),
                "scores": In(data.ArrayLayout(signed(SCORE_BITS), config.lanes)),
                "limit": In(range(config.n + 1)),
                "used": Out(1),
                "found": Out(1),
                "peak": Out(signed(PEAK_BITS)),
                "ends": Out(1),
                "p_valid": Out(1),
                "p": Out(data.ArrayLayout(8, config.lanes)),
                "p_index": Out(index),
                "total": Out(sum_width(config)),
                "table_start": In(1),
                "table_fill": In(1),
                "table_byte": In(8),
            }
        )
        # A score's own exponent, its distance below that, and whether it is within the limit.
        self._score = data.StructLayout({"peak": signed(PEAK_BITS), "below": FRACTION, "live": 1})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        scores, valid, last = self._split(m)
        self._find(m, scores, valid, last)
        waiting, peak, reading = self._wait(m, scores, valid)
        self._look_up(m, waiting, peak, reading)
        return m

    def _split(self, m: Module) -> tuple[list[data.View], Signal, Signal]:
        """Split scores into exponent and fraction, and mask them, in two stages."""
        config = self.config
        split_valid = Signal(2)
        split_last = Signal(2)
        split_index = Signal.like(self.index)
        m.d.sync += [
            split_valid.eq(Cat(self.valid, split_valid[0])),
            split_last.eq(Cat(self.last, split_last[0])),
            split_index.eq(self.index),
        ]
        m.d.comb += self.used.eq(split_valid[0] & split_last[0])
        result = []
        for lane in range(config.lanes):
            score = self.scores[lane]
            peak = Signal(signed(PEAK_BITS), name=f"peak_{lane}", reset_less=True)
            below = Signal(FRACTION, name=f"below_{lane}", reset_less=True)
            m.d.sync += [
                # The exponent is rounded up, so that `below` is never negative and a probability at most 1.
                peak.eq(score[FRACTION:].as_signed() + score[:FRACTION].any()),
                below.eq(-score[:FRACTION]),
            ]
            lane_bits = Const(lane, (config.lanes - 1).bit_length())
            column = Cat(lane_bits, split_index) if config.groups > 1 else lane_bits
            live = column < self.limit
            out = Signal(self._score, name=f"score_{lane}", reset_less=True)
            m.d.sync += [out.peak.eq(Mux(live, peak, PEAK)), out.below.eq(below), out.live.eq(live)]
            result.append(out)
        return result, split_valid[1], split_last[1]

    def _find(self, m: Module, scores: list[data.View], valid: Signal, last: Signal) -> None:
        """Find the maximum of the exponents, over lanes and then over lane groups."""

        def larger(a: Value, b: Value) -> Value:
            return Mux((a - b)[-1], b, a)

        (largest,) = _tree(m, [score.peak for score in scores], larger, "largest")
        stages = tree_stages(self.config)
        valid, last = delay(m, valid, stages, "largest_valid"), delay(m, last, stages, "largest_last")
        peak_so_far = Signal(signed(PEAK_BITS), init=PEAK)
        peak = Signal(signed(PEAK_BITS))
        candidate = larger(largest, peak_so_far) if self.config.groups > 1 else largest
        with m.If(valid):
            m.d.sync += peak_so_far.eq(Mux(last, PEAK, candidate))
        with m.If(valid & last):
            m.d.sync += peak.eq(candidate)
        m.d.sync += self.found.eq(valid & last)
        m.d.comb += self.peak.eq(peak)

    def _wait(
        self, m: Module, scores: list[data.View], valid: Signal
    ) -> tuple[list[data.View], Signal, Signal]:
        """Store scores until the exponent is found. Returns the scores, the exponent, and valid."""
        config = self.config
        width = self._score.size
        depth = 1 << (config.groups + tree_stages(config) + 3).bit_length()
        m.submodules.waiting = ram = memory.Memory(shape=width * config.lanes, depth=depth, init=[])
        store = ram.write_port()
        write_at = Signal(range(depth))
        read_at = Signal(range(depth))
        left = Signal(range(max(config.groups, 2)))  # lane groups to read after this cycle
        reading = Signal()
        m.d.sync += [write_at.eq(write_at + valid), read_at.eq(read_at + reading)]
        with m.If(self.found):
            m.d.sync += left.eq(config.groups - 1)
        with m.Elif(reading):
            m.d.sync += left.eq(left - 1)
        m.d.comb += [
            reading.eq(self.found | left.any()),
            self.ends.eq(left == 1 if config.groups > 1 else self.found),
            store.en.eq(valid),
            store.addr.eq(write_at),
            store.data.eq(Cat(*scores)),
        ]
        output = Signal(width * config.lanes, reset_less=True)
        if depth <= 32:  # distributed memory, which has no register of its own: register the address
            fetch = ram.read_port(domain="comb")
            m.d.sync += fetch.addr.eq(read_at)
        else:
            fetch = ram.read_port()
            m.d.comb += [fetch.addr.eq(read_at), fetch.en.eq(1)]
        m.d.sync += output.eq(fetch.data)
        waiting = [data.View(self._score, output.word_select(lane, width)) for lane in range(config.lanes)]
        return waiting, delay(m, self.peak, 2, "waiting_peak"), delay(m, reading, 2, "waiting_valid")

    def _look_up(self, m: Module, waiting: list[data.View], peak: Value, reading: Value) -> None:
        """Look up probabilities by the scores' distances from the exponent, and sum them."""
        config = self.config
        m.submodules.table = table = Exp2Table(config)
        m.d.comb += [
            table.start.eq(self.table_start),
            table.fill.eq(self.table_fill),
            table.byte.eq(self.table_byte),
        ]
        depth_bits = (config.table_depth - 1).bit_length()
        for lane, score in enumerate(waiting):
            octaves = Signal(signed(PEAK_BITS + 1), name=f"octaves_{lane}")
            near = Signal(name=f"near_{lane}", reset_less=True)
            index = Signal(depth_bits, name=f"index_{lane}", reset_less=True)
            m.d.comb += octaves.eq(peak - score.peak)
            distance = Cat(score.below, octaves[:4])
            m.d.sync += [
                # A score 16 octaves or more below the exponent has probability 0.
                near.eq(score.live & ~octaves[4:].any()),
                index.eq(distance[len(distance) - depth_bits :]),
            ]
            p = Signal(8, name=f"p_{lane}", reset_less=True)
            m.d.comb += [table.index[lane].eq(index), self.p[lane].eq(p)]
            m.d.sync += p.eq(Mux(delay(m, near, 2, f"near_{lane}"), table.p[lane], 0))
        m.d.comb += self.p_valid.eq(delay(m, reading, PROBABILITY - 2, "p_valid"))
        p_last = Const(1)
        if config.groups > 1:
            # Wraps by itself, because the number of groups is a power of two.
            m.d.sync += self.p_index.eq(self.p_index + self.p_valid)
            p_last = self.p_index.all()

        stages = tree_stages(config)
        (lanes,) = _tree(m, list(self.p), lambda a, b: a + b, "sum")
        valid, last = delay(m, self.p_valid, stages, "sum_valid"), delay(m, p_last, stages, "sum_last")
        so_far = Signal(sum_width(config))
        if config.groups > 1:
            with m.If(valid):
                m.d.sync += so_far.eq(Mux(last, 0, so_far + lanes))
        m.d.sync += self.total.eq(so_far + lanes)


def delay(m: Module, value: Value, cycles: int, name: str) -> Value:
    """Delay `value` by `cycles`, in registers `name` with the suffixes _0, _1, and so on."""
    for stage in range(cycles):
        register = Signal(value.shape(), name=f"{name}_{stage}")
        m.d.sync += register.eq(value)
        value = register
    return value


def _tree(
    m: Module, values: Sequence[Value], combine: Callable[[Value, Value], Value], name: str
) -> list[Value]:
    """Reduce `values` to a single value in a binary tree, with a register after every second level."""
    level = 0
    while len(values) > 1:
        values = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        level += 1
        if level % 2 == 0 or len(values) == 1:
            stage = []
            for index, value in enumerate(values):
                register = Signal(value.shape(), name=f"{name}_{level}_{index}", reset_less=True)
                m.d.sync += register.eq(value)
                stage.append(register)
            values = stage
    return list(values)
