"""The kernel engine of the vector unit, which runs kernels of micro-operations on rows of vectors."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES, Kernel, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import COMPARISONS, INT32_MIN, MULTIPLIER_BITS, REGISTERS, SERIAL, STRIP_ROWS, Op
from weft.hdl.isa.operands import KERNEL_LATENCY, READ_LATENCY
from weft.hdl.lib import ports
from weft.hdl.lib.queues import SkidBuffer
from weft.hdl.vector.kernel_divide import KernelDivide
from weft.hdl.vector.kernel_sequence import KernelSequence, issue_layout, request_layout
from weft.hdl.vector.requantise import shift_and_round
from weft.hdl.vector.vec_streams import index_range, results_layout, view

_CHOSEN = READ_LATENCY + 2
"""Cycles from an issue to its operands."""
_LOW = MULTIPLIER_BITS - 1
"""Low bits of the first factor that one multiplier multiplies."""


def table_members(config: Config) -> dict[str, wiring.Member]:
    """Return the members that read look-up tables; none if there are no tables.

    ``index`` and ``table`` select the ``entries``, which follow two cycles later.
    """
    if not config.lookup_tables:
        return {}
    lanes = data.ArrayLayout(8, config.lanes)
    return {"index": Out(lanes), "table": Out(range(max(config.lookup_tables, 2))), "entries": In(lanes)}


class KernelLanes(wiring.Component):
    """Lanes of the kernel engine: a pipeline without back-pressure of `KERNEL_LATENCY` cycles from issue to result.

    Cycles after the issue: 3, data from memory is at the ports, and registers are addressed; 4, operands are selected;
    5, the first operand is shifted, and products are computed; 6, the operation; 7 to 9, rounding; 10, registers are
    written. Serial operations leave the pipeline at 5, and return their results when they are done.

    Parameters
    ----------
    config : Config
        With the kernel engine.

    Members
    -------
    issue : In(issue_layout(config))
    tail : In(8)
        Number of valid elements in the last column, or 0 if all are valid.
    group : Out(index_range(config))
        Lane group to select from the data at the memory ports in the next cycle.
    vectors, rows : In(8 * lanes), In(32 * lanes)
        This lane group of the scratchpad's vector and of the accumulator's row, `READ_LATENCY` + 1 cycles after the
        issue.
    source : In(1)
        The first operand is in the scratchpad.
    index, table : Out(lanes x 8), Out
        Entries of look-up tables to read. Only with look-up tables.
    entries : In(lanes x 8)
        These entries, two cycles later.
    results : Out(results_layout(config))
        Vectors to write, by lane groups.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "issue": In(issue_layout(config)),
                "tail": In(8),
                "source": In(1),
                "group": Out(index_range(config)),
                "vectors": In(8 * config.lanes),
                "rows": In(32 * config.lanes),
                "results": Out(results_layout(config)),
                **table_members(config),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Entry i is the issue of i cycles ago.
        stages = [self.issue]
        for stage in range(1, KERNEL_LATENCY + 1):
            following = Signal(self.issue.shape(), name=f"issue_{stage}")
            m.d.sync += following.eq(stages[-1])
            stages.append(following)
        lanes = data.ArrayLayout(signed(32), self.config.lanes)
        m.submodules.divide = divide = KernelDivide(self.config)
        result = Signal(lanes, reset_less=True)
        flags = Signal(self.config.lanes, reset_less=True)
        first, second, predicate = self._operands(m, stages, result, flags, divide)
        chosen = stages[_CHOSEN]
        m.d.comb += [
            divide.valid.eq(chosen.valid & _serial(chosen.op)),
            divide.issue.eq(chosen),
            divide.elements.eq(first),
        ]
        self._compute(m, stages, first, second, predicate, result, flags)
        last = stages[KERNEL_LATENCY]
        m.d.comb += [
            self.results.write.eq(
                last.valid & last.op.d_memory & (last.entry.group == self.config.groups - 1)
            ),
            self.results.end.eq(last.valid & last.end),
            self.results.index.eq(last.entry.group),
            self.results.dst.eq(last.dst),
        ]
        m.d.comb += [self.results.bytes[lane].eq(saturate(result[lane])) for lane in range(self.config.lanes)]
        return m

    def _operands(
        self, m: Module, stages: list[data.View], result: data.View, flags: Signal, divide: KernelDivide
    ) -> tuple[data.View, data.View, Signal]:
        """Return both operands and the predicate of the issue of `_CHOSEN` cycles ago, from registers or memory."""
        config, lanes = self.config, self.config.lanes
        asked, chosen, last = stages[READ_LATENCY], stages[READ_LATENCY + 1], stages[KERNEL_LATENCY]
        depth = STRIP_ROWS * config.groups
        group = asked.entry.group
        m.d.comb += self.group.eq(stages[READ_LATENCY - 1].entry.group)
        # Exchanges over `lanes` elements or more are between lane groups; `_second` makes shorter exchanges.
        other = group ^ ((1 << asked.op.swap) >> 1 >> (lanes - 1).bit_length())[: len(group)]
        entry = Signal.like(divide.entry, name="written_entry")
        writes = Signal()
        written = Signal(lanes * 32)
        m.d.comb += [
            entry.eq(self._entry(last)),
            writes.eq(last.valid & ~last.op.d_memory & ~_compares(last.op) & ~_serial(last.op)),
            written.eq(result),
        ]
        # The write of a serial operation never coincides with a write of the pipeline.
        with m.If(divide.write):
            m.d.comb += [writes.eq(1), written.eq(divide.results), entry.eq(divide.entry)]
        # Two copies of the registers, one for each operand.
        names = [Signal(32 * lanes, name=name) for name in ("register_a", "register_b")]
        reads = (
            self._entry(asked, asked.op.a),
            self._entry(asked, asked.op.b, Mux(asked.op.b_immediate, group, other)),
        )
        for name, address in zip(names, reads, strict=True):
            m.submodules[f"{name.name}_copy"] = memory = Memory(
                shape=32 * lanes, depth=REGISTERS * depth, init=[]
            )
            store = memory.write_port()
            fetch = memory.read_port()
            m.d.comb += [
                store.en.eq(writes), store.data.eq(written), store.addr.eq(entry), fetch.addr.eq(address),
                name.eq(fetch.data),
            ]  # fmt: skip
        m.submodules.predicates = memory = Memory(shape=lanes, depth=depth, init=[])
        store = memory.write_port()
        fetch = memory.read_port()
        bits = len(store.addr)
        m.d.comb += [
            store.en.eq(last.valid & _compares(last.op)),
            store.data.eq(flags),
            store.addr.eq(self._entry(last)[:bits]),
            fetch.addr.eq(self._entry(asked)[:bits]),
        ]
        predicate = Signal(lanes, reset_less=True)
        m.d.sync += predicate.eq(fetch.data)
        layout = data.ArrayLayout(signed(32), lanes)
        first = Signal(layout, reset_less=True)
        second = Signal(layout, reset_less=True)
        for lane in range(lanes):
            m.d.sync += [
                first[lane].eq(self._first(m, lane, chosen, names[0])),
                second[lane].eq(self._second(m, lane, chosen, names[1])),
            ]
        return first, second, predicate

    def _entry(self, issue: data.View, register: Value | None = None, group: Value | None = None) -> Signal:
        """Return the address of a register of a lane group of a row."""
        bits = (self.config.groups - 1).bit_length()
        group = issue.entry.group if group is None else group
        register = issue.op.d if register is None else register
        return Cat(group[:bits], issue.entry.row, register)

    def _first(self, m: Module, lane: int, issue: data.View, registers: Value) -> Value:
        """Return the first operand of a lane."""
        op = issue.op
        byte = self.vectors.word_select(lane, 8)
        vector = Cat(byte, (byte[7] & ~op.unsigned).replicate(24)).as_signed()
        row = self.rows.word_select(lane, 32).as_signed()
        read = Signal(signed(32), name=f"read_{lane}")
        behind = Signal(name=f"behind_{lane}")
        m.d.comb += [
            behind.eq(issue.tail & self.tail.any() & (self._element(lane, issue) >= self.tail)),
            read.eq(Mux(self.source | op.a[:2].any(), vector, row)),
        ]
        with m.If(behind):
            m.d.comb += read.eq(Mux(op.fill, INT32_MIN, 0))
        return Mux(op.a_memory, read, registers.word_select(lane, 32).as_signed())

    def _element(self, lane: int, issue: data.View) -> Value:
        """Return the index of a lane's element in its vector."""
        group = issue.entry.group[: (self.config.groups - 1).bit_length()]
        return Cat(Const(lane, (self.config.lanes - 1).bit_length()), group)

    def _second(self, m: Module, lane: int, issue: data.View, registers: Value) -> Value:
        """Return the second operand of a lane: an immediate, or a register whose elements may be exchanged."""
        register = Signal(signed(32), name=f"exchanged_{lane}")
        m.d.comb += register.eq(registers.word_select(lane, 32))
        with m.Switch(issue.op.swap):
            for swap in range(1, (self.config.lanes - 1).bit_length() + 1):
                with m.Case(swap):
                    m.d.comb += register.eq(registers.word_select(lane ^ 1 << swap - 1, 32))
        return Mux(issue.op.b_immediate, issue.op.immediate, register)

    def _compute(
        self,
        m: Module,
        stages: list[data.View],
        first: data.View,
        second: data.View,
        predicate: Signal,
        result: data.View,
        flags: Signal,
    ) -> None:
        """Compute results from operands, five cycles later."""
        op = stages[_CHOSEN].op
        delayed_predicate = Signal.like(predicate, name="delayed_predicate")
        m.d.sync += delayed_predicate.eq(predicate)
        if self.config.lookup_tables:
            m.d.comb += self.table.eq(op.immediate)
        for lane in range(self.config.lanes):
            a, b = first[lane], second[lane]
            shifted = Signal(signed(32), name=f"shifted_{lane}", reset_less=True)
            other = Signal(signed(32), name=f"other_{lane}", reset_less=True)
            # A shift by 32 or more leaves nothing.
            m.d.sync += [shifted.eq(Mux(op.shift[5], 0, a << op.shift[:5])), other.eq(b)]
            simple, flag = self._simple(m, lane, stages[_CHOSEN + 1], shifted, other, delayed_predicate[lane])
            product, shift = self._product(m, lane, op, a, b)
            quotient = shift_and_round(m, product, shift, f"kernel_{lane}", 32, stages[_CHOSEN + 3].op.floor)
            # Simple results wait two more cycles, in which products are rounded.
            entry: Value = simple
            for stage in range(2):
                delayed = Signal(signed(32), name=f"simple_{lane}_{stage}", reset_less=True)
                m.d.sync += delayed.eq(entry)
                entry = delayed
                if not stage and self.config.lookup_tables:
                    entry = Mux(stages[_CHOSEN + 3].op.op == Op.TABLE, self._entry_of(m, lane), delayed)
                late = Signal(name=f"flag_{lane}_{stage}", reset_less=True)
                m.d.sync += late.eq(flag)
                flag = late
            total = Signal(signed(34), name=f"total_{lane}")
            limit = Cat((~total[-1]).replicate(31), total[-1]).as_signed()
            m.d.comb += total.eq(quotient)
            # The increment of rounding may exceed the 32 bits to which the quotient is saturated.
            fits = total[31:].all() | ~total[31:].any()
            m.d.sync += [
                result[lane].eq(
                    Mux(stages[_CHOSEN + 4].op.op == Op.MUL, Mux(fits, total[:32].as_signed(), limit), entry)
                ),
                flags[lane].eq(flag),
            ]
            if self.config.lookup_tables:
                byte = saturate(a)
                # Entry 0 belongs to -128.
                m.d.comb += self.index[lane].eq(Cat(byte[:7], ~byte[7]))

    def _entry_of(self, m: Module, lane: int) -> Value:
        """Return the entry of a look-up table, registered once more."""
        entry = Signal(signed(8), name=f"entry_{lane}", reset_less=True)
        m.d.sync += entry.eq(self.entries[lane])
        return entry

    def _simple(
        self, m: Module, lane: int, issue: data.View, shifted: Signal, other: Signal, predicate: Value
    ) -> tuple[Signal, Signal]:
        """Return the result of an operation without a product, and the flag of a comparison, one cycle later."""
        op = issue.op
        result = Signal(signed(32), name=f"simple_{lane}", reset_less=True)
        flag = Signal(name=f"flag_{lane}")
        difference = Signal(signed(33), name=f"difference_{lane}")
        less = Signal(name=f"less_{lane}")
        index = Cat(self._element(lane, issue), issue.column)
        m.d.comb += [difference.eq(shifted - other), less.eq(difference[-1])]
        # One adder for ADD, RSUB and INDEX: the subtrahend is inverted, and a bit below the operands carries in.
        turned = op.op == Op.RSUB
        added = Signal(signed(33), name=f"added_{lane}")
        addend = Mux(op.op == Op.INDEX, index, shifted ^ turned.replicate(32).as_signed())
        m.d.comb += added.eq(Cat(turned, addend).as_signed() + Cat(turned, other).as_signed())
        chosen = Signal(signed(32), name=f"chosen_{lane}")
        with m.Switch(op.op):
            with m.Case(Op.SUB):
                m.d.comb += chosen.eq(difference)
            with m.Case(Op.MIN):
                m.d.comb += chosen.eq(Mux(less, shifted, other))
            with m.Case(Op.MAX):
                m.d.comb += chosen.eq(Mux(less, other, shifted))
            with m.Case(Op.SELECT):
                m.d.comb += chosen.eq(Mux(predicate, shifted, other))
            with m.Default():
                m.d.comb += chosen.eq(added[1:])
        m.d.sync += [result.eq(chosen), flag.eq(Mux(op.op == Op.EQ, difference == 0, less))]
        return result, flag

    def _product(self, m: Module, lane: int, op: data.View, a: Value, b: Value) -> tuple[Signal, Signal]:
        """Return the exact product, and the distance by which to shift it, two cycles later."""
        factor = b[:MULTIPLIER_BITS].as_signed()
        low = Signal(signed(32 + MULTIPLIER_BITS), name=f"low_{lane}", reset_less=True)
        high = Signal(signed(32 + MULTIPLIER_BITS), name=f"high_{lane}", reset_less=True)
        product = Signal(signed(32 + MULTIPLIER_BITS), name=f"product_{lane}", reset_less=True)
        shift = [Signal(6, name=f"shift_{lane}_{stage}", reset_less=True) for stage in range(2)]
        total = Signal(7, name=f"shift_{lane}")
        exponent = Mux(op.scaled, b[MULTIPLIER_BITS : MULTIPLIER_BITS + 6], 0)
        m.d.comb += total.eq(op.shift + exponent)
        m.d.sync += [
            low.eq(Cat(a[:_LOW], 0).as_signed() * factor),
            high.eq(a[_LOW:].as_signed() * factor),
            product.eq(low + (high << _LOW)),
            # Products have fewer than 63 bits, so a larger distance makes no difference.
            shift[0].eq(Mux(total[6], 63, total)),
            shift[1].eq(shift[0]),
        ]
        return product, shift[1]


def _serial(op: data.View) -> Value:
    return Cat(op.op == kind for kind in SERIAL).any()


def _compares(op: data.View) -> Value:
    return Cat(op.op == kind for kind in COMPARISONS).any()


def saturate(value: Value) -> Value:
    """Saturate an int32 to int8."""
    fits = value[7:].all() | ~value[7:].any()
    return Mux(fits, value[:8], Cat((~value[-1]).replicate(7), value[-1]))


class KernelEngine(wiring.Component):
    """Kernel engine: runs kernels of micro-operations on rows of vectors.

    It consists of a sequence of slots, a register of the slot that reads next, and lanes that never wait.

    Parameters
    ----------
    config : Config
        With the kernel engine.

    Members
    -------
    instruction : In(stream of instructions)
        Only `Kernel` and `Microcode`. Accepted while the engine is not `active`.
    active : Out(1)
        There is an instruction.
    finish : In(1)
        The instruction is done; `active` becomes 0 in the next cycle.
    mask : Out(SEMAPHORES)
        Signal mask of the last instruction.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
    stall_port : Out(1)
        A read waits for its grant.
    group, vectors, rows
        Lane groups of the data that is read, see `KernelLanes`.
    results : Out(results_layout(config))
        Vectors to write, by lane groups; ``end`` with the last result of an instruction.
    index, table, entries
        See `KernelLanes`. Only with look-up tables.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "instruction": In(stream.Signature(Vec.layout())),
                "active": Out(1),
                "finish": In(1),
                "mask": Out(SEMAPHORES),
                "accumulator": Out(ports.accumulator_read(config)),
                "scratchpad": Out(ports.scratchpad_read(config)),
                "stall_port": Out(1),
                "group": Out(index_range(config)),
                "vectors": In(8 * config.lanes),
                "rows": In(32 * config.lanes),
                "results": Out(results_layout(config)),
                **table_members(config),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequence = sequence = KernelSequence(self.config)
        m.submodules.lanes = lanes = KernelLanes(self.config)
        payload = self.instruction.payload
        take = Signal()
        source = Signal()
        m.d.comb += [
            self.instruction.ready.eq(~self.active),
            take.eq(self.instruction.valid & self.instruction.ready),
            sequence.load.eq(take),
            sequence.payload.eq(payload),
            lanes.source.eq(source),
            lanes.vectors.eq(self.vectors),
            lanes.rows.eq(self.rows),
            self.group.eq(lanes.group),
            self.results.eq(lanes.results),
        ]
        # Microcode has no results: it ends when it is stored.
        with m.If(sequence.loaded):
            m.d.comb += self.results.end.eq(1)
        with m.If(self.finish):
            m.d.sync += self.active.eq(0)
        with m.If(take):
            m.d.sync += [
                self.active.eq(1),
                self.mask.eq(payload.signal),
                source.eq(payload.source),
                lanes.tail.eq(view(Kernel, payload).tail),
            ]
        self._ask(m, sequence, lanes)
        if self.config.lookup_tables:
            m.d.comb += [
                self.index.eq(lanes.index),
                self.table.eq(lanes.table),
                lanes.entries.eq(self.entries),
            ]
        return m

    def _ask(self, m: Module, sequence: KernelSequence, lanes: KernelLanes) -> None:
        """Request the read of the next slot.

        Slots pass a skid buffer, so that back-pressure of a refused read does not reach the sequence in the same cycle.
        """
        request = Signal(request_layout(self.config))
        request_valid = Signal()
        granted = Signal()
        ready = Signal()
        m.submodules.skid = ahead = SkidBuffer(request.shape())
        m.d.comb += [
            ahead.i.valid.eq(sequence.valid),
            ahead.i.payload.eq(sequence.slot),
            sequence.ready.eq(ahead.i.ready),
            ahead.o.ready.eq(~request_valid | granted),
            self.scratchpad.valid.eq(request_valid & request.ask_scratchpad),
            self.scratchpad.address.eq(request.address),
            self.accumulator.valid.eq(request_valid & request.ask_accumulator),
            self.accumulator.address.eq(request.address),
            ready.eq(
                (self.scratchpad.ready | ~request.ask_scratchpad)
                & (self.accumulator.ready | ~request.ask_accumulator)
            ),
            granted.eq(request_valid & ready),
            self.stall_port.eq(request_valid & ~ready),
            lanes.issue.eq(request.issue),
            lanes.issue.valid.eq(granted & request.issue.valid),
        ]
        with m.If(ahead.o.ready):
            m.d.sync += request_valid.eq(ahead.o.valid)
        with m.If(ahead.o.valid & ahead.o.ready):
            m.d.sync += request.eq(ahead.o.payload)
