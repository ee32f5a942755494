"""The matrix unit, which executes `Mm` instructions on the systolic array, and the memory of alignments."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES, Mm
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY, rmw_latency
from weft.hdl.lib import ports
from weft.hdl.lib.arithmetic import INFERRED, Multipliers
from weft.hdl.lib.pipeline import Delay
from weft.hdl.matrix.array import Array
from weft.hdl.matrix.mm_rows import ROW_LATENCY, RowIssuer, WeightLoader
from weft.hdl.memory import accumulator_write

IN_FLIGHT = 16
"""Exceeds the number of instructions between acceptance and signal: each takes at least N cycles to issue, and signals
at most 2 * N + 11 cycles later."""


class MmUnit(wiring.Component):
    """Matrix unit: executes `Mm` instructions, which multiply matrices on the systolic array.

    Two sequencers feed the array: one streams weights a tile ahead, also across instructions, the other streams rows.
    Without refused reads, a tile takes max(rows, N) cycles, with no idle cycle between tiles or instructions. A row
    that adds to a row of C waits if that row of C is still in the accumulator's pipeline.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers
        See `weft.hdl.matrix.array.Array`.

    Members
    -------
    instruction, signal, busy
        See `ports.unit`.
    a : Out(ports.scratchpad_read(config))
        Rows of A.
    b : Out(ports.scratchpad_read(config))
        Words of B. Must be granted in every cycle: ``ready`` is ignored.
    c : Out(accumulator_write(config))
    alignments : Out(ports.alignment_read(config))
        Only with softmax.
    row : Out(1)
        A row of A enters the array.
    write : Out(1)
        A row of C is written to the accumulator's memory.
    stall_weights, stall_port : Out(1)
        A row of A waits for the weights of its tile; or for a grant, or an earlier write to its row of C.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        self.config = config
        self.multipliers = multipliers
        members = {
            **ports.unit(Mm),
            "a": Out(ports.scratchpad_read(config)),
            "b": Out(ports.scratchpad_read(config)),
            "c": Out(accumulator_write(config)),
            "row": Out(1),
            "write": Out(1),
            "stall_weights": Out(1),
            "stall_port": Out(1),
        }
        if config.softmax:
            members["alignments"] = Out(ports.alignment_read(config))
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.weight_loader = weights = WeightLoader(self.config)
        m.submodules.rows = rows = RowIssuer(self.config)
        m.submodules.array = array = Array(self.config, self.multipliers)
        wiring.connect(m, wiring.flipped(self.a), rows.read)
        wiring.connect(m, wiring.flipped(self.b), weights.read)
        if self.config.softmax:
            wiring.connect(m, wiring.flipped(self.alignments), rows.alignments)
        m.d.comb += [
            weights.instruction.eq(self.instruction.payload),
            rows.instruction.eq(self.instruction.payload),
            rows.weights.eq(weights.ready),
            weights.swap.eq(rows.swap),
            array.a.eq(rows.a),
            array.swap.eq(rows.a_swap),
            array.b.eq(weights.b),
            array.latch.eq(weights.latch),
            self.row.eq(rows.a_valid),
            self.stall_weights.eq(rows.stall_weights),
            self.stall_port.eq(rows.stall_port),
        ]
        if self.config.depthwise_taps:
            m.d.comb += [
                array.valid.eq(rows.a_valid),
                array.depthwise.eq(rows.a_depthwise),
                array.start.eq(rows.a_start),
            ]
        self._accept(m, weights, rows)
        self._finish(m, rows, array)
        return m

    def _accept(self, m: Module, weights: WeightLoader, rows: RowIssuer) -> None:
        """Pass instructions to both sequencers.

        The weight loader takes an instruction as soon as it can, the row issuer in the same cycle or later. The
        instruction leaves the stream when the row issuer takes it.
        """
        taken = Signal()  # the weight loader has taken the instruction, the row issuer has not
        m.d.comb += [
            weights.load.eq(self.instruction.valid & ~taken & weights.free),
            self.instruction.ready.eq(rows.free & (taken | weights.free)),
            rows.load.eq(self.instruction.valid & self.instruction.ready),
        ]
        with m.If(rows.load):
            m.d.sync += taken.eq(0)
        with m.Elif(weights.load):
            m.d.sync += taken.eq(1)

    def _finish(self, m: Module, rows: RowIssuer, array: Array) -> None:
        """Join each row of C with its destination when it leaves the array, and signal when the last row is visible."""
        latency = ROW_LATENCY + array.latency
        valid = Signal(latency)
        m.submodules.destinations = destinations = Delay(len(rows.destination.as_value()), latency)
        destination = type(rows.destination)(rows.destination.shape(), destinations.o)
        m.d.sync += valid.eq(Cat(rows.issued, valid))
        m.d.comb += [
            destinations.i.eq(rows.destination),
            self.c.valid.eq(valid[-1]),
            self.c.address.eq(destination.address),
            self.c.overwrite.eq(destination.overwrite),
            self.c.psums.eq(array.c),
        ]
        if self.config.softmax:
            m.submodules.alignment_delay = alignment = Delay(len(rows.alignment), latency - READ_LATENCY)
            m.d.comb += [alignment.i.eq(rows.alignment), self.c.alignment.eq(alignment.o)]
        # A write is visible to reads `rmw_latency` cycles after it enters the accumulator; only then signal it.
        visible = rmw_latency(self.config)
        writes = Signal(visible)
        lasts = Signal(visible)
        masks = Signal(visible * SEMAPHORES)
        done = self.c.valid & destination.last
        m.d.sync += [
            writes.eq(Cat(self.c.valid, writes)),
            lasts.eq(Cat(done, lasts)),
            masks.eq(Cat(Mux(done, destination.signal, 0), masks)),
        ]
        running = Signal(range(IN_FLIGHT))
        m.d.sync += running.eq(running + rows.load - lasts[-1])
        m.d.comb += [
            # A row is at the memory's write port one cycle before it is visible.
            self.write.eq(writes[-2]),
            self.signal.eq(masks[-SEMAPHORES:]),
            self.busy.eq(running.any()),
        ]


class Alignments(wiring.Component):
    """Memory of ``config.alignments`` signed shifts, whose ports are always granted.

    A read in the same cycle as a write to the same address returns the old alignment.

    Parameters
    ----------
    config : Config
        With softmax.

    Members
    -------
    write : In(ports.alignment_write(config))
    mm, vec : In(ports.alignment_read(config))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "write": In(ports.alignment_write(config)),
                "mm": In(ports.alignment_read(config)),
                "vec": In(ports.alignment_read(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=ports.ALIGNMENT_BITS, depth=self.config.alignments, init=[]
        )
        store = memory.write_port()
        m.d.comb += self.write.ready.eq(1)
        m.d.sync += [
            store.en.eq(self.write.valid),
            store.addr.eq(self.write.address),
            store.data.eq(self.write.data),
        ]
        # Registers at address and output make the latency that of the other memories, `READ_LATENCY`.
        for name in ("mm", "vec"):
            port = getattr(self, name)
            fetch = memory.read_port()
            output = Signal(ports.ALIGNMENT_BITS, name=f"output_{name}", reset_less=True)
            m.d.comb += [port.ready.eq(1), port.data.eq(output)]
            m.d.sync += [fetch.en.eq(port.valid), fetch.addr.eq(port.address), output.eq(fetch.data)]
        return m
