"""The kernel engine in numpy: micro-operations on all rows of an instruction at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.hdl.errors import IsaError
from weft.hdl.isa import Kernel, Memory, Microcode, MicroOp
from weft.hdl.isa.kernel import (
    INT32_MIN,
    MULTIPLIER_BITS,
    REGISTERS,
    SERIAL,
    SOURCES,
    STRIP_ROWS,
    TARGETS,
    Op,
    check_kernel,
    kernel_at,
)
from weft.sim.device import DeviceError
from weft.sim.golden.memories import Memories, round_half_even, wrap
from weft.sim.golden.units import executes

_LARGEST = (1 << 31) - 1
_QUOTIENT = 65535


@executes(Microcode)
def microcode(memories: Memories, i: Microcode) -> None:
    """Execute `Microcode`: store its words."""
    for address, word in zip(memories.addresses(i, "entry").tolist(), i.ops, strict=True):
        memories.kernel[address] = word


@executes(Kernel)
def kernel(memories: Memories, i: Kernel) -> None:
    """Execute `Kernel`: rows are independent, and writes take effect at the end of the instruction."""
    try:
        ops = kernel_at(memories.kernel, int(memories.addresses(i, "start")))
        check_kernel(ops, i, memories.config)
    except IsaError as error:
        raise DeviceError(str(error)) from None
    NumpyKernelRun(memories, i).run(ops, memories.scratchpad)


@dataclass
class _Writes:
    """Deferred writes of an instruction: addresses, times as (strip, step, row), and vectors."""

    addresses: list[np.ndarray] = field(default_factory=list)
    times: list[np.ndarray] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)

    def apply(self, scratchpad: np.ndarray) -> None:
        """Write to `scratchpad` in order of time, so that the last write to an address wins."""
        if not self.addresses:
            return
        addresses, times, vectors = (
            np.concatenate(part) for part in (self.addresses, self.times, self.vectors)
        )
        # lexsort takes the most significant key last; numpy keeps the last of repeated indices.
        order = np.lexsort(times.T[::-1])
        scratchpad[addresses[order]] = vectors[order]


class KernelRun(ABC):
    """Execution of one `Kernel`: the sequence of its micro-operations, column by column, and their writes.

    Attributes
    ----------
    i : Kernel
    column : int
        Column of the current micro-operation.
    strip : array of int, (rows,)
        Number of the strip that each row belongs to.
    cells : dict
        Operands by name, with their addresses (rows, columns, vectors).
    """

    def __init__(self, memories: Memories, i: Kernel) -> None:
        self.i = i
        rows = i.ob * i.oy
        self.column = 0
        row = np.arange(rows)
        self.strip = row // i.oy * i.oy + row % i.oy // STRIP_ROWS
        self.cells = {
            operand.name: (operand, memories.addresses(i, operand.name).reshape(rows, i.ox, -1))
            for operand in i.OPERANDS
            if operand.name in (*SOURCES, *TARGETS) and operand.applies(i)
        }
        self._writes = _Writes()

    @abstractmethod
    def _step(self, op: MicroOp, step: int) -> None:
        """Execute a micro-operation; `step` counts the micro-operations executed before it."""

    def run(self, ops: Sequence[MicroOp], scratchpad: np.ndarray) -> None:
        """Execute the kernel, then write its results to `scratchpad` (vectors, N)."""
        at, step = 0, 0
        while True:
            op = ops[at]
            self._step(op, step)
            step += 1
            # `again` marks the end of a loop over columns, which starts at `target`.
            again = op.again and self.column + 1 < self.i.ox
            if op.again:
                self.column = self.column + 1 if again else 0
            if op.end and not again:
                break
            at = op.target if again else at + 1
        self._writes.apply(scratchpad)

    def _write(self, op: MicroOp, step: int, vectors: np.ndarray) -> None:
        """Record a write of `vectors` (rows, N) to the target of `op`, for the end of the kernel."""
        vector, index = divmod(op.d, len(TARGETS))
        _, addresses = self.cells[TARGETS[index]]
        row = np.arange(len(self.strip))
        self._writes.addresses.append(addresses[:, self.column, vector])
        self._writes.times.append(np.stack([self.strip, np.full_like(row, step), row], axis=1))
        self._writes.vectors.append(vectors)


class NumpyKernelRun(KernelRun):
    """Execution of one `Kernel` in numpy: registers int64 (rows, N) with int32 values, predicates bool (rows, N)."""

    def __init__(self, memories: Memories, i: Kernel) -> None:
        super().__init__(memories, i)
        self.memories = memories
        shape = i.ob * i.oy, memories.config.n
        self.registers = np.zeros((REGISTERS, *shape), np.int64)
        self.predicate = np.zeros(shape, bool)

    def _step(self, op: MicroOp, step: int) -> None:
        a, b = self._first(op), self._second(op)
        shifted = wrap(a << op.shift) if op.shift < 32 else np.zeros_like(a)
        if op.op == Op.LT:
            self.predicate = np.broadcast_to(shifted < b, self.predicate.shape)
        elif op.op == Op.EQ:
            self.predicate = np.broadcast_to(shifted == b, self.predicate.shape)
        else:
            self._store_result(op, step, self._result(op, a, b, shifted))

    def _first(self, op: MicroOp) -> np.ndarray:
        if not op.a_memory:
            return self.registers[op.a]
        vector, index = divmod(op.a, len(SOURCES))
        operand, addresses = self.cells[SOURCES[index]]
        values = self.memories.cells(operand)[addresses[:, self.column, vector]].astype(np.int64)
        if op.unsigned and operand.memory is Memory.SCRATCHPAD:
            values &= 0xFF
        if self.i.tail and self.column == self.i.ox - 1:
            values[:, self.i.tail :] = INT32_MIN if op.fill else 0
        return values

    def _second(self, op: MicroOp) -> np.ndarray:
        if op.b_immediate:
            return np.full_like(self.registers[0], op.immediate)
        # `swap` k exchanges lanes whose numbers differ in bit k - 1; 0 exchanges none.
        lanes = np.arange(self.memories.config.n)
        return self.registers[op.b][:, lanes ^ (1 << op.swap >> 1)]

    def _result(self, op: MicroOp, a: np.ndarray, b: np.ndarray, shifted: np.ndarray) -> np.ndarray:
        if op.op == Op.MUL:
            return _product(op, a, b)
        if op.op in SERIAL:
            # Unsigned: the result of lane 0 goes to all lanes.
            argument = a[:, :1] if op.unsigned else a
            result = reciprocal(argument) if op.op == Op.RECIPROCAL else inverse_root(argument)
            return np.broadcast_to(result, a.shape)
        if op.op == Op.TABLE:
            table = self.memories.lookup[op.immediate]
            return table[np.minimum(np.maximum(a, -128), 127) + 128].astype(np.int64)
        if op.op == Op.SELECT:
            return np.where(self.predicate, shifted, b)
        if op.op == Op.INDEX:
            n = self.memories.config.n
            return wrap(b + self.column * n + np.arange(n))
        if op.op in (Op.MIN, Op.MAX):
            return (np.minimum if op.op == Op.MIN else np.maximum)(shifted, b)
        return wrap({Op.ADD: shifted + b, Op.SUB: shifted - b, Op.RSUB: b - shifted}[Op(op.op)])

    def _store_result(self, op: MicroOp, step: int, result: np.ndarray) -> None:
        if not op.d_memory:
            self.registers[op.d] = result
            return
        self._write(op, step, np.minimum(np.maximum(result, -128), 127).astype(np.int8))


def _product(op: MicroOp, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # The product has at most 50 bits before rounding, so int64 is exact.
    half = 1 << (MULTIPLIER_BITS - 1)
    # The low bits of b are a signed factor; with `scaled`, the bits above are a shift.
    product = a * (((b & (2 * half - 1)) ^ half) - half)
    shift = np.minimum(op.shift + ((b >> MULTIPLIER_BITS & 63) if op.scaled else 0), 63)
    rounded = product >> shift if op.floor else round_half_even(product, np.asarray(shift, np.int64))
    return np.minimum(np.maximum(rounded, INT32_MIN), _LARGEST)


def _pack(factor: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    return (factor & ((1 << MULTIPLIER_BITS) - 1)) | exponent << MULTIPLIER_BITS


def _bits(values: np.ndarray) -> np.ndarray:
    # float64 represents 32-bit integers exactly, and the exponent is their number of bits.
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def reciprocal(a: np.ndarray) -> np.ndarray:
    """Compute RECIPROCAL of int32 values in int64 arrays, see `weft.hdl.isa.MicroOp`."""
    size = np.abs(a)
    bits = _bits(size)
    top = size << (32 - bits) >> 15  # the top 17 bits, normalised
    quotient = np.minimum((1 << 32) // np.maximum(top, 1), _QUOTIENT)
    quotient = np.where(a == 0, _QUOTIENT, quotient)
    return _pack(np.where(a < 0, -quotient, quotient), np.where(a == 0, 0, bits))


def inverse_root(a: np.ndarray) -> np.ndarray:
    """Compute RSQRT of int32 values in int64 arrays, see `weft.hdl.isa.MicroOp`."""
    positive = np.where(a > 0, a, 1)
    bits = _bits(positive)
    bits += bits & 1  # even, because the root has half the exponent
    root = np.array([math.isqrt(value) for value in (positive << (32 - bits)).ravel().tolist()], np.int64)
    quotient = np.minimum((1 << 31) // root.reshape(a.shape), _QUOTIENT)
    return _pack(np.where(a > 0, quotient, _QUOTIENT), np.where(a > 0, bits // 2, 0))
