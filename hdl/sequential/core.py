"""The sequential core, which connects its units, and its scratchpad."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, ResetInserter, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import axi4_signature
from weft.hdl.control.control import AXI_LITE, connect_parity
from weft.hdl.control.counters import Counters
from weft.hdl.control.fetch import ParityCounts
from weft.hdl.errors import ConfigError
from weft.hdl.isa import Queue
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import MULTIPLIER_BITS
from weft.hdl.isa.memmap import Counter, FaultUnit, ParityMemory
from weft.hdl.lib.arithmetic import INFERRED, Coding, Multipliers
from weft.hdl.sequential import assembler
from weft.hdl.sequential.assembler import Condition, MemoryOut, Port
from weft.hdl.sequential.assembler import Out as Target
from weft.hdl.sequential.control import Control
from weft.hdl.sequential.microprogram import Microprogram
from weft.hdl.sequential.mover import Mover
from weft.hdl.sequential.multiplier import Multiplier, Rows
from weft.hdl.sequential.processor import Processor


class Scratchpad(wiring.Component):
    """Scratchpad of the sequential core: vectors of N bytes with a read port, and a write port fed byte by byte.

    Parameters
    ----------
    config : Config

    Members
    -------
    read, read_address : In(1), In
    vector : Out(8 * N)
        Valid from the cycle after `read` until the next `read`.
    push, byte : In(1), In(8)
        Append a byte to the vector being assembled, which has N bytes.
    write, write_address : In(1), In
        Write the assembled vector.
    write_byte, column : In(1), In(range(N))
        Write only the assembled vector's first byte, to this column, and rotate the vector by one byte.
    wrong : Out(1)
        Only with `parity`: the vector had changed since it was written. Valid in the cycle after `read`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        address = config.widths.scratchpad_address
        super().__init__(
            {
                "read": In(1),
                "read_address": In(address),
                "vector": Out(config.widths.vector),
                "push": In(1),
                "byte": In(8),
                "write": In(1),
                "write_address": In(address),
                "write_byte": In(1),
                "column": In(range(config.n)),
            }
            | ({"wrong": Out(1)} if config.parity else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self.config
        coding = Coding(config, 8)
        size = coding.width(8)
        m.submodules.memory = memory = Memory(shape=config.n * size, depth=config.scratchpad_size, init=[])
        read = memory.read_port()
        write = memory.write_port(granularity=size)
        assembled = Signal(config.widths.vector, reset_less=True)
        with m.If(self.push):
            m.d.sync += assembled.eq(Cat(assembled[8:], self.byte))
        with m.Elif(self.write_byte):
            m.d.sync += assembled.eq(Cat(assembled[8:], assembled[:8]))
        vector, changed = coding.decode(read.data)
        if coding.checked:
            known = Signal()
            m.d.sync += known.eq(self.read)
            m.d.comb += self.wrong.eq(known & changed)
        m.d.comb += [
            read.en.eq(self.read),
            read.addr.eq(self.read_address),
            self.vector.eq(vector),
            write.addr.eq(self.write_address),
            # A single byte is offered in all lanes, of which the enable selects one.
            write.data.eq(coding.encode(Mux(self.write_byte, assembled[:8].replicate(config.n), assembled))),
            write.en.eq(Mux(self.write, (1 << config.n) - 1, Mux(self.write_byte, 1 << self.column, 0))),
        ]
        return m


COUNTED = (
    Counter.CYCLES, Counter.ARRAY_ACTIVE, Counter.READ_BEATS, Counter.WRITE_BEATS, Counter.LOAD_BUSY,
    Counter.LOAD_MEMORY, Counter.MM_BUSY, Counter.VEC_BUSY, Counter.STORE_BUSY, Counter.STORE_MEMORY,
)  # fmt: skip
"""Counters that the core implements; the others read 0."""


def check_config(config: Config) -> None:
    """Raise `ConfigError` if the sequential core does not support the configuration."""
    if config.loops:
        raise ConfigError(
            f"the sequential core runs straight programs only: configuration field 'loops' is {config.loops}, not 0"
        )
    if config.blocks:
        raise ConfigError(
            "the sequential core multiplies no blocks of values of 4 bits: configuration field 'int4' is 2, not 0 or 1"
        )
    if config.descriptors:
        raise ConfigError(
            "the sequential core is started for each program: configuration field 'descriptors' is 1, not 0"
        )
    if config.depthwise_taps:
        raise ConfigError(
            "the sequential core has no sums along rows: configuration field 'depthwise_taps' is "
            f"{config.depthwise_taps}, not 0"
        )


class SequentialCore(wiring.Component):
    """Sequential core: runs the programs of `weft.hdl.core.Core` one instruction at a time, in much less logic.

    Instructions run in the order in which they are fetched, and semaphores are ignored. The order of a program must
    therefore satisfy its semaphores, as the compiler's programs do.

    Parameters
    ----------
    config : Config
        `lanes`, `queue_depth` and the numbers of banks have no effect.
    multipliers : Multipliers
        See `weft.hdl.core.Core`.
    stops : bool
        See `weft.hdl.control.control.RunState`. A run stops within an instruction, when no response of memory is
        outstanding; after an error no more requests are made. Not needed if memory always responds, without errors.

    Members
    -------
    m_axi_*, s_axi_*, irq
        See `weft.hdl.core.Core`. All bursts have one beat. Of the stall counters only LOAD_MEMORY and STORE_MEMORY
        count; the others, and ARRAY_WINDOW, stay 0.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED, *, stops: bool = True) -> None:
        multipliers.check(config)
        check_config(config)
        self.config, self.stops = config, stops
        self.multipliers = multipliers
        manager = {f"m_axi_{name}": member for name, member in axi4_signature(config).members.items()}
        super().__init__({**manager, **AXI_LITE, "irq": Out(1)})

    def elaborate(self, platform: object) -> Module:
        outer = Module()
        outer.submodules.control = control = Control(self.config, COUNTED, stops=self.stops)
        # The module of all units that execute instructions, which a stop resets.
        m = Module() if self.stops else outer
        abort = Signal()
        wrong = Signal(len(ParityMemory))
        if self.config.parity:
            outer.submodules.parity = parity = ParityCounts()
            outer.d.comb += parity.wrong.eq(wrong)
            connect_parity(outer, parity, control)
        if self.stops:
            outer.submodules.machine = ResetInserter(abort)(m)
        processor, mover, rows, movers = self._machine(m, control, wrong)
        self._ports(outer, mover, control)
        busy = self._counters(outer, control, processor, mover, rows, movers)
        if self.stops:
            self._stop(outer, control, mover, abort, busy)
        return outer

    def _machine(
        self, m: Module, control: Control, wrong: Signal
    ) -> tuple[Processor, Mover, Rows, dict[MemoryOut, Any]]:
        """Add all units but registers and counters, and return them with the strobes of the memory unit.

        Drives `wrong`, which is indexed by `ParityMemory`.
        """
        config, program = self.config, Microprogram(self.config)
        m.submodules.processor = processor = Processor(
            program.words,
            program.operand_bits,
            program.constants,
            program.depth,
            config.n if config.kernel else 0,
        )
        signed_bits = MULTIPLIER_BITS if config.kernel else 0
        m.submodules.multiplier = multiplier = Multiplier(config.mantissa_bits, signed_bits)
        m.submodules.mover = mover = Mover(config)
        m.submodules.scratchpad = scratchpad = Scratchpad(config)
        m.submodules.rows = rows = Rows(config, self.multipliers)
        if config.parity:
            m.d.comb += wrong[ParityMemory.SCRATCHPAD].eq(scratchpad.wrong)

        result = processor.result
        strobes = {target: Signal(name=f"to_{target.name.lower()}") for target in Target}
        m.d.comb += [strobe.eq(processor.out == target) for target, strobe in strobes.items()]
        movers = {target: strobes[Target.MEMORY] & (processor.operand[:4] == target) for target in MemoryOut}
        column = Signal(range(config.n))
        with m.If(strobes[Target.COLUMN]):
            m.d.sync += column.eq(result)
        with m.If(strobes[Target.COLUMN_NEXT] | strobes[Target.ACCUMULATOR_WRITE] | strobes[Target.WEIGHT]
                  | strobes[Target.PUSH]):  # fmt: skip
            m.d.sync += column.eq(column + 1)
        row = self._accumulator(m, rows, wrong, strobes[Target.ACCUMULATOR_WRITE], column, result)
        self._rows(m, rows, strobes, result, column, scratchpad)
        m.d.comb += [
            multiplier.value.eq(result),
            multiplier.set_multiplicand.eq(strobes[Target.MULTIPLICAND]),
            multiplier.set_shift.eq(strobes[Target.SHIFT]),
            multiplier.shift.eq(Mux(strobes[Target.SHIFT], result[:6], result[24:30])),
            multiplier.start.eq(strobes[Target.MULTIPLY] | strobes[Target.MULTIPLY_ADD]),
            multiplier.keep.eq(strobes[Target.MULTIPLY_ADD]),
            scratchpad.read.eq(strobes[Target.SCRATCHPAD_READ] | rows.vector_read),
            scratchpad.read_address.eq(Mux(rows.vector_read, rows.vector_address, result)),
            scratchpad.push.eq(strobes[Target.PUSH] | mover.push),
            scratchpad.byte.eq(Mux(mover.push, mover.byte, result)),
            scratchpad.write.eq(strobes[Target.SCRATCHPAD_WRITE]),
            scratchpad.write_byte.eq(strobes[Target.BYTE_WRITE]),
            scratchpad.write_address.eq(result),
            scratchpad.column.eq(column),
        ]
        if config.kernel:
            starts = (
                strobes[Target.MULTIPLY] | strobes[Target.MULTIPLY_ADD] | movers[MemoryOut.MULTIPLY_SIGNED]
            )
            m.d.comb += [multiplier.start.eq(starts), multiplier.wide.eq(movers[MemoryOut.MULTIPLY_SIGNED])]
        self._mover(m, mover, movers, processor, scratchpad)
        table = self._table(m, strobes, result) if assembler.entries(config) else Const(0, 8)
        self._read_ports(
            m, processor, multiplier, mover, rows, strobes, (scratchpad.vector, row, column, table)
        )
        self._control(m, control, processor, movers)
        return processor, mover, rows, movers

    def _ports(self, m: Module, mover: Mover, control: Control) -> None:
        pairs = [
            (f"m_axi_{name}", member, getattr(mover.axi, name))
            for name, member in axi4_signature(self.config).members.items()
        ]
        pairs += [(name, member, getattr(control, name)) for name, member in AXI_LITE.items()]
        for name, member, inner in pairs:
            outer = getattr(self, name)
            m.d.comb += outer.eq(inner) if member.flow is Out else inner.eq(outer)
        m.d.comb += self.irq.eq(control.irq)

    def _accumulator(
        self, m: Module, rows: Rows, wrong: Signal, write: Signal, column: Signal, result: Signal
    ) -> Value:
        """Add the accumulator. Returns the row that was read last."""
        config = self.config
        coding = Coding(config, 32)
        size = coding.width(32)
        # The upper half of the addresses is for one row, which stays 0.
        m.submodules.accumulator = memory = Memory(
            shape=config.n * size, depth=2 * config.accumulator_size, init=[]
        )
        reader = memory.read_port()
        writer = memory.write_port(granularity=size)
        row, changed = coding.decode(reader.data)
        if coding.checked:
            known = Signal()
            m.d.sync += known.eq(rows.row_read)
            m.d.comb += wrong[ParityMemory.ACCUMULATOR].eq(known & changed)
        m.d.comb += [
            reader.en.eq(rows.row_read),
            reader.addr.eq(rows.row_address),
            rows.row.eq(row),
            writer.addr.eq(rows.row_written),
            writer.data.eq(coding.encode(Mux(write, result.replicate(config.n), rows.row_data))),
            writer.en.eq(Mux(rows.row_write, (1 << config.n) - 1, Mux(write, 1 << column, 0))),
        ]
        return row

    def _rows(
        self, m: Module, rows: Rows, strobes: dict[Target, Signal], result: Signal, column: Signal,
        scratchpad: Scratchpad,
    ) -> None:  # fmt: skip
        targets = {
            "set_a": Target.A, "set_a_step": Target.A_STEP, "set_c": Target.C, "set_c_step": Target.C_STEP,
            "set_x": Target.X, "set_x_step": Target.X_STEP, "set_bound": Target.BOUND, "set_mode": Target.MODE,
            "set_row_valid": Target.ROW_VALID, "step_a": Target.READ_A, "read_c": Target.ACCUMULATOR_READ,
            "start": Target.ROWS, "weight": Target.WEIGHT,
        }  # fmt: skip
        m.d.comb += [getattr(rows, name).eq(strobes[target]) for name, target in targets.items()]
        m.d.comb += [
            rows.value.eq(result),
            rows.weight_column.eq(column),
            rows.vector.eq(scratchpad.vector),
        ]

    def _mover(
        self,
        m: Module,
        mover: Mover,
        strobes: dict[MemoryOut, Any],
        processor: Processor,
        scratchpad: Scratchpad,
    ) -> None:
        targets = {
            "set_address": MemoryOut.ADDRESS, "set_remain": MemoryOut.REMAIN, "set_skip": MemoryOut.SKIP,
            "set_length": MemoryOut.LENGTH, "set_fill": MemoryOut.FILL, "gather": MemoryOut.GATHER,
            "scatter": MemoryOut.SCATTER, "flush": MemoryOut.FLUSH,
        } | ({"set_narrow": MemoryOut.NARROW} if self.config.int4 else {})  # fmt: skip
        m.d.comb += [getattr(mover, name).eq(strobes[target]) for name, target in targets.items()]
        m.d.comb += [
            mover.value.eq(processor.result),
            mover.word_taken.eq(processor.word_taken),
            mover.column_byte.eq(scratchpad.vector.word_select(mover.column, 8)),
            processor.word_valid.eq(mover.word_valid),
        ]

    def _table(self, m: Module, strobes: dict[Target, Signal], result: Signal) -> Signal:
        """Add the memory of tables. Returns the entry at the address that was set last."""
        depth, step = assembler.entries(self.config), assembler.address_step(self.config)
        m.submodules.table = memory = Memory(shape=8, depth=depth, init=[])
        reader = memory.read_port()
        writer = memory.write_port()
        at = Signal(range(depth))
        with m.If(strobes[Target.TABLE_ADDRESS]):
            m.d.sync += at.eq(result >> (step.bit_length() - 1))
        with m.If(strobes[Target.TABLE_WRITE]):
            m.d.sync += at.eq(at + 1)
        m.d.comb += [
            reader.addr.eq(result >> (step.bit_length() - 1)),
            reader.en.eq(strobes[Target.TABLE_ADDRESS]),
            writer.addr.eq(at),
            writer.data.eq(result),
            writer.en.eq(strobes[Target.TABLE_WRITE]),
        ]
        return reader.data

    def _read_ports(
        self, m: Module, processor: Processor, multiplier: Multiplier, mover: Mover, rows: Rows,
        strobes: dict[Target, Signal], state: tuple[Any, Any, Any, Any],
    ) -> None:  # fmt: skip
        vector, row, column, table = state
        source = Signal()
        byte = Signal(8)
        element = Signal(signed(32))
        with m.If(strobes[Target.SOURCE]):
            m.d.sync += source.eq(processor.result)
        m.d.comb += [
            byte.eq(vector.word_select(column, 8)),
            processor.port[Port.PRODUCT].eq(multiplier.result),
            processor.port[Port.RAW].eq(multiplier.result),
            multiplier.raw.eq(processor.odd),
            element.eq(Mux(source | processor.odd, byte.as_signed(), row.word_select(column, 32))),
            processor.port[Port.ELEMENT].eq(element),
            processor.port[Port.BYTE].eq(element),
            processor.port[Port.TABLE].eq(table),
            processor.port[Port.WORD].eq(mover.word),
            processor.ready.eq(multiplier.ready),
            processor.round.eq(multiplier.round),
            processor.flag[Condition.COLUMN_ZERO].eq(column == 0),
            processor.flag[Condition.IN_RANGE].eq(rows.in_range),
            processor.flag[Condition.ROWS_DONE].eq(rows.done),
            processor.flag[Condition.MEMORY_IDLE].eq(mover.idle),
            processor.flag[Condition.MOVED].eq(mover.moved),
            processor.flag[Condition.LENGTH_ZERO].eq(mover.length_zero),
        ]
        if self.config.softmax:
            m.d.comb += processor.port[Port.SUM].eq(Array(rows.sums)[column])

    def _control(
        self, m: Module, control: Control, processor: Processor, strobes: dict[MemoryOut, Any]
    ) -> None:
        """Start the processor, and give the host access to its data memory."""
        started = Signal()
        for name in ("write", "read"):
            for part in ("valid", "address"):
                m.d.comb += getattr(processor, f"{name}_{part}").eq(getattr(control, f"{name}_{part}"))
        with m.If(control.start):
            m.d.sync += started.eq(1)
        with m.Elif(strobes[MemoryOut.FINISH]):
            m.d.sync += started.eq(0)
        m.d.comb += [
            processor.write_data.eq(control.write_data),
            processor.write_strobe.eq(control.write_strobe),
            processor.flag[Condition.STARTED].eq(started),
        ]

    def _counters(
        self, m: Module, control: Control, processor: Processor, mover: Mover, rows: Rows,
        strobes: dict[MemoryOut, Any],
    ) -> Signal:  # fmt: skip
        """Connect registers and counters. Returns a mask of the busy unit, indexed by `Queue`."""
        m.submodules.counters = counters = Counters(COUNTED, bits=16)
        busy = Signal(len(Queue))
        waiting = Signal()
        with m.If(strobes[MemoryOut.EVENTS]):
            m.d.sync += busy.eq(processor.result)
        m.d.comb += [
            control.write_ready.eq(processor.write_ready),
            control.read_ready.eq(processor.read_ready),
            control.read_data.eq(processor.read_data),
            control.finished.eq(strobes[MemoryOut.FINISH]),
            control.opcode_error.eq(strobes[MemoryOut.FINISH] & processor.result[0]),
            control.bus_error.eq(mover.error),
            counters.clear.eq(control.start),
            counters.enable.eq(control.running),
            control.counter.eq(counters.index),
            control.counter_value.eq(counters.value),
            control.counter_complete.eq(counters.complete),
        ]
        counted: dict[Counter, Any] = {
            Counter.CYCLES: 1,
            Counter.ARRAY_ACTIVE: rows.active,
            Counter.READ_BEATS: mover.read_beat,
            Counter.WRITE_BEATS: mover.write_beat,
        }
        counted |= {Counter[f"{queue.name}_BUSY"]: busy[queue] for queue in Queue}
        # One cycle late, which is harmless: a unit stays busy for longer than that after its last word.
        m.d.sync += waiting.eq(processor.waits & mover.waits)
        m.d.comb += control.moves.eq(~waiting)
        counted |= {
            Counter[f"{queue.name}_MEMORY"]: busy[queue] & waiting for queue in (Queue.LOAD, Queue.STORE)
        }
        m.d.comb += [counters.event[counter].eq(event) for counter, event in counted.items()]
        return busy

    def _stop(self, m: Module, control: Control, mover: Mover, abort: Signal, busy: Signal) -> None:
        """Stop a run: hold back requests, and end the run when no response of memory is outstanding.

        `fault` keeps the unit of the interrupted instruction until the next start.
        """
        # One cycle of reset, which also ends the run and with it `stop`.
        m.d.sync += abort.eq(control.stop & mover.quiet & ~abort)
        unit = Signal(FaultUnit, init=FaultUnit.FETCH)
        with m.If(busy[Queue.LOAD]):
            m.d.comb += unit.eq(FaultUnit.LOAD)
        with m.Elif(busy[Queue.STORE]):
            m.d.comb += unit.eq(FaultUnit.STORE)
        with m.If(control.start):
            m.d.sync += busy.eq(0)
        with m.If(abort):
            m.d.comb += control.finished.eq(1)
        m.d.comb += mover.hold.eq(control.stop)
        with m.If(control.failed):
            m.d.comb += [
                control.fault.known.eq(1),
                control.fault.unit.eq(unit),
                control.fault.response.eq(mover.response),
                control.fault.address.eq(mover.address),
            ]
