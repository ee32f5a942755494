"""The sequencer of the kernel engine: the order of micro-operations, rows and lane groups, and their addresses."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Kernel, Microcode, MicroOp, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import MICRO_BITS, MICRO_OPS, SERIAL, SOURCES, STRIP_ROWS, TARGETS, Op
from weft.hdl.isa.operands import kernel_min_cycles, kernel_serial_cycles
from weft.hdl.vector.vec_streams import is_kind, view

_LOOPS = ("ob", "oy", "ox")
_OPERANDS = (*SOURCES, *TARGETS)
_ADDRESSES = len(_OPERANDS)
"""Number of addresses, one for each operand. One address moves in each cycle."""
_ROW_BITS = (STRIP_ROWS - 1).bit_length()


def entry_layout(config: Config) -> data.StructLayout:
    """Return the layout of a place in the registers: a row of the strip and a lane group."""
    return data.StructLayout({"group": range(max(config.groups, 2)), "row": range(STRIP_ROWS)})


def issue_layout(config: Config) -> data.StructLayout:
    """Return the layout of an issue: a micro-operation for a lane group of a row.

    ``tail``: it is the last column, which may have fewer valid elements. ``dst``: address of the result if it goes to
    memory. ``end``: it is the last issue of the instruction.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "op": MicroOp.layout(),
            "entry": entry_layout(config),
            "column": 12,
            "tail": 1,
            "dst": config.widths.scratchpad_address,
            "end": 1,
        }
    )


def request_layout(config: Config) -> data.StructLayout:
    """Return the layout of an issue with its read: from the scratchpad, from the accumulator, or none."""
    width = max(config.widths.scratchpad_address, config.widths.accumulator_address)
    return data.StructLayout(
        {"ask_scratchpad": 1, "ask_accumulator": 1, "address": width, "issue": issue_layout(config)}
    )


class KernelSequence(wiring.Component):
    """Sequencer of the kernel engine: stores micro-operations, and iterates over them for strips of rows.

    It emits a slot a cycle, unless `ready` is 0. A slot is an issue, or empty: if a micro-operation has fewer lane
    groups than the arithmetic has cycles of latency, or if it is serial. Two micro-operations on the same registers
    are therefore always separated by the latency, and no other interlock is needed.

    While a micro-operation runs, the next micro-operation is fetched, and the addresses of all operands move to its
    first read. One adder moves one operand a cycle; addresses and steps rotate past it in shift registers.

    Parameters
    ----------
    config : Config
        With the kernel engine.

    Members
    -------
    load, payload : In(1), In(Vec.layout())
        A `Kernel` or a `Microcode`.
    loaded : Out(1)
        A `Microcode` is completely stored; 1 for one cycle.
    valid, ready, slot : Out(1), In(1), Out(request_layout(config))
        Stream of slots, in order.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "load": In(1),
                "payload": In(Vec.layout()),
                "loaded": Out(1),
                "valid": Out(1),
                "ready": In(1),
                "slot": Out(request_layout(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        kernel = view(Kernel, self.payload)
        starts = Signal()
        m.d.comb += starts.eq(self.load & is_kind(Kernel, self.payload))
        op = Signal(MicroOp.layout())
        phase = Signal(range(_ADDRESSES + 2))
        following = Signal(range(self.config.kernel))
        coming = Signal(MicroOp.layout())
        # A second register, because block RAM is slow. There is time: a micro-operation has at least eight slots.
        m.d.sync += coming.eq(self._memory(m, following))
        turn = Signal()
        with m.If(starts | turn):
            m.d.sync += phase.eq(0)
        with m.Elif(phase <= _ADDRESSES):
            m.d.sync += phase.eq(phase + 1)

        place = self._place(m, kernel, starts, turn, op)
        self._follow(m, kernel, starts, turn, op, phase, place, following)
        positions, steps = self._positions(m, kernel, starts, phase, place)
        real, row_done = self._slots(m, starts, turn, op, coming, place)
        from_scratchpad = self._addresses(m, starts, turn, real & row_done, coming, positions, steps)
        with m.If(starts):
            m.d.sync += op.eq(0)
        with m.Elif(turn):
            m.d.sync += op.eq(coming)
        issue = self.slot.issue
        m.d.comb += [
            self.slot.ask_scratchpad.eq(op.a_memory & real & from_scratchpad),
            self.slot.ask_accumulator.eq(op.a_memory & real & ~from_scratchpad),
            issue.op.eq(op),
            issue.valid.eq(real),
            issue.column.eq(place.column),
            issue.tail.eq(place.last_column),
        ]
        return m

    def _memory(self, m: Module, address: Signal) -> Value:
        """Return the micro-operation at `address`, registered, one cycle later. `Microcode` fills the memory."""
        m.submodules.memory = memory = Memory(shape=MICRO_BITS, depth=self.config.kernel, init=[])
        store = memory.write_port()
        fetch = memory.read_port()
        code = view(Microcode, self.payload)
        words = Signal(MICRO_BITS * MICRO_OPS, reset_less=True)
        left = Signal(range(MICRO_OPS + 1))
        entry = Signal.like(store.addr)
        m.d.comb += [
            fetch.addr.eq(address),
            store.addr.eq(entry),
            store.data.eq(words[:MICRO_BITS]),
            store.en.eq(left.any()),
        ]
        m.d.sync += self.loaded.eq(left == 1)
        with m.If(self.load & is_kind(Microcode, self.payload)):
            m.d.sync += [
                words.eq(Cat(code[f"op{index}"] for index in range(MICRO_OPS))),
                left.eq(code.count),
                entry.eq(code.entry),
            ]
        with m.Elif(left.any()):
            m.d.sync += [words.eq(words >> MICRO_BITS), left.eq(left - 1), entry.eq(entry + 1)]
        return fetch.data

    def _place(self, m: Module, kernel: data.View, starts: Value, turn: Value, op: data.View) -> data.View:
        """Return the kernel's position, and the move that follows the current micro-operation.

        ``onward``: to the next column. ``back``: to the first column. ``strip``: to the next strip. ``block``: to the
        next block of strips. ``done``: the kernel ends.
        """
        place = Signal(
            data.StructLayout(
                {"column": 12, "last_column": 1, "rows": range(STRIP_ROWS)}
                | dict.fromkeys(("onward", "back", "strip", "block", "done"), 1)
            )
        )
        ox = Signal(12)
        blocks_left = Signal(12)
        # Strips after the current strip, strips after the first strip of a block, and rows of the last strip minus 1.
        strips_left = Signal(12 - _ROW_BITS)
        strips = Signal(12 - _ROW_BITS)
        last_rows = Signal(_ROW_BITS)
        last_strip = Signal()
        last_block = Signal()
        ends = Signal()
        m.d.comb += [
            place.onward.eq(op.again & ~place.last_column),
            place.back.eq(op.again & place.last_column),
            ends.eq(op.end & ~place.onward),
            place.strip.eq(ends & ~last_strip),
            place.block.eq(ends & last_strip & ~last_block),
            place.done.eq(ends & last_strip & last_block),
            place.rows.eq(Mux(last_strip, last_rows, STRIP_ROWS - 1)),
        ]
        column = Signal(12)
        last = Signal()
        m.d.comb += [place.column.eq(column), place.last_column.eq(last)]
        before = (kernel.oy - 1)[:12]
        with m.If(starts):
            m.d.sync += [
                ox.eq(kernel.ox),
                strips.eq(before >> _ROW_BITS),
                strips_left.eq(before >> _ROW_BITS),
                last_rows.eq(before),
                last_strip.eq(~(before >> _ROW_BITS).any()),
                blocks_left.eq(kernel.ob),
                last_block.eq(kernel.ob == 1),
                column.eq(0),
                last.eq(kernel.ox == 1),
            ]
        with m.Elif(turn):
            with m.If(place.onward):
                m.d.sync += [column.eq(column + 1), last.eq(column + 2 == ox)]
            with m.Elif(place.back):
                m.d.sync += [column.eq(0), last.eq(ox == 1)]
            with m.If(place.strip):
                m.d.sync += [strips_left.eq(strips_left - 1), last_strip.eq(strips_left == 1)]
            with m.Elif(place.block):
                m.d.sync += [strips_left.eq(strips), last_strip.eq(~strips.any())]
                m.d.sync += [blocks_left.eq(blocks_left - 1), last_block.eq(blocks_left == 2)]
        return place

    def _follow(
        self,
        m: Module,
        kernel: data.View,
        starts: Value,
        turn: Value,
        op: data.View,
        phase: Signal,
        place: data.View,
        following: Signal,
    ) -> None:
        """Drive `following` with the index of the next micro-operation, valid from phase 1 on.

        It stays at the first index until a micro-operation runs.
        """
        current = Signal.like(following)
        first = Signal.like(following)
        runs = Signal()
        with m.If(starts):
            m.d.sync += [first.eq(kernel.start), following.eq(kernel.start), runs.eq(0)]
        with m.Elif(turn):
            m.d.sync += [current.eq(following), runs.eq(1)]
        with m.Elif((phase == 0) & runs):
            m.d.sync += following.eq(current + 1)
            with m.If(place.onward):
                m.d.sync += following.eq(first + op.target)
            with m.Elif(op.end):
                m.d.sync += following.eq(first)

    def _positions(
        self, m: Module, kernel: data.View, starts: Value, phase: Signal, place: data.View
    ) -> tuple[data.View, data.View]:
        """Return the addresses of all operands at the strip's first row and the current column, and their row steps.

        Element 0 of each shift register moves. All of them rotate once in the phases from 1 on.
        """
        width = len(self.slot.address)
        circle = data.ArrayLayout(width, _ADDRESSES)
        names = ("position", "strip_base", "block_base", "step_ob", "step_oy", "step_ox")
        position, strip_base, block_base, *steps = (
            Signal(circle, name=name, reset_less=True) for name in names
        )
        # One adder: the operand's base of the block, of the strip, or of the column, plus the step of the move.
        moves = Signal()
        total = Signal(width)
        base = Signal(width)
        increment = Signal(width)
        moves_base, moves_block = place.strip | place.block, place.block
        m.d.comb += [
            moves.eq((phase > 0) & (phase <= _ADDRESSES) & (place.onward | place.back | moves_base)),
            base.eq(
                Mux(moves_block, block_base[0], Mux(place.strip | place.back, strip_base[0], position[0]))
            ),
            total.eq(base + increment),
        ]
        with m.If(place.block):
            m.d.comb += increment.eq(steps[0][0])
        with m.Elif(place.strip):
            m.d.comb += increment.eq(steps[1][0] << _ROW_BITS)
        with m.Elif(place.onward):
            m.d.comb += increment.eq(steps[2][0])
        with m.If(starts):
            for index, name in enumerate(_OPERANDS):
                m.d.sync += [memory[index].eq(kernel[name]) for memory in (position, strip_base, block_base)]
                m.d.sync += [
                    memory[index].eq(kernel[f"{name}_{loop}"])
                    for memory, loop in zip(steps, _LOOPS, strict=True)
                ]
        with m.Elif(moves):
            for memory, moved in ((position, 1), (strip_base, moves_base), (block_base, moves_block)):
                m.d.sync += memory.eq(Cat(memory.as_value()[width:], Mux(moved, total, memory[0])))
            for memory in steps:
                m.d.sync += memory.eq(memory.as_value().rotate_right(width))
        return position, steps[1]

    def _slots(
        self, m: Module, starts: Value, turn: Value, op: data.View, coming: data.View, place: data.View
    ) -> tuple[Value, Value]:
        """Count the slots of the micro-operation. Returns two flags: the slot is an issue; it is its row's last."""
        config = self.config
        groups, least = config.groups, kernel_min_cycles(config.groups)
        issue_entry = Signal(entry_layout(config))
        todo = Signal()
        real = Signal()
        steps = Signal()
        last_slot = Signal()
        running = Signal()
        age = Signal(range(least))
        waits = {
            (uniform, root): kernel_serial_cycles(
                1 if uniform else config.lanes, groups if uniform else 1, root=root
            )
            for uniform in (False, True)
            for root in (False, True)
        }
        # Slots to skip after the issue of a serial operation.
        pause = Signal(range(max(waits.values())))
        serial = Signal()
        skips = Signal()
        group_last = skips | (issue_entry.group == groups - 1)
        ends = (real & last_slot & ~serial) | (~todo & (pause <= 1))
        m.d.comb += [
            self.valid.eq(running),
            steps.eq(running & self.ready),
            real.eq(todo & ~pause.any()),
            last_slot.eq(group_last & (issue_entry.row == place.rows)),
            turn.eq(steps & ends & (age == least - 1)),
            self.slot.issue.entry.eq(issue_entry),
            self.slot.issue.end.eq(place.done & last_slot),
        ]
        # Saturates at the age from which the next micro-operation may follow.
        with m.If(steps & (age != least - 1)):
            m.d.sync += age.eq(age + 1)
        with m.If(steps & pause.any()):
            m.d.sync += pause.eq(pause - 1)
        with m.If(steps & real):
            m.d.sync += [issue_entry.group.eq(issue_entry.group + 1), todo.eq(~last_slot)]
            with m.If(group_last):
                m.d.sync += [issue_entry.group.eq(0), issue_entry.row.eq(issue_entry.row + 1)]
            with m.If(serial):
                uniform, root = op.unsigned, op.op == Op.RSQRT
                m.d.sync += pause.eq(
                    Mux(
                        uniform,
                        Mux(root, waits[True, True] - 1, waits[True, False] - 1),
                        Mux(root, waits[False, True] - 1, waits[False, False] - 1),
                    )
                )
        with m.If(starts):
            m.d.sync += [running.eq(1), todo.eq(0), age.eq(0), pause.eq(0)]
        with m.Elif(turn):
            m.d.sync += [running.eq(~place.done), todo.eq(1), age.eq(0), issue_entry.eq(0)]
            next_serial = Cat(coming.op == kind for kind in SERIAL).any()
            # A uniform serial operation is issued once for all lane groups of a row.
            m.d.sync += [serial.eq(next_serial), skips.eq(next_serial & coming.unsigned)]
        return real, group_last

    def _addresses(
        self,
        m: Module,
        starts: Value,
        turn: Value,
        row_done: Value,
        coming: data.View,
        positions: data.View,
        steps: data.View,
    ) -> Value:
        """Drive the addresses of read and write, which move by a step from row to row.

        Returns a flag: the read is from the scratchpad.
        """
        source = Signal()
        width = len(self.slot.address)
        with m.If(starts):
            m.d.sync += source.eq(view(Kernel, self.payload).source)
        for address, index, offset, name in (
            (self.slot.address, coming.a[:2], coming.a[2], "read"),
            (self.slot.issue.dst, len(SOURCES) + coming.d[0], coming.d[1], "write"),
        ):
            at = Signal(width, name=f"{name}_at")
            step = Signal(signed(width), name=f"{name}_step")
            with m.If(turn):
                m.d.sync += [at.eq(positions[index] + offset), step.eq(steps[index])]
            with m.Elif(row_done & self.ready):
                m.d.sync += at.eq(at + step)
            m.d.comb += address.eq(at)
        return source | self.slot.issue.op.a[:2].any()
