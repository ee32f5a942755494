"""The unpacker: a stream of bus beats into vectors of the scratchpad."""

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
"""Vectors between the decision to cut one and the output: as many as the cycles that one takes, so that a vector leaves
in every cycle."""


def unpack_layout(config: Config) -> data.StructLayout:
    """A descriptor of one instruction for the unpacker.

    A row is unpacked in one pass over its run, with loops ``outer`` (pixels) and ``inner`` (vectors of a pixel); or,
    with ``split``, in one pass per vector of a pixel: ``outer`` counts vectors and passes, ``inner`` pixels.

    ``align``: the first row's address, modulo the bus width, as are ``align_row`` and ``align_line``: bytes from a row
    to the next one of its line, and to the next line. ``line_last``: rows of a line - 1. ``end``: before + run.
    ``run_last``: run - 1. ``tail``: lanes of a pixel's last vector. ``split_last``: bytes of a pixel ahead of the last
    pass. ``step_inner``, ``step_outer``: bytes from one vector to the next, and over the end of ``inner``.
    ``transpose``, with softmax only: pixels are to be transposed. ``int4``, where LOAD has it: words of the bus are to
    be widened. Rows begin with whole words then, and `run_last` is that of whole words, twice as many as come.
    ``blocks``, where LOAD has those: words are in groups behind their factors, which do not count here.
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
    """A vector for the scratchpad.

    ``signal``: for the last vector of an instruction, its signal mask, else 0. With softmax also ``last`` of the
    instruction and ``pixel_end``, the last of its pixel, the fill byte, whether to ``transpose``, and what
    `weft.hdl.load.transpose` makes addresses from: the strides of groups, of a pixel's vectors and of their bytes, and
    ``address``, which is right only in the first vector of an instruction that transposes.
    """
    address = config.widths.scratchpad_address
    layout: dict[str, int] = {"address": address, "data": config.widths.vector, "signal": SEMAPHORES}
    if config.softmax:
        layout |= {"last": 1, "pixel_end": 1, "fill": 8, "transpose": 1}
        layout |= dict.fromkeys(("dst_group", "dst_pixel", "dst_vector"), address)
    return data.StructLayout(layout)


def pass_layout(config: Config) -> data.StructLayout:
    """The start of a pass over a run, in beats: ``front`` beats before the run that hold only fill, then
    ``beats`` of the run. The next vector starts ``skip`` beats and ``position`` bytes after the window; fill ends
    ``lead`` bytes and the run ``left`` bytes after the vector's first byte."""
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
    """Computes the start of every pass of an instruction, two ahead of the unpacker: `following` comes a cycle after
    what it is computed from, and both move on together.

    Parameters
    ----------
    config : Config

    Members
    -------
    start : In(1)
        Take `unpack`; `following` describes its first pass two cycles later.
    unpack : In(unpack_layout(config))
    step : In(1)
        `following` is taken, and describes the pass after that in the next cycle. Also in the cycle after `start`.
    following : Out(pass_layout(config))
    fresh : Out(1)
        With `following`: its pass begins with a beat of the run.
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
        line = Signal(12)  # rows of the line after the current one
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
        """What brings the start of the pass that the registers stand for to `following`."""
        align_bits = (self.config.bus_bytes - 1).bit_length()
        origin = Signal(signed(18))  # of the row's first byte, from the first beat of its run
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
    """Cuts vectors out of runs, a vector per cycle.

    The window is two beats wide: a register, and the beat that waits at the input. What to do with them is decided a
    cycle before it is done, and depends on whoever takes the vectors through a count of free places only: neither the
    wide registers nor a refusal are behind the decision.

    Where no beat of a pass is left with its last vector, the first beat of the next pass comes into the window in that
    cycle: rows of whole beats take no cycle more than they have beats.

    Parameters
    ----------
    config : Config

    Members
    -------
    unpack : In(stream of unpack_layout(config))
    beat : In(stream of bus words)
        The beats of every run, exactly.
    vector : Out(stream of vector_layout(config))
    busy : Out(1)
    narrow : Out(1)
        Where LOAD has values of 4 bits: the beat that is taken next holds them.
    blocks : Out(1)
        Where LOAD has blocks of them: it belongs to a group, or is the factors in front of one.
    wanted : Out(1)
        With `blocks`: beats of the run are still to come.
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

        # The state: an instruction is active; a pass of it runs (vectors to emit) or drains (beats to drop), or
        # neither while the walker computes the first.
        active = Signal()
        running = Signal()
        draining = Signal()
        wait = Signal(2)
        # Flags over the counters in `at`, kept beside them for the sake of timing.
        front = Signal()
        outside = Signal()  # front | ~some: the next beat is outside the run and need not come
        near = Signal()  # the next vector starts in the window's first beat
        some = Signal()
        single = Signal()
        alone = Signal()  # the next vector lies in one beat
        # Steps of no whole beat, and of one: compared ahead of the first vector.
        hops_inner, hops_outer = Signal(2), Signal(2)
        # What happens in this cycle.
        have = Signal()
        carry, none, one = Signal(), Signal(), Signal()
        room = Signal(init=1)  # for a vector more; a register
        emit = Signal()
        shift = Signal()
        pop = Signal()
        cut_last = Signal()  # the next vector is the last one of its pass
        early = Signal()  # the beat at the input is the first one of the next pass, which begins with it
        pass_end = Signal()
        empty = Signal()  # where the pass ends or drains: no beat is left after this cycle
        finish = Signal()
        follow = Signal()
        step = Signal(16)
        moved = Signal(len(at.skip) + align_bits)
        crosses = Signal()  # the next vector starts in another beat than this one
        m.d.comb += [
            have.eq(outside | self.beat.valid),
            emit.eq((running & near & room) & (outside | self.beat.valid | alone)),
            step.eq(Mux(nest.last.inner, op.step_outer, op.step_inner)),
            # Position and beats to skip in one sum, with the beat that leaves the window now.
            moved.eq(step + Cat(at.position, have.replicate(len(at.skip)))),
            carry.eq((at.position + step[:align_bits])[-1]),
            none.eq(Mux(nest.last.inner, hops_outer[0], hops_inner[0])),
            one.eq(Mux(nest.last.inner, hops_outer[1], hops_inner[1])),
            crosses.eq(~none | carry),
            # `emit` comes late, so whatever else there is to know is known beside it.
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
        most = self.config.bus_bytes - self.config.n
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
                    # Down to 0; not as a multiplexer, of which synthesis makes a reset, behind more logic.
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
        """The vector at byte `position` of the window."""
        for bit in reversed(range(len(position))):
            stage = Signal(8 * (self.config.n + (1 << bit) - 1), name=f"rotate{bit}")
            m.d.comb += stage.eq(Mux(position[bit], window[8 << bit :], window))
            window = stage
        return window

    def _mask(self, at: data.View, limit: Value) -> Value:
        """The lanes that hold bytes of the run and of the pixel."""
        bits = (self.config.n - 1).bit_length()
        lead, left = at.lead[:bits], at.left[:bits]
        far, long = at.lead[bits:].any(), at.left[bits:].any()
        lanes = range(self.config.n)
        return Cat(*(~far & (lead <= lane) & (long | (left > lane)) & (limit > lane) for lane in lanes))

    def _cut(
        self, m: Module, emit: Value, shift: Value, at: data.View, limit: Value, op: data.View, nest: LoopNest
    ) -> tuple[Value, Value]:
        """Do what was decided, in the cycles after: move the window and rotate it; fill in, on the way to the queue.
        Returns whether there is a vector for it, and the vector."""
        n, config = self.config.n, self.config
        layout = data.StructLayout(
            dict(vector_layout(config).members) | {"data": n, "fill": 8}  # as `data`, valid lanes
        )
        shifts, emits, cuts = Signal(), Signal(), Signal()
        low, high = (Signal(config.widths.bus, name=name, reset_less=True) for name in ("low", "high"))
        position = Signal.like(at.position, reset_less=True)
        decided, described = (Signal(layout, name=name, reset_less=True) for name in ("decided", "described"))
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
        """Bring vectors to the output; returns whether one is on its way."""
        m.submodules.queue = queue = SyncFIFO(width=len(vector), depth=VECTORS - 1)
        output = self.vector
        free = Signal(range(VECTORS + 1), init=VECTORS)
        following = Signal(range(VECTORS + 1))
        m.d.comb += [
            queue.w_data.eq(vector),
            queue.w_en.eq(cut),
            queue.r_en.eq(~output.valid | output.ready),
            following.eq(free - emit + (output.valid & output.ready)),
        ]
        # A register, because a word of distributed memory comes late and fans out to all lanes of the transposer.
        with m.If(queue.r_en):
            m.d.sync += [output.valid.eq(queue.r_rdy), Value.cast(output.payload).eq(queue.r_data)]
        m.d.sync += [free.eq(following), room.eq(following != 0)]
        return free != VECTORS
