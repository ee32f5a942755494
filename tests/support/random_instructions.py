"""Random instructions: operands within their memories, and fields that satisfy each instruction's rules."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from support.kernel_model import random_op
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    Bound,
    Instruction,
    Kernel,
    Memory,
    Normalise,
    Reduce,
    Softmax,
    Source,
    VectorInstruction,
    places,
    required_features,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.encoding import group_bytes
from weft.hdl.isa.kernel import MICRO_OPS, kernel_at
from weft.sim.golden.memories import Memories

MEMORY = 1 << 18
INPUT, OUTPUT, PROGRAM, DUMP = 0, 0x8000, 0x10000, 0x18000  # regions of 32 KiB, but for the dump
PAGES, PAGE_COUNT = 0x7800, 64  # the page table, which no load meets otherwise
ALIGNED = 0  # the base register that is a multiple of the width of the bus, where values of 4 bits are read
BLOCKS = 2  # parameter blocks at the end of the scratchpad that nothing overwrites
ATTEMPTS = 1000
OPERANDS = ("b", "c", "d", "dst2")
"""Optional operands of a `Kernel`."""
REGISTERS_FILLED = 9
"""Micro-operations of a kernel that fill registers and the predicate."""


class Drawing:
    """Generator of instructions. `memories` holds the device's memories before them."""

    def __init__(self, config: Config, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.memories = Memories(config, MEMORY)
        self.bases = [self.random.randrange(INPUT, OUTPUT) for _ in range(4)] + [OUTPUT, PAGES, DUMP, 0]
        if config.int4:
            self.bases[ALIGNED] &= -config.bus_bytes
        self.pages = [self.random.getrandbits(32) for _ in range(PAGE_COUNT)]
        self.scratchpad = config.scratchpad_size - BLOCKS * PARAMETER_VECTORS
        self.kernels: list[int] = []

    def draw(self, kind: type[Instruction]) -> Instruction:
        """Draw an instruction: its own method's fields, operands within their memories, and the rest at random.

        A kind without a method has no rules beyond those of its fields and operands.
        """
        fields: dict[str, Any] = getattr(self, kind.__name__.lower(), dict)()
        requires = required_features(kind.OPCODE)
        counts = {loop.count for operand in kind.OPERANDS for loop in operand.loops}
        starts = {
            operand.name
            for operand in kind.OPERANDS
            if operand.start is None and (operand.register or operand.memory.size(self.config))
        }
        for name, place in places(kind.OPCODE).items():
            taken = name in fields or any(name == start or name.startswith(f"{start}_") for start in starts)
            if name in requires and requires[name].missing(self.config):
                fields[name] = 0
            elif not taken:
                most = 5 if name in counts else place.high
                fields[name] = self.random.randint(place.low, most)
        fields |= {"wait": 0, "signal": 0}
        for name in sorted(starts):
            self.operand(kind, name, fields)
        return kind(**fields)

    def operand(self, kind: type[Instruction], name: str, fields: dict[str, Any]) -> None:
        """Draw the first address of an operand and its strides, unless they are in `fields`."""
        declared = [operand for operand in kind.OPERANDS if operand.name == name]
        trial = kind(**fields)
        operand = next((operand for operand in declared if operand.applies(trial)), declared[0])
        if operand.register is not None:
            return
        counts = [loop.iterations(trial, self.config) for loop in operand.loops]
        names = [loop.stride for loop in operand.loops]
        fixed = [
            loop.step(trial) if isinstance(loop.stride, int) or loop.stride in fields else None
            for loop in operand.loops
        ]
        start, strides = self.loops(self.size(operand.memory), counts, fixed)
        drawn = {str(stride): step for stride, step in zip(names, strides, strict=True)}
        for stride in (loop.stride for other in declared for loop in other.loops):
            drawn.setdefault(str(stride), self.random.randrange(-9, 9))
        own = places(kind.OPCODE)
        fields |= {name: start} | {key: step for key, step in drawn.items() if key in own} | fields
        for bound in operand.bounds:
            fields |= self.coordinates(bound)

    def size(self, memory: Memory) -> int:
        """Return the number of addresses of a memory that instructions may use."""
        if memory is Memory.SCRATCHPAD:
            return self.scratchpad
        return min(memory.size(self.config), 64) if memory is Memory.STATES else memory.size(self.config)

    def loops(self, size: int, counts: list[int], fixed: list[int | None]) -> tuple[int, list[int]]:
        """Return a start and strides of nested loops, outermost first, within `size` addresses; all but `fixed` ones
        are random."""
        strides: list[int] = []
        for _ in range(ATTEMPTS):
            strides, span = [], 1
            for count, given in zip(reversed(counts), reversed(fixed), strict=True):
                small = self.random.choice([0, 1, 2, 3, -1, -2])
                stride = self.random.choice([small, span, span, -span, span + 1]) if given is None else given
                strides.insert(0, stride)
                span = max(span, abs(stride) * count)
            low = sum(min(0, stride * (count - 1)) for stride, count in zip(strides, counts, strict=True))
            high = sum(max(0, stride * (count - 1)) for stride, count in zip(strides, counts, strict=True))
            if high - low < size:
                return self.random.randrange(-low, size - high), strides
        return 0, strides  # those that are fixed do not fit, and the program checker will say so

    def coordinates(self, bound: Bound) -> dict[str, int]:
        """Return a start, steps and a bound with some coordinates out of range, or none."""
        steps = {f"{bound.name}_{name}": self.random.choice([0, 1, 1, 2, -1]) for name in bound.loops}
        if self.random.random() < 0.4:
            return dict.fromkeys(steps, 0) | {bound.name: 0, bound.limit: 1}
        return steps | {bound.name: self.random.randrange(-3, 4), bound.limit: self.random.randrange(1, 9)}

    def load(self) -> dict[str, Any]:
        r, n = self.random, self.config.n
        transpose, paged = (int(self.config.softmax and r.random() < 0.3) for _ in range(2))
        line, pixels = r.randrange(1, 5), r.randrange(1, 7)
        most = r.choice([n, self.config.transposed_vectors * n]) if transpose else 3 * n + 1
        length = r.randrange(1, most + 1)
        pitch = r.randrange(length if transpose and length > n else 1, length + n + 1)
        needed = (pixels - 1) * pitch + length
        base = r.randrange(4 if paged else 5)
        target = (OUTPUT if base == 4 else INPUT) + r.randrange(0x1000, 0x6000)
        page = r.randrange(PAGE_COUNT) if paged else 0
        fields = {
            "base": base, "offset": (target - self.bases[base] - paged * self.pages[page]) % (1 << 32),
            "rows": line * r.choice([1, 1, r.randrange(1, 4)]), "row_pitch": r.randrange(-300, 300), "line": line,
            "skip": r.choice([0, r.randrange(-300, 300)]), "pixels": pixels, "pitch": pitch, "length": length,
            "before": r.choice([0, 0, r.randrange(needed + 3)]), "run": r.randrange(1, needed + 9),
            "transpose": transpose, "paged": paged, "table": 5 * paged, "page": page, "int4": 0, "blocks": 0,
        }  # fmt: skip
        return fields | (self.narrow(fields) if self.config.int4 and not paged and r.random() < 0.5 else {})

    def narrow(self, fields: dict[str, Any]) -> dict[str, int]:
        """Return the fields of a `Load` of 4-bit values, whose rows begin on words of the bus."""
        bus = self.config.bus_bytes
        first = (self.random.randrange(0x1000, 0x6000) - self.bases[ALIGNED]) // bus * bus
        pitches = {name: fields[name] // bus * bus for name in ("row_pitch", "skip")}
        run = max(1, fields["run"] // self.random.choice([1, 2, 2]))
        blocks = int(self.config.blocks and self.random.random() < 0.6)
        if blocks:
            run = group_bytes(self.config.n) * self.random.randrange(1, 4)
        return {
            "int4": 1, "base": ALIGNED, "offset": first % (1 << 32), "run": run, "blocks": blocks, **pitches,
        }  # fmt: skip

    def store(self) -> dict[str, Any]:
        r = self.random
        length = r.randrange(1, 3 * self.config.n + 2)
        return {
            "base": 4, "offset": r.randrange(0x1000, 0x6000), "rows": r.randrange(1, 5),
            "row_pitch": r.randrange(-300, 300), "pixels": r.randrange(1, 7),
            "pitch": length + r.choice([0, 0, r.randrange(9)]), "length": length,
        }  # fmt: skip

    def mm(self) -> dict[str, Any]:
        r = self.random
        counts = {name: r.choice([1, 1, 2, 3]) for name in ("nt", "ky", "kx", "kc")}
        counts |= {"oy": r.choice([1, 1, 2, 5]), "ox": r.choice([1, 2, 4, 9])}
        entries = math.prod(counts.values()) // counts["nt"]
        align = int(self.config.softmax and r.random() < 0.5 and entries <= self.config.alignments)
        return counts | {
            "zero": r.choice([0, -128, r.randrange(-128, 128)]), "align": align,
            "alignment": align * self.low(max(1, self.config.alignments - entries)),
        }  # fmt: skip

    def vec(self) -> dict[str, Any]:
        r = self.random
        multiply = self.config.multiply and r.random() < 0.3
        reduce = Reduce.NONE if multiply else r.choice(list(Reduce))
        ry, rx = (1, 1) if reduce == Reduce.NONE else (r.randrange(1, 4), r.randrange(1, 4))
        bits = r.randrange(1, self.config.mantissa_bits + 1)
        params = self.block() if r.random() < 0.8 else r.randrange(self.scratchpad)
        return self.clamp() | {
            "source": Source.SCRATCHPAD if multiply or r.random() < 0.3 else Source.ACCUMULATOR, "reduce": reduce,
            "multiply": int(multiply), "add": int(multiply) or r.randrange(2),
            "ob": r.choice([1, 1, 2]), "oy": r.choice([1, 2, 3]), "ox": r.choice([1, 2, 5, 9]), "ry": ry, "rx": rx,
            "b_mantissa": r.randrange(1 << bits), "b_zero": r.randrange(-128, 128), "params": params,
        }  # fmt: skip

    def clamp(self) -> dict[str, int]:
        """Return limits of the output."""
        low = self.random.choice([-128, -128, self.random.randrange(-128, 100)])
        return {"low": low, "high": self.random.choice([127, self.random.randrange(low, 128)])}

    def block(self) -> int:
        """Return one of the parameter blocks that nothing overwrites."""
        return self.scratchpad + PARAMETER_VECTORS * self.random.randrange(BLOCKS)

    def low(self, count: int) -> int:
        """Return an address below `count`, mostly a small one, so that instructions collide."""
        return self.random.randrange(self.random.choice([min(count, 8), min(count, 40), count]))

    def outputs(self, kind: type[VectorInstruction], *counts: int) -> dict[str, Any]:
        """Return loops over outputs; some are in place, and most alignments are consecutive, as in attention."""
        fields: dict[str, Any] = dict(zip(("ob", "oy", "ox"), counts, strict=True))
        fields["source"] = self.random.choice([Source.ACCUMULATOR, Source.SCRATCHPAD])
        if self.random.random() < 0.7:
            steps = {"alignment_ob": counts[1] * counts[2], "alignment_oy": counts[2], "alignment_ox": 1}
            fields |= {"alignment": self.low(16)} | steps
        if fields["source"] == Source.SCRATCHPAD and self.random.random() < 0.3:
            self.operand(kind, "dst", fields)
            fields |= {name.replace("dst", "src"): value for name, value in fields.items() if "dst" in name}
        return fields

    def softmax(self) -> dict[str, Any]:
        r = self.random
        counts = r.choice([1, 2, 4]), r.choice([1, 2, 3]), r.choice([1, 2, 5, 9])
        relative, register = r.randrange(2), r.randrange(8)
        start = relative * self.bases[register]

        def bound(count: int) -> int:
            wanted = r.choice([r.randrange(-3, count + 3), count, r.randrange(-(1 << 15), 1 << 15)])
            return min(max(wanted - start, -(1 << 15)), (1 << 15) - 1)

        width = counts[0] * self.config.n
        return self.outputs(Softmax, *counts) | {
            "params": self.block() if r.random() < 0.9 else r.randrange(self.scratchpad),
            "relative": relative, "register": register, "length": bound(width), "diagonal": bound(width),
            **r.choice([{"first": 1, "final": 0}, {"first": 0, "final": 1}, {"first": 0, "final": 0}]),
        }  # fmt: skip

    def normalise(self) -> dict[str, Any]:
        r = self.random
        counts = r.choice([1, 1, 2]), r.choice([1, 2, 5, 9]), r.choice([1, 2, 4])
        return self.outputs(Normalise, *counts) | self.clamp() | {
            "exponent": r.choice([r.randrange(-4, 10), r.randrange(-64, 64)]),
            "v_zero": r.choice([0, r.randrange(-128, 128)]),
        }  # fmt: skip

    def table(self) -> dict[str, Any]:
        return {"vectors": min(self.random.choice([1, 2, 9]), self.config.table_depth // self.config.n)}

    def lookup(self) -> dict[str, Any]:
        vectors = self.random.randrange(1, LOOKUP_ENTRIES // self.config.n + 1)
        return {"vectors": vectors, "entry": self.low(LOOKUP_ENTRIES - vectors * self.config.n + 1)}

    def kernel(self) -> dict[str, Any]:
        """Return any number of rows of one of the kernels, with all optional operands."""
        r = self.random
        counts = {"ob": r.choice([1, 1, 2]), "oy": r.choice([1, 3, 8, 9, 17]), "ox": r.choice([1, 2, 4])}
        fields: dict[str, Any] = counts | {f"with_{name}": 1 for name in OPERANDS}
        fields |= {f"{name}_vectors": 2 for name in ("src", "dst", *OPERANDS)}
        fields |= {"start": r.choice(self.kernels), "tail": r.choice([0, r.randrange(self.config.n + 1)])}
        if r.random() < 0.5:  # small operands, so that they fit beside each other
            for name in ("src", *OPERANDS, "dst"):
                fields |= {f"{name}_ob": 0, f"{name}_oy": r.choice([0, 1]), f"{name}_ox": 0}
        if r.random() < 0.3:
            self.operand(Kernel, "dst", fields)
            name = r.choice(["src", "b", "c", "d"])
            moved = {
                key.replace("dst", name): value for key, value in fields.items() if key.split("_")[0] == "dst"
            }
            fields |= moved | ({"source": Source.SCRATCHPAD} if name == "src" else {})
        return fields

    def microcode(self) -> dict[str, Any]:
        """Return other micro-operations for one of the kernels, none of which fills registers."""
        start = self.random.choice(self.kernels)
        ops = kernel_at(self.memories.kernel, start)
        first = self.random.randrange(REGISTERS_FILLED, len(ops))
        count = self.random.randrange(1, min(MICRO_OPS, len(ops) - first) + 1)
        words = []
        for op in ops[first : first + count]:
            new = random_op(self.random, self.config, range(8), range(4))
            words.append(dataclasses.replace(new, again=op.again, target=op.target, end=op.end).encode())
        rest = dict.fromkeys((f"op{index}" for index in range(MICRO_OPS)), 0)
        return (
            rest
            | {"entry": start + first, "count": count}
            | {f"op{at}": word for at, word in enumerate(words)}
        )

    def parameters(self) -> bytes:
        """Return a block whose results mostly lie inside int8."""
        r = self.random
        words = []
        for _ in range(self.config.n):
            mantissa = r.randrange(1 << (self.config.mantissa_bits - 1), 1 << self.config.mantissa_bits)
            shift = self.config.mantissa_bits + r.randrange(2, 10)
            words.append(r.randrange(-3000, 3000) & 0xFFFFFFFF | mantissa << 32 | shift << 56)
        return block_of(words)


def block_of(words: list[int]) -> bytes:
    """Return a parameter block of its columns' words: (bias, mantissa, shift) from the low bits on."""
    return bytes(word >> 8 * byte & 0xFF for byte in range(PARAMETER_VECTORS) for word in words)
