"""Kernels on values: micro-operations, `weft.hdl.isa.MicroOp`, on registers of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.extras.proof.programs.form import SATURATE
from weft.extras.proof.programs.registers import Register, add, maximum, minimum, select, subtract
from weft.extras.proof.programs.sums import Sums
from weft.hdl.errors import IsaError
from weft.hdl.isa import Kernel, Memory, MicroOp
from weft.hdl.isa.kernel import (
    INT32_MIN,
    REGISTERS,
    SERIAL,
    SOURCES,
    Op,
    check_kernel,
    kernel_at,
)
from weft.sim.device import DeviceError
from weft.sim.golden.kernel import KernelRun

if TYPE_CHECKING:
    from weft.extras.proof.programs.value_device import ValueDevice


def run(device: ValueDevice, i: Kernel) -> None:
    """Execute a kernel. Raises `DeviceError` if its micro-operations are invalid."""
    try:
        ops = kernel_at(device.memories.kernel, int(device.memories.addresses(i, "start")))
        check_kernel(ops, i, device.config)
    except IsaError as error:
        raise DeviceError(str(error)) from None
    _Run(device, i).run(ops, device.cells)


class _Run(KernelRun):
    """Execution of one `Kernel`. Registers and the predicate are (rows, N), or None before they are written."""

    def __init__(self, device: ValueDevice, i: Kernel) -> None:
        super().__init__(device.memories, i)
        self.device, self.symbols = device, device.symbols
        self.shape = i.ob * i.oy, device.config.n
        self.registers: list[Register | None] = [None] * REGISTERS
        self.predicate: Sums | None = None

    def _step(self, op: MicroOp, step: int) -> None:
        symbols = self.symbols
        if op.op in (Op.SUB, Op.RSUB) and self._has_equal_operands(op):
            self._put(op, step, Register(symbols.integers(0, self.shape)))
            return
        a, b = self._first(op), self._second(op)
        if op.op in (Op.LT, Op.EQ):
            compare = symbols.less if op.op == Op.LT else symbols.equal
            self.predicate = compare(symbols.shift_left(a.number, op.shift), b.number)
            return
        self._put(op, step, self._result(op, a, b))

    @staticmethod
    def _has_equal_operands(op: MicroOp) -> bool:
        return not (op.a_memory or op.b_immediate or op.shift or op.swap or op.a != op.b)

    def _first(self, op: MicroOp) -> Register:
        if op.op == Op.INDEX:
            return Register(self.symbols.integers(0, self.shape))
        if not op.a_memory:
            register = self.registers[op.a]
            assert register is not None, "check_kernel"
            return register
        vector, index = divmod(op.a, len(SOURCES))
        operand, addresses = self.cells[SOURCES[index]]
        return Register(self._read(op, operand.memory, addresses[:, self.column, vector]))

    def _read(self, op: MicroOp, memory: Memory, addresses: np.ndarray) -> Sums:
        device = self.device
        if memory is Memory.ACCUMULATOR:
            numbers = device.sums[addresses]
        else:
            numbers = device.values.integers_of(device.cells[addresses])
            if op.unsigned:
                numbers = self.symbols.to_unsigned(numbers)
        if not self.i.tail or self.column < self.i.ox - 1:
            return numbers
        beyond_row = np.broadcast_to(np.arange(self.shape[1]) >= self.i.tail, self.shape)
        fill = self.symbols.integers(INT32_MIN if op.fill else 0, self.shape)
        return self.symbols.where(beyond_row, fill, numbers)

    def _second(self, op: MicroOp) -> Register:
        if op.b_immediate or op.op in (Op.TABLE, *SERIAL):
            return Register(self.symbols.integers(op.immediate, self.shape))
        register = self.registers[op.b]
        assert register is not None, "check_kernel"
        if not op.swap:
            return register
        return register.take((slice(None), np.arange(self.shape[1]) ^ (1 << op.swap >> 1)))

    def _result(self, op: MicroOp, a: Register, b: Register) -> Register:
        symbols = self.symbols
        first = Register(symbols.shift_left(a.number, op.shift)) if op.shift else a
        if op.op in (Op.MIN, Op.MAX):
            return (minimum if op.op == Op.MIN else maximum)(symbols, first, b)
        if op.op == Op.ADD and not op.shift and bool((b.number.constant & (b.number.low == 0)).all()):
            return a  # a copy keeps the register's sets
        if op.op == Op.MUL:
            floor, scaled = bool(op.floor), bool(op.scaled)
            return Register(symbols.multiply(a.number, b.number, op.shift, floor=floor, scaled=scaled))
        if op.op in SERIAL:
            # `unsigned`: the first column's result for the whole row
            operand = a.number[:, :1].broadcast_to(self.shape) if op.unsigned else a.number
            return Register(symbols.reciprocal(operand, root=op.op == Op.RSQRT))
        if op.op == Op.TABLE:
            return Register(symbols.look_up(a.number, self.device.table(op.immediate)))
        if op.op == Op.SELECT:
            assert self.predicate is not None, "check_kernel"
            return select(symbols, self.predicate, first, b)
        if op.op == Op.INDEX:
            n = self.shape[1]
            return Register(symbols.limit(b.number.plus_constant(self.column * n + np.arange(n))))
        if op.op == Op.ADD:
            return add(symbols, first, b)
        return subtract(symbols, *((first, b) if op.op == Op.SUB else (b, first)))

    def _put(self, op: MicroOp, step: int, result: Register) -> None:
        if not op.d_memory:
            self.registers[op.d] = result
            return
        word = self.symbols.to_int32(result.number)
        self._write(op, step, self.device.values.apply_forms(word.singletons, [SATURATE] * self.shape[1]))
