"""The carver: a stream of bus beats into vectors of the scratchpad."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.config import Config
from weft.hdl.isa import SEMAPHORES
from weft.hdl.loopnest import LoopNest


def carve_layout(config: Config) -> data.StructLayout:
    """What the carver does with the runs of one instruction.

    A row is carved in one pass over its run, with loops ``outer`` (pixels) and ``inner`` (vectors of a pixel); or,
    with ``split``, in one pass per vector of a pixel: ``outer`` counts vectors and passes, ``inner`` pixels.

    ``align`` and ``align_row``: the first row's address and the row pitch, modulo the bus width. ``end``: before +
    run. ``run_last``: run - 1. ``tail``: lanes of a pixel's last vector. ``split_last``: bytes of a pixel ahead of
    the last pass. ``step_inner``, ``step_outer``: bytes from one vector to the next, and over the end of ``inner``.
    ``transpose``, with softmax only: pixels are single vectors, to be transposed.
    """
    align = (config.bus_bytes - 1).bit_length()
    address = config.widths.scratchpad_address
    return data.StructLayout(
        {
            "signal": SEMAPHORES,
            "align": align,
            "align_row": align,
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
    )


def vector_layout(config: Config) -> data.StructLayout:
    """A vector for the scratchpad.

    ``signal``: for the last vector of an instruction, its signal mask, else 0. With softmax also ``last``, the fill
    byte, whether to ``transpose``, and what `weft.hdl.transpose` makes addresses from: the strides of groups and of
    vectors, and ``address``, which is right only in the first vector of an instruction that transposes.
    """
    address = config.widths.scratchpad_address
    layout: dict[str, int] = {"address": address, "data": config.widths.vector, "signal": SEMAPHORES}
    if config.softmax:
        layout |= {"last": 1, "fill": 8, "transpose": 1, "dst_group": address, "dst_vector": address}
    return data.StructLayout(layout)


def pass_layout(config: Config) -> data.StructLayout:
    """Where a pass over a run starts, seen from beats: ``front`` beats before the run that hold only fill, then
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
    """Computes the start of every pass of an instruction, one ahead of the carver.

    Parameters
    ----------
    config : Config

    Members
    -------
    start : In(1)
        Take `carve`; `following` describes its first pass two cycles later.
    carve : In(carve_layout(config))
    step : In(1)
        `following` is taken; it describes the pass after that two cycles later.
    following : Out(pass_layout(config))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "carve": In(carve_layout(config)),
                "step": In(1),
                "following": Out(pass_layout(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        op = Signal(carve_layout(self.config))
        align_bits = (self.config.bus_bytes - 1).bit_length()
        done = Signal(16)  # bytes of a pixel that earlier passes have carved
        with m.If(self.start):
            m.d.sync += [op.eq(self.carve), done.eq(0)]
        with m.Elif(self.step):
            with m.If(done == op.split_last):
                m.d.sync += [done.eq(0), op.align.eq(op.align + op.align_row)]
            with m.Else():
                m.d.sync += done.eq(done + self.config.n)

        origin = Signal(signed(18))  # of the row's first byte, from the first beat of its run
        ahead = Signal(17)
        following = self.following
        m.d.comb += [
            origin.eq(op.align - op.before),
            ahead.eq(origin[:align_bits] + done),
        ]
        m.d.sync += [
            following.front.eq(-(origin >> align_bits)),
            following.beats.eq(((op.align + op.run_last) >> align_bits) + 1),
            following.skip.eq((ahead >> align_bits) + 1),
            following.position.eq(ahead),
            following.lead.eq(Mux(op.before > done, op.before - done, 0)),
            following.left.eq(Mux(op.end > done, op.end - done, 0)),
        ]
        return m


class Carver(wiring.Component):
    """Cuts vectors out of runs, a vector per cycle.

    The window is two beats wide: a register, and the beat that waits at the input.

    Parameters
    ----------
    config : Config

    Members
    -------
    carve : In(stream of carve_layout(config))
    beat : In(stream of bus words)
        The beats of every run, exactly.
    vector : Out(stream of vector_layout(config))
    busy : Out(1)
    stall_memory : Out(1)
        The carver waits for a beat.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "carve": In(stream.Signature(carve_layout(config))),
                "beat": In(stream.Signature(config.widths.bus)),
                "vector": Out(stream.Signature(vector_layout(config))),
                "busy": Out(1),
                "stall_memory": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.walker = walker = PassWalker(self.config)
        loops, width = {"rows": 12, "outer": 16, "inner": 16}, self.config.widths.scratchpad_address
        m.submodules.nest = nest = LoopNest(loops, {"dst": (width, dict.fromkeys(loops, width))})
        op = Signal(carve_layout(self.config))
        at = Signal(pass_layout(self.config))
        low = Signal(self.config.widths.bus)  # the first beat of the window
        align_bits = (self.config.bus_bytes - 1).bit_length()

        # The state: an instruction is active; a pass of it runs (vectors to emit) or drains (beats to drop), or
        # neither while the walker computes the first.
        active = Signal()
        running = Signal()
        draining = Signal()
        wait = Signal(2)
        # Flags over the counters in `at`, kept beside them for the sake of timing.
        front = Signal()
        near = Signal()  # the next vector starts in the window's first beat
        some = Signal()
        single = Signal()
        alone = Signal()  # the next vector lies in one beat
        # What happens in this cycle.
        free = Signal()  # the next beat is outside the run and need not come
        have = Signal()
        advance = Signal()
        emit = Signal()
        shift = Signal()
        pop = Signal()
        pass_end = Signal()
        empty = Signal()  # where the pass ends or drains: no beat is left after this cycle
        finish = Signal()
        follow = Signal()
        step = Signal(16)
        reach = Signal(17)
        ahead = Signal.like(at.skip)
        m.d.comb += [
            free.eq(front | ~some),
            have.eq(free | self.beat.valid),
            advance.eq(~self.vector.valid | self.vector.ready),
            emit.eq(running & near & (have | alone) & advance),
            step.eq(Mux(nest.last.inner, op.step_outer, op.step_inner)),
            reach.eq(at.position + step),
            ahead.eq(reach >> align_bits),
            pass_end.eq(emit & nest.last.inner & (op.split | nest.last.outer)),
            shift.eq(have & (draining | pass_end | (running & ~near) | (emit & (ahead != 0)))),
            pop.eq(shift & ~free),
            self.beat.ready.eq(pop),
            empty.eq(~some | (single & ~front & self.beat.valid)),
            finish.eq((pass_end | draining) & empty),
            follow.eq(wait[1] | (finish & Mux(draining, nest.active, ~nest.last_all))),
            nest.step.eq(emit),
            walker.step.eq(follow),
            self.stall_memory.eq(((running & advance) | draining) & ~emit & ~have),
        ]
        m.d.sync += wait.eq(Cat(walker.start, wait[0]))
        most = self.config.bus_bytes - self.config.n
        with m.If(follow):
            m.d.sync += [
                at.eq(walker.following),
                alone.eq(walker.following.position <= most),
                Cat(running, draining, near, some).eq(0b1001),
                front.eq(walker.following.front != 0),
                single.eq(walker.following.beats == 1),
            ]
        with m.Else():
            with m.If(emit):
                m.d.sync += [
                    at.position.eq(reach),
                    alone.eq(reach[:align_bits] <= most),
                    at.lead.eq(Mux(at.lead > step, at.lead - step, 0)),
                    at.left.eq(Mux(at.left > step, at.left - step, 0)),
                    at.skip.eq(Mux(have, ahead - 1, ahead)),
                    near.eq((ahead == 0) | ((ahead == 1) & have)),
                ]
            with m.Elif(shift):
                m.d.sync += [at.skip.eq(at.skip - 1), near.eq(at.skip == 1)]
            with m.If(pass_end):
                m.d.sync += [front.eq(0), running.eq(0), draining.eq(~empty)]
            with m.Elif(shift & front):
                m.d.sync += [at.front.eq(at.front - 1), front.eq(at.front != 1)]
            with m.If(pop):
                m.d.sync += [at.beats.eq(at.beats - 1), some.eq(~single), single.eq(at.beats == 2)]
            with m.If(draining & empty):
                m.d.sync += draining.eq(0)
        with m.If(shift):
            m.d.sync += low.eq(self.beat.payload)

        m.d.comb += [
            self.carve.ready.eq(~active),
            walker.start.eq(self.carve.valid & self.carve.ready),
            walker.carve.eq(self.carve.payload),
            nest.load.eq(walker.start),
            *nest.take(self.carve.payload),
            self.busy.eq(active | self.vector.valid),
        ]
        with m.If(~active):
            m.d.sync += [active.eq(self.carve.valid), op.eq(self.carve.payload)]
        with m.Elif(finish & ~follow):
            m.d.sync += active.eq(0)
        limit = Mux(Mux(op.split, nest.last.outer, nest.last.inner), op.tail, self.config.n)
        self._output(m, emit, self._rotate(m, low, at.position), self._mask(at, limit), op, nest)
        return m

    def _rotate(self, m: Module, low: Value, position: Value) -> Value:
        """The vector at byte `position` of the window."""
        window: Value = Cat(low, self.beat.payload)
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

    def _output(
        self, m: Module, emit: Value, vector: Value, mask: Value, op: data.View, nest: LoopNest
    ) -> None:
        """A register behind the rotation; fill goes in after it, on the way to the scratchpad."""
        n, stream = self.config.n, self.vector
        rotated = Signal(8 * n)
        valid_lanes = Signal(n)
        fill = Signal(8)
        with m.If(emit):
            m.d.sync += [
                rotated.eq(vector),
                valid_lanes.eq(mask),
                fill.eq(op.fill),
                stream.payload.address.eq(nest.values.dst),
                stream.payload.signal.eq(Mux(nest.last_all, op.signal, 0)),
                stream.valid.eq(1),
            ]
            if self.config.softmax:
                m.d.sync += [
                    stream.payload.last.eq(nest.last_all),
                    stream.payload.transpose.eq(op.transpose),
                    stream.payload.dst_group.eq(op.dst_rows),
                    stream.payload.dst_vector.eq(op.dst_inner),
                ]
        with m.Elif(stream.ready):
            m.d.sync += stream.valid.eq(0)
        keep = Cat(*(lane.replicate(8) for lane in valid_lanes))
        m.d.comb += stream.payload.data.eq((rotated & keep) | (fill.replicate(n) & ~keep))
        if self.config.softmax:
            m.d.comb += stream.payload.fill.eq(fill)
