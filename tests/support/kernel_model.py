"""A model of kernels in plain Python, written from the docstrings of `weft.hdl.isa.kernel`, and random kernels."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import isqrt

from weft.hdl.isa import Kernel, Microcode, MicroOp
from weft.hdl.isa.kernel import MICRO_OPS, Op
from weft.hdl.isa.operands import kernel_min_cycles, kernel_serial_cycles

STRIP = 8
READS = ("src", "b", "c", "d")
WRITES = ("dst", "dst2")


def wrap(value, bits=32):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def clamp(value, low, high):
    return min(max(value, low), high)


def reciprocal(a):
    """Return (f, e)."""
    if a == 0:
        return 65535, 0
    bits = abs(a).bit_length()
    top = (abs(a) << 32 - bits) >> 15
    f = min((1 << 32) // top, 65535)
    return (-f if a < 0 else f), bits


def inverse_root(a):
    if a <= 0:
        return 65535, 0
    bits = a.bit_length() + a.bit_length() % 2
    return min((1 << 31) // isqrt(a << 32 - bits), 65535), bits // 2


class Row:
    """One row of a kernel: registers and predicate, None where undefined."""

    def __init__(self, model, block, row):
        self.model, self.block, self.row = model, block, row
        self.n = model.n
        self.registers = [[None] * self.n for _ in range(8)]
        self.predicate = [None] * self.n

    def address(self, name, column, vector):
        i = self.model.i
        steps = (getattr(i, f"{name}_{loop}") for loop in ("ob", "oy", "ox"))
        moved = sum(step * at for step, at in zip(steps, (self.block, self.row, column), strict=True))
        assert vector < getattr(i, f"{name}_vectors")
        return (getattr(i, name) + vector + moved) % (1 << 16)

    def first(self, op, column):
        if not op.a_memory:
            return self.registers[op.a]
        name, i = READS[op.a % 4], self.model.i
        rows = name == "src" and i.source == 0
        values = self.model.fetch("a" if rows else "s", self.address(name, column, op.a // 4))
        if op.unsigned and not rows:
            values = [value & 0xFF for value in values]
        if i.tail and column == i.ox - 1:
            values = values[: i.tail] + [-(1 << 31) if op.fill else 0] * (self.n - i.tail)
        return values

    def second(self, op):
        if op.b_immediate:
            return [op.immediate] * self.n
        away = 1 << op.swap - 1 if op.swap else 0
        return [self.registers[op.b][lane ^ away] for lane in range(self.n)]

    def step(self, op, column):
        """Run one micro-operation; returns (address, bytes) if it writes to memory."""
        a, b = self.first(op, column), self.second(op)
        if op.op in (Op.RECIPROCAL, Op.RSQRT):
            one_of = reciprocal if op.op == Op.RECIPROCAL else inverse_root
            results = [one_of(value) for value in (a[:1] * self.n if op.unsigned else a)]
            result = [f & 0x3FFFF | e << 18 for f, e in results]
        else:
            result = [self.element(op, lane, column, a[lane], b[lane]) for lane in range(self.n)]
        if op.op in (Op.LT, Op.EQ):
            self.predicate = result
        elif op.d_memory:
            return self.address(WRITES[op.d % 2], column, op.d // 2), [
                clamp(value, -128, 127) for value in result
            ]
        else:
            self.registers[op.d] = result
        return None

    def element(self, op, lane, column, a, b):
        if op.op == Op.INDEX:
            return wrap(b + column * self.n + lane)
        if op.op == Op.MUL:
            e = (b >> 18) & 63 if op.scaled else 0
            exact = Fraction(a * wrap(b, 18), 1 << min(op.shift + e, 63))
            return clamp(exact.__floor__() if op.floor else round(exact), -(1 << 31), (1 << 31) - 1)
        if op.op == Op.TABLE:
            return self.model.memory.lookups[op.immediate][clamp(a, -128, 127) + 128]
        s = wrap(a << op.shift)
        return {
            Op.ADD: lambda: wrap(s + b), Op.SUB: lambda: wrap(s - b), Op.RSUB: lambda: wrap(b - s),
            Op.MIN: lambda: min(s, b), Op.MAX: lambda: max(s, b), Op.LT: lambda: s < b, Op.EQ: lambda: s == b,
            Op.SELECT: lambda: s if self.predicate[lane] else b,
        }[op.op]()  # fmt: skip


class KernelModel:
    """Reads, writes in order of time, and cycles of a `Kernel`; leaves memory unchanged."""

    def __init__(self, memory, i):
        self.memory, self.i, self.n = memory, i, memory.config.n
        self.read, self.writes, self.steps = set(), [], 0
        ops = []
        for word in memory.kernel[i.start :]:
            ops.append(MicroOp.decode(word))
            if ops[-1].end:
                break
        for block in range(i.ob):
            for first in range(0, i.oy, STRIP):
                self._strip(ops, [Row(self, block, row) for row in range(first, min(first + STRIP, i.oy))])

    def fetch(self, kind, address):
        memory = self.memory.scratchpad if kind == "s" else self.memory.accumulator
        address %= len(memory)
        self.read.add((kind, address))
        return [int(value) for value in memory[address]]

    def _strip(self, ops, rows):
        at = column = 0
        while True:
            op = ops[at]
            written = [row.step(op, column) for row in rows]
            size = len(self.memory.scratchpad)
            self.writes += [(write[0] % size, write[1]) for write in written if write]
            self.steps += self._cycles(op, len(rows))
            again = op.again and column < self.i.ox - 1
            column = column + 1 if again else 0 if op.again else column
            if again:
                at = op.target
            elif op.end:
                return
            else:
                at += 1

    def _cycles(self, op, rows):
        config = self.memory.config
        groups = config.groups
        if op.op in (Op.RECIPROCAL, Op.RSQRT):
            root = op.op == Op.RSQRT
            if op.unsigned:
                return rows * kernel_serial_cycles(1, groups, root=root)
            return rows * groups * kernel_serial_cycles(config.lanes, 1, root=root)
        return max(rows * groups, kernel_min_cycles(groups))

    def safe(self):
        targets = {address for address, _ in self.writes}
        return not targets & {address for kind, address in self.read if kind == "s"} and all(
            address >= self.memory.reserved for address in targets
        )

    def apply(self):
        for address, values in self.writes:
            self.memory.scratchpad[address] = values


class MicrocodeModel:
    """Writes of MICROCODE, with the interface of `KernelModel`."""

    def __init__(self, memory, i):
        self.memory, self.i = memory, i
        self.read, self.writes, self.steps = set(), [], i.count

    def safe(self):
        return True

    def apply(self):
        for at, word in enumerate(self.i.ops):
            self.memory.kernel[self.i.entry + at] = word


def microcode(ops, start, **given):
    """Return the instructions that put a kernel into memory."""
    words = [op.encode() for op in ops]
    return [
        Microcode(
            entry=start + at,
            count=len(words[at : at + MICRO_OPS]),
            **{f"op{index}": word for index, word in enumerate(words[at : at + MICRO_OPS])},
            **given,
        )
        for at in range(0, len(words), MICRO_OPS)
    ]


def random_op(rng, config, reads, writes):
    """Draw any operation, on registers that are all defined."""
    op = rng.choice(list(Op)) if rng.random() < 0.6 else rng.choice((Op.ADD, Op.SUB, Op.MUL))
    if op == Op.TABLE and not config.lookup_tables:
        op = Op.MAX
    serial = op in (Op.RECIPROCAL, Op.RSQRT)
    if serial and rng.random() < 0.6:
        op, serial = Op.MUL, False
    a_memory = int(rng.random() < 0.4)
    d_memory = int(not serial and op not in (Op.LT, Op.EQ) and bool(writes) and rng.random() < 0.4)
    b_immediate = int(rng.random() < 0.3)
    wide = rng.random() < 0.2
    swap = rng.randrange(config.n.bit_length()) if rng.random() < 0.5 else 0
    b = rng.randrange(8)
    targets = [d for d in range(8) if not swap or d != b]
    immediate = rng.choice((rng.randrange(-300, 300), rng.randrange(-(1 << 23), 1 << 23)))
    return MicroOp(
        op=op,
        shift=rng.randrange(64) if wide else rng.randrange(20) if op == Op.MUL else rng.choice((0, 0, 3, 8)),
        a_memory=a_memory, a=rng.choice(reads) if a_memory else rng.randrange(8),
        unsigned=rng.randrange(2), fill=rng.randrange(2),
        b_immediate=b_immediate, b=b,
        swap=swap,
        d_memory=d_memory, d=rng.choice(writes) if d_memory else rng.choice(targets),
        floor=rng.randrange(2), scaled=int(rng.random() < 0.3),
        immediate=rng.randrange(config.lookup_tables) if op == Op.TABLE else immediate,
    )  # fmt: skip


def random_kernel(rng, config, reads, writes):
    """Draw micro-operations that first set all registers and the predicate, then arbitrary ones with some loops."""
    ops = [
        MicroOp(
            op=Op.INDEX, b_immediate=1, immediate=rng.randrange(-(1 << 23), 1 << 23) >> rng.randrange(20), d=d
        )
        for d in range(8)
    ]
    ops.append(MicroOp(op=Op.LT, a=rng.randrange(8), b=rng.randrange(8)))
    free = 0
    for _ in range(rng.randrange(1, 6)):
        body = [random_op(rng, config, reads, writes) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.6:
            target = rng.randrange(max(free, 8 if rng.random() < 0.9 else 0), len(ops) + len(body))
            body[-1] = replace(body[-1], again=1, target=target)
            free = len(ops) + len(body)
        ops += body
    if ops[-1].op in (Op.RECIPROCAL, Op.RSQRT):
        ops.append(MicroOp(op=Op.ADD, a=1, b=2, d=3))
    ops[-1] = replace(ops[-1], end=1)
    return ops


def vectors_of(reads, writes):
    """Return each operand's vectors that these numbers in micro-operations refer to."""
    found = dict.fromkeys((*READS, *WRITES), 0)
    for names, numbers in ((READS, reads), (WRITES, writes)):
        for number in numbers:
            vector, index = divmod(number, len(names))
            found[names[index]] = max(found[names[index]], vector + 1)
    return found


def random_instruction(rng, config, start, reads, writes):
    """Draw a `Kernel` with any number of rows and any strides of operands."""

    def move():
        return rng.choice((0, 1, 2, -1, 5, rng.randrange(-(1 << 15), 1 << 15)))

    vectors = vectors_of(reads, writes)
    names = [name for name, count in vectors.items() if count]
    fields = {"source": rng.randrange(2), "start": start, "signal": rng.randrange(1, 1 << 16)}
    fields |= {
        "ob": rng.choice((1, 1, 2)),
        "oy": rng.choice((1, 2, 7, 8, 9, 17)),
        "ox": rng.choice((1, 2, 3, 6)),
    }
    fields |= {"tail": rng.choice((0, 0, rng.randrange(config.n + 1)))}
    for name in {*names, "src", "dst"}:
        fields |= {name: rng.randrange(1 << 16)} | {f"{name}_{loop}": move() for loop in ("ob", "oy", "ox")}
    fields |= {f"with_{name}": 1 for name in names if name not in ("src", "dst")}
    fields |= {f"{name}_vectors": max(count, 1) for name, count in vectors.items()}
    return Kernel(**fields)
