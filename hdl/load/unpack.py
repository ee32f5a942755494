"""The unpacker, which cuts a stream of bus beats into vectors for the scratchpad."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES
from weft.hdl.isa.config import Config
from weft.hdl.lib.loopnest import LoopNest

VECTORS = 5
"""Vectors between the decision to cut a vector and the output: the latency in cycles, so that a vector leaves in every
cycle."""


def unpack_layout(config: Config) -> data.StructLayout:
    """Return the layout of the unpacker's descriptor of one instruction.

    A row is unpacked in one pass over its run, with loops ``outer`` (pixels) and ``inner`` (vectors of a pixel); or,
    with ``split``, in one pass for each vector of a pixel: ``outer`` counts vectors and passes, ``inner`` pixels.

    Modulo the bus width: ``align``, the first row's address; ``align_row``, bytes from a row to the next row of its
    line; ``align_line``, bytes from the last row of a line to the next line. ``line_last``: rows of a line - 1.
    ``end``: before + run. ``run_last``: run - 1. ``tail``: lanes of a pixel's last vector. ``split_last``: bytes of a
    pixel before the last pass. ``step_inner``: bytes from a vector to the next. ``step_outer``: the same at the end of
    ``inner``.

    ``transpose``, only with softmax: transpose the pixels. ``int4``, if LOAD has it: widen the bus words; rows then
    begin with whole words, and `run_last` counts widened words, two for each word of the bus. ``blocks``, if LOAD has
    it: words come in groups after their factors, which are not counted here.
    """
    align = (config.bus_bytes - 1).bit_length()
    address = config.widths.scratchpad_address
    return data.StructLayout(
        {
            "signal": SEMAPHORES,
            "align": align,
            "align_row": align,
            "align_line": align,
            "line_last": 12,
            "before": 16,
            "end": 25,
            "run_last": 24,
            "fill": 8,
            "tail": (config.n - 1).bit_length() + 1,
            "split": 1,
            "split_last": 16,
            "step_inner": 16,
            "step_outer": 16,
            "rows": 12,
            "outer": 16,
            "inner": 16,
            "dst": address,
            "dst_rows": address,
            "dst_outer": address,
            "dst_inner": address,
        }
        | ({"transpose": 1} if config.softmax else {})
        | ({"int4": 1} if config.int4 else {})
        | ({"blocks": 1} if config.blocks else {})
    )


def vector_layout(config: Config) -> data.StructLayout:
    """Return the layout of a vector for the scratchpad.

    ``signal``: the signal mask of an instruction in its last vector, else 0. With softmax also ``last``, the last
    vector of an instruction; ``pixel_end``, the last vector of a pixel; ``fill``; ``transpose``; and the strides from
    which `weft.hdl.load.transpose` computes addresses: of groups, of the vectors of a pixel, and of their bytes. If an
    instruction transposes, ``address`` is valid only in its first vector.
    """
    address = config.widths.scratchpad_address
    layout: dict[str, int] = {"address": address, "data": config.widths.vector, "signal": SEMAPHORES}
    if config.softmax:
        layout |= {"last": 1, "pixel_end": 1, "fill": 8, "transpose": 1}
        layout |= dict.fromkeys(("dst_group", "dst_pixel", "dst_vector"), address)
    return data.StructLayout(layout)


def pass_layout(config: Config) -> data.StructLayout:
    """Return the layout of the state at the start of a pass over a run.

    ``front`` beats that hold only fill are followed by ``beats`` beats of the run. The next vector starts ``skip``
    beats and ``position`` bytes after the window. Fill ends ``lead`` bytes, and the run ``left`` bytes, after the first
    byte of the vector.
    """
    align = (config.bus_bytes - 1).bit_length()
    return data.StructLayout(
        {
            "front": 17 - align,
            "beats": 25 - align,
            "skip": 18 - align,
            "position": align,
            "lead": 16,
            "left": 25,
        }
    )


class PassWalker(wiring.Component):
    """Generator of the start of every pass of an instruction, two passes ahead of the unpacker.

    `following` is registered one cycle after the counters that it is computed from; both advance together.

    Parameters
    ----------
    config : Config

    Members
    -------
    start : In(1)
        Take `unpack`; `following` describes its first pass two cycles later.
    unpack : In(unpack_layout(config))
    step : In(1)
        `following` is used in this cycle, and describes the next pass in the next cycle. Also 1 in the cycle after
        `start`.
    following : Out(pass_layout(config))
    fresh : Out(1)
        The pass that `following` describes begins with a beat of the run.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "unpack": In(unpack_layout(config)),
                "step": In(1),
                "following": Out(pass_layout(config)),
                "fresh": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        op = Signal(unpack_layout(self.config))
        done = Signal(16)  # bytes of a pixel that earlier passes have unpacked
        line = Signal(12)  # remaining rows of the line
        described = self._describe(m, op, done)
        with m.If(self.start):
            m.d.sync += [op.eq(self.unpack), done.eq(0), line.eq(self.unpack.line_last)]
        with m.Elif(self.step):
            m.d.sync += described
            with m.If(done == op.split_last):
                m.d.sync += [
                    done.eq(0),
                    op.align.eq(op.align + Mux(line == 0, op.align_line, op.align_row)),
                    line.eq(Mux(line == 0, op.line_last, line - 1)),
                ]
            with m.Else():
                m.d.sync += done.eq(done + self.config.n)
        return m

    def _describe(self, m: Module, op: data.View, done: Signal) -> list[Any]:
        """Return statements that assign the start of the current pass to `following`."""
        align_bits = (self.config.bus_bytes - 1).bit_length()
        origin = Signal(signed(18))  # position of the row's first byte, from the first beat of its run
        ahead = Signal(17)
        following = self.following
        m.d.comb += [
            origin.eq(op.align - op.before),
            ahead.eq(origin[:align_bits] + done),
        ]
        return [
            self.fresh.eq(origin >= 0),
            following.front.eq(-(origin >> align_bits)),
            following.beats.eq(((op.align + op.run_last) >> align_bits) + 1),
            following.skip.eq((ahead >> align_bits) + 1),
            following.position.eq(ahead),
            following.lead.eq(Mux(op.before > done, op.before - done, 0)),
            following.left.eq(Mux(op.end > done, op.end - done, 0)),
        ]


class Unpacker(wiring.Component):
    """Cutter of runs of bus beats into vectors, one vector a cycle.

    The window is two beats wide: a register, and the beat at the input. Each action is decided a cycle before it is
    carried out. The decision depends on the receiver of the vectors only through a count of free places, so neither
    the wide registers nor back-pressure are on its path.

    If the last vector of a pass uses up the beats of the pass, the first beat of the next pass enters the window in the
    same cycle: rows of whole beats take as many cycles as they have beats.

    Parameters
    ----------
    config : Config

    Members
    -------
    unpack : In(stream of unpack_layout(config))
    beat : In(stream of bus words)
        Exactly the beats of every run.
    vector : Out(stream of vector_layout(config))
    busy : Out(1)
    narrow : Out(1)
        If LOAD has values of 4 bits: the next beat to be taken holds such values.
    blocks : Out(1)
        If LOAD has blocks: the next beat belongs to a group, or holds the factors of a group.
    wanted : Out(1)
        With `blocks`: more beats of the run follow.
    stall_memory : Out(1)
        The unpacker waits for a beat.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "unpack": In(stream.Signature(unpack_layout(config))),
                "beat": In(stream.Signature(config.widths.bus)),
                "vector": Out(stream.Signature(vector_layout(config))),
                "busy": Out(1),
                "stall_memory": Out(1),
            }
            | ({"narrow": Out(1)} if config.int4 else {})
            | ({"blocks": Out(1), "wanted": Out(1)} if config.blocks else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.walker = walker = PassWalker(self.config)
        loops, width = {"rows": 12, "outer": 16, "inner": 16}, self.config.widths.scratchpad_address
        m.submodules.nest = nest = LoopNest(loops, {"dst": (width, dict.fromkeys(loops, width))})
        op = Signal(unpack_layout(self.config))
        at = Signal(pass_layout(self.config))
        align_bits = (self.config.bus_bytes - 1).bit_length()

        # State: an instruction is active. A pass of it runs (vectors to emit), drains (beats to drop), or neither
        # while the walker computes the first pass.
        active = Signal()
        running = Signal()
        draining = Signal()
        wait = Signal(2)
        # Comparisons of the counters in `at`, kept in registers for the sake of timing.
        front = Signal()
        outside = Signal()  # front | ~some: the next beat is outside the run, so no beat is needed
        near = Signal()  # the next vector starts in the window's first beat
        some = Signal()
        single = Signal()
        alone = Signal()  # the next vector lies in one beat
        # Flags of steps of zero whole beats and of one, compared before the first vector.
        hops_inner = Signal(2)
        hops_outer = Signal(2)
        # Actions in this cycle.
        have = Signal()
        carry = Signal()
        none = Signal()
        one = Signal()
        room = Signal(init=1)  # there is room for one more vector; a register
        emit = Signal()
        shift = Signal()
        pop = Signal()
        cut_last = Signal()  # the next vector is the last vector of its pass
        early = Signal()  # the beat at the input is the first beat of the next pass
        pass_end = Signal()
        empty = Signal()  # if the pass ends or drains: no beat of it is left after this cycle
        finish = Signal()
        follow = Signal()
        step = Signal(16)
        moved = Signal(len(at.skip) + align_bits)
        crosses = Signal()  # the next vector starts in another beat than the current vector
        m.d.comb += [
            have.eq(outside | self.beat.valid),
            emit.eq((running & near & room) & (outside | self.beat.valid | alone)),
            step.eq(Mux(nest.last.inner, op.step_outer, op.step_inner)),
            # One sum of position and beats to skip, including the beat that leaves the window now.
            moved.eq(step + Cat(at.position, have.replicate(len(at.skip)))),
            carry.eq((at.position + step[:align_bits])[-1]),
            none.eq(Mux(nest.last.inner, hops_outer[0], hops_inner[0])),
            one.eq(Mux(nest.last.inner, hops_outer[1], hops_inner[1])),
            crosses.eq(~none | carry),
            # `emit` arrives late in the cycle, so everything else is computed in parallel to it.
            cut_last.eq(nest.last.inner & (op.split | nest.last.outer)),
            pass_end.eq(emit & cut_last),
            shift.eq((have & (draining | (running & ~near))) | (emit & (have & (cut_last | crosses)))),
            early.eq(running & cut_last & ~some & walker.fresh & self.beat.valid & ~nest.last_all),
            pop.eq((shift & ~outside) | (emit & early)),
            self.beat.ready.eq(pop),
            empty.eq(~some | (single & ~front & self.beat.valid)),
            finish.eq((pass_end | draining) & empty),
            follow.eq(
                (wait[1] | (draining & empty & nest.active)) | (emit & (cut_last & empty & ~nest.last_all))
            ),
            nest.step.eq(emit),
            walker.step.eq(follow | wait[0]),
            self.stall_memory.eq(((running & room) | draining) & ~emit & ~have),
        ]
        m.d.sync += wait.eq(Cat(walker.start, wait[0]))
        for hops, length in ((hops_inner, op.step_inner), (hops_outer, op.step_outer)):
            m.d.sync += hops.eq(Cat(length[align_bits:] == 0, length[align_bits:] == 1))
        most = self.config.bus_bytes - self.config.n  # highest position of a vector within one beat
        # Start the next pass, or advance the counters of the current pass.
        with m.If(follow):
            m.d.sync += [
                at.eq(walker.following),
                alone.eq(walker.following.position <= most),
                Cat(running, draining).eq(0b01),
                Cat(front, outside).eq((~walker.fresh).replicate(2)),
                Cat(near, some).eq(0b10),
                single.eq(walker.following.beats == 1),
            ]
            with m.If(early):
                m.d.sync += [
                    at.skip.eq(walker.following.skip - 1),
                    at.beats.eq(walker.following.beats - 1),
                    near.eq(walker.following.skip == 1),
                    Cat(some, outside).eq(Cat(walker.following.beats != 1, walker.following.beats == 1)),
                    single.eq(walker.following.beats == 2),
                ]
        with m.Else():
            with m.If(emit):
                m.d.sync += [
                    at.position.eq(moved[:align_bits]),
                    alone.eq(moved[:align_bits] <= most),
                    # Saturated at 0. Not a multiplexer: synthesis would turn it into a reset with more logic.
                    at.lead.eq((at.lead - step) & (at.lead > step).replicate(len(at.lead))),
                    at.left.eq((at.left - step) & (at.left > step).replicate(len(at.left))),
                    at.skip.eq(moved >> align_bits),
                    near.eq(~crosses | (have & Mux(carry, none, one))),
                ]
            with m.Elif(shift):
                m.d.sync += [at.skip.eq(at.skip - 1), near.eq(at.skip == 1)]
            with m.If(pass_end):
                m.d.sync += [front.eq(0), outside.eq(~some), running.eq(0), draining.eq(~empty)]
            with m.Elif(shift & front):
                m.d.sync += [at.front.eq(at.front - 1), Cat(front, outside).eq((at.front != 1).replicate(2))]
            with m.If(pop):
                m.d.sync += [at.beats.eq(at.beats - 1), some.eq(~single), single.eq(at.beats == 2)]
                m.d.sync += outside.eq(single)
            with m.If(draining & empty):
                m.d.sync += draining.eq(0)
        m.d.comb += [
            self.unpack.ready.eq(~active),
            walker.start.eq(self.unpack.valid & self.unpack.ready),
            walker.unpack.eq(self.unpack.payload),
            nest.load.eq(walker.start),
            *nest.take(self.unpack.payload),
        ]
        if self.config.int4:
            m.d.comb += self.narrow.eq(op.int4)
        if self.config.blocks:
            m.d.comb += [self.blocks.eq(op.blocks), self.wanted.eq(some)]
        with m.If(~active):
            m.d.sync += [active.eq(self.unpack.valid), op.eq(self.unpack.payload)]
        with m.Elif(finish & ~follow):
            m.d.sync += active.eq(0)
        limit = Mux(Mux(op.split, nest.last.outer, nest.last.inner), op.tail, self.config.n)
        cut = self._cut(m, emit, shift, at, limit, op, nest)
        waiting = self._queue(m, emit, room, *cut)
        m.d.comb += self.busy.eq(active | waiting)
        return m

    def _rotate(self, m: Module, window: Value, position: Value) -> Value:
        """Return the vector at byte `position` of the window."""
        # From the highest bit down: each stage only keeps the bytes that the following stages can still select.
        for bit in reversed(range(len(position))):
            stage = Signal(8 * (self.config.n + (1 << bit) - 1), name=f"rotate{bit}")
            m.d.comb += stage.eq(Mux(position[bit], window[8 << bit :], window))
            window = stage
        return window

    def _mask(self, at: data.View, limit: Value) -> Value:
        """Return a mask of the lanes that hold bytes of the run and of the pixel."""
        bits = (self.config.n - 1).bit_length()
        lead, left = at.lead[:bits], at.left[:bits]
        # Lanes only compare the low bits; larger distances exceed all of them.
        far, long = at.lead[bits:].any(), at.left[bits:].any()
        lanes = range(self.config.n)
        return Cat(*(~far & (lead <= lane) & (long | (left > lane)) & (limit > lane) for lane in lanes))

    def _cut(
        self, m: Module, emit: Value, shift: Value, at: data.View, limit: Value, op: data.View, nest: LoopNest
    ) -> tuple[Value, Value]:
        """Carry out the decision in the cycles that follow: shift the window, rotate it, and insert fill.

        Returns valid and value of the vector for the queue.
        """
        n, config = self.config.n, self.config
        layout = data.StructLayout(
            dict(vector_layout(config).members) | {"data": n, "fill": 8}  # as `data`, valid lanes
        )
        # The window shifts and rotates one cycle after the decision; fill is inserted another cycle later.
        shifts = Signal()
        emits = Signal()
        cuts = Signal()
        low = Signal(config.widths.bus, reset_less=True)
        high = Signal(config.widths.bus, reset_less=True)
        position = Signal.like(at.position, reset_less=True)
        decided = Signal(layout, reset_less=True)
        described = Signal(layout, reset_less=True)
        rotated = Signal(8 * n, reset_less=True)
        m.d.sync += [
            Cat(shifts, emits, cuts).eq(Cat(shift, emit, emits)),
            high.eq(self.beat.payload),
            position.eq(at.position),
            decided.address.eq(nest.values.dst),
            decided.signal.eq(Mux(nest.last_all, op.signal, 0)),
            decided.data.eq(self._mask(at, limit)),
            decided.fill.eq(op.fill),
            described.eq(decided),
            rotated.eq(self._rotate(m, Cat(low, high), position)),
        ]
        if config.softmax:
            m.d.sync += [
                decided.last.eq(nest.last_all),
                decided.pixel_end.eq(nest.last.inner),
                decided.transpose.eq(op.transpose),
                decided.dst_group.eq(op.dst_rows),
                decided.dst_pixel.eq(op.dst_outer),
                decided.dst_vector.eq(op.dst_inner),
            ]
        with m.If(shifts):
            m.d.sync += low.eq(high)
        vector = Signal(vector_layout(config))
        keep = Cat(*(lane.replicate(8) for lane in described.data))
        m.d.comb += [vector[name].eq(described[name]) for name, _ in vector_layout(config) if name != "data"]
        m.d.comb += vector.data.eq((rotated & keep) | (described.fill.replicate(n) & ~keep))
        return cuts, vector.as_value()

    def _queue(self, m: Module, emit: Value, room: Signal, cut: Value, vector: Value) -> Value:
        """Connect vectors to the output by way of a queue. Returns a flag: a vector is on the way."""
        m.submodules.queue = queue = SyncFIFO(width=len(vector), depth=VECTORS - 1)
        output = self.vector
        # Free places in queue and pipeline, counted at the decision to emit.
        free = Signal(range(VECTORS + 1), init=VECTORS)
        following = Signal(range(VECTORS + 1))
        m.d.comb += [
            queue.w_data.eq(vector),
            queue.w_en.eq(cut),
            queue.r_en.eq(~output.valid | output.ready),
            following.eq(free - emit + (output.valid & output.ready)),
        ]
        # A register, because the output of distributed memory is late and fans out to all lanes of the transposer.
        with m.If(queue.r_en):
            m.d.sync += [output.valid.eq(queue.r_rdy), Value.cast(output.payload).eq(queue.r_data)]
        m.d.sync += [free.eq(following), room.eq(following != 0)]
        return free != VECTORS
