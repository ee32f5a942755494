"""Programs of one kind of instruction that store the scratchpad after each instruction.

Programs of all kinds overwrite most results, or cut them to 8 bits, before they are stored. Here every write to the
scratchpad is observed, and with a kernel engine accumulators are stored byte by byte. Loops may be long, and strides
large.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from support.core_cases import PLAIN, STALLS, Benches, Core, Scenario, compare_counters, compare_memory
from support.kernel_model import random_kernel
from support.random_instructions import DUMP, MEMORY
from support.random_programs import KERNELS, Generator
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    Bound,
    Instruction,
    Kernel,
    Load,
    Lookup,
    Microcode,
    MicroOp,
    Mm,
    Normalise,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
    places,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import Op

GROUPS: dict[str, tuple[type[Instruction], ...]] = {
    "loads": (Load,),
    "products": (Mm, Mm, Vec),
    "vectors": (Vec, Vec, Vec, Lookup),
    "rows": (Softmax, Softmax, Normalise, Table),
    "kernels": (Kernel, Kernel, Kernel, Microcode, Lookup),
    "stores": (Store,),
}
"""Kinds that a program draws, by name; some of them more often."""
LONG = {False: (33, 33, 33, 70, 70, 257, 1030, 4095), True: (33, 70)}
"""Iterations of a long loop, by whether a kernel runs it, which takes long for each."""
COUNTS = {False: (0x155, 0x2AA, 0x555, 0xAAA, 0x1555, 0x2AAA), True: (0x15, 0x2A, 0x155)}
"""Iterations of loops that each run alone; they mix bits of both kinds in every place."""
MOST_OF_SEQUENTIAL = 20_000
"""Upper limit of an instruction's iterations on the sequential core."""
LOOPS: dict[type[Instruction], tuple[str, ...]] = {
    Load: ("rows", "pixels"), Store: ("rows", "pixels"), Mm: ("nt", "ky", "kx", "kc", "oy", "ox"),
    Vec: ("ob", "oy", "ox"), Kernel: ("ob", "oy", "ox"),
}  # fmt: skip
"""Loops of each kind that may be long."""


class Observed(Generator):
    """Builder of a program that stores the effect of each instruction.

    Parameters
    ----------
    config : Config
    seed : int
    kinds : tuple of type
        Kinds of instructions.

    Attributes
    ----------
    stored : int
        Bytes stored so far.
    most : int
        Upper limit of iterations of an instruction with a long loop.
    """

    def __init__(self, config: Config, seed: int, kinds: tuple[type[Instruction], ...]) -> None:
        super().__init__(config, seed, serial=False)
        self._kinds = [kind for kind in kinds if not kind().unsupported(config)]
        self.stored = 0
        self.most = 1 << 40

    def build(self, count: int) -> None:
        """Build the prologue and up to `count` instructions, each with its observation."""
        self.prologue()
        self.observe()
        while count and self.stored + self._size() <= MEMORY - DUMP:
            kind, count = self.random.choice(self._kinds), count - 1
            if kind is Kernel:
                self._other_kernels()
            if any(self.append(self.draw(kind)) for _ in range(30)):
                self.observe(accumulators=kind is Mm)

    def draw(self, kind: type[Instruction]) -> Instruction:
        """Draw an instruction; sometimes one loop is long, or other numbers of a `Load` or `Store` are large."""
        drawn = super().draw(kind)
        if self.random.random() < 0.3:
            return dataclasses.replace(drawn, **self._large(drawn))
        if kind not in LOOPS or self.random.random() < 0.7:
            return drawn
        loop, count = self.random.choice(LOOPS[kind]), self.random.choice(LONG[kind is Kernel])
        long = self._stretch_loop(drawn, loop, count)
        return long if iterations(long) <= self.most else drawn

    def build_loops(self) -> None:
        """Build the prologue and, for each loop of each kind, instructions in which only that loop is long, with each
        of `COUNTS` that the field holds."""
        self.prologue()
        self.observe()
        for kind, loop, count in itertools.chain.from_iterable(
            itertools.product([kind], LOOPS[kind], COUNTS[kind is Kernel]) for kind in self._kinds
        ):
            if kind is Kernel:
                self._other_kernels()
            if count <= places(kind.OPCODE)[loop].high and self._append_long(kind, loop, count):
                self.observe(accumulators=kind is Mm)

    def _append_long(self, kind: type[Instruction], loop: str, count: int) -> bool:
        """Append the first valid instruction of many drawn ones."""
        for _ in range(300):
            drawn = super().draw(kind)
            one = dict.fromkeys((name for name in LOOPS[kind] if name in vars(drawn)), 1)
            if self.append(self._stretch_loop(dataclasses.replace(drawn, **one), loop, count)):
                return True
        return False

    @staticmethod
    def _stretch_loop(drawn: Instruction, loop: str, count: int) -> Instruction:
        """Return an instruction with that many iterations of a loop, along which only its address in memory moves."""
        kind, pick = type(drawn), random.Random(f"{drawn} {loop} {count}")
        strides = [name for name in vars(drawn) if name.endswith(f"_{loop}")]
        fields = {loop: count} | dict.fromkeys(strides, 0)
        if kind in (Load, Store):  # which must not meet the program
            step = max(1, 4000 // count)
            fields |= {"line": fields.get("rows", 1)} if kind is Load else {}
            fields |= {"row_pitch": pick.randrange(-step, step + 1) if loop == "rows" else 0}
            fields |= {"pitch": step, "length": pick.randrange(1, step + 1)} if loop == "pixels" else {}
            if count > 4000:  # apart from each other, else they are one transfer
                fields |= {"offset": pick.randrange(0x1000), "pitch": 2}
        return dataclasses.replace(drawn, **fields)

    def parameters(self) -> bytes:
        """Draw values of any magnitude in half of the columns, with shifts that bring them to bytes."""
        r, bits = self.random, self.config.mantissa_bits
        words = np.frombuffer(super().parameters(), "<u1").reshape(PARAMETER_VECTORS, self.config.n).T.copy()
        for column in words:
            if r.random() < 0.5:
                continue
            size = r.randrange(1, 32)
            bias = r.randrange(-(1 << size - 1), 1 << size - 1) if size > 1 else r.choice([-1, 0])
            mantissa, shift = r.randrange(1 << bits), min(63, bits + max(0, size - 8) + r.randrange(3))
            word = bias & 0xFFFFFFFF | mantissa << 32 | shift << 56
            column[:] = np.frombuffer(word.to_bytes(8, "little"), "<u1")
        return words.T.tobytes()

    def coordinates(self, bound: Bound) -> dict[str, int]:
        fields = super().coordinates(bound)
        if self.random.random() < 0.3:
            start = self.random.randrange(-(1 << 15), 1 << 15)
            limit = min(max(0, start + self.random.randrange(-3, 9)), (1 << 16) - 1)
            fields |= {bound.name: start, bound.limit: limit}
        return fields

    def _large(self, drawn: Instruction) -> dict[str, int]:
        """Return an instruction that moves bytes with other large fields; leave other instructions as they are."""
        r = self.random
        if isinstance(drawn, Store):
            apart = r.randrange(1, 0x1000)
            return r.choice(
                [
                    {"pixels": r.randrange(1, 4), "pitch": apart, "rows": 1},
                    {"rows": r.randrange(1, 4), "row_pitch": apart, "pixels": 1},
                    {
                        "rows": 1,
                        "pixels": 1,
                        "length": r.randrange(1, self._size()),
                        "src_vector": 1,
                        "src": 0,
                    },
                ]
            )
        if not isinstance(drawn, Load) or drawn.int4 or drawn.transpose:
            return {}
        length = r.randrange(1, self.scratchpad * self.config.n)
        one = {"rows": 1, "line": 1, "pixels": 1}
        return r.choice(
            [
                {"run": r.randrange(1, 1 << r.randrange(4, 15))},
                {"before": r.randrange(1 << 16)},
                {"pitch": r.randrange(1, 1 << 16), "pixels": 2, "run": r.randrange(1, 1 << 15)},
                one | {"length": length, "run": r.randrange(1, length + 9), "dst": 0, "dst_vector": 1},
                one
                | {
                    "row_pitch": r.randrange(-0x2000, 0x2000),
                    "rows": 2,
                    "skip": r.randrange(-0x2000, 0x2000),
                },
            ]
        )

    def observe(self, *, accumulators: bool = False) -> None:
        """Store the scratchpad, and some vectors of accumulators before it."""
        if accumulators and self.config.kernel:
            self._accumulators()
        assert self.append(dataclasses.replace(self.dump(), offset=self.stored))
        self.stored += self._size()

    def _size(self) -> int:
        """Return the bytes of the scratchpad."""
        return self.config.scratchpad_size * self.config.n

    def _other_kernels(self) -> None:
        room = self.config.kernel // KERNELS
        for start in self.kernels:
            ops = random_kernel(self.random, self.config, range(8), range(4))
            if len(ops) <= room:
                self.put(ops, start)

    def _accumulators(self) -> None:
        """Store the four bytes of the accumulators that fit, which a kernel copies to the scratchpad."""
        self.put(four_bytes(a_memory=1, a=0), 0)
        rows = min(self.config.accumulator_size, self.scratchpad // 4)
        first = self.random.randrange(self.config.accumulator_size - rows + 1)
        operands: dict[str, Any] = {"src": first, "dst_oy": 4, "dst2": 2, "dst2_oy": 4, "src_oy": 1}
        self.append(
            Kernel(
                source=Source.ACCUMULATOR,
                oy=rows,
                start=0,
                with_dst2=1,
                dst_vectors=2,
                dst2_vectors=2,
                **operands,
            )
        )
        self._other_kernels()


def iterations(instruction: Instruction) -> int:
    """Return the iterations of all loops of an instruction except over bytes and lanes."""
    names = [*LOOPS.get(type(instruction), ()), *(("ry", "rx") if isinstance(instruction, Vec) else ())]
    return math.prod(getattr(instruction, name) for name in names)


def four_bytes(**operand: int) -> list[MicroOp]:
    """Return a kernel's end that sends each byte of a 32-bit operand to one of the four targets, through register 0."""
    found = []
    for index, target in enumerate((0, 2, 1, 3)):
        found += [
            MicroOp(op=Op.ADD, **operand, shift=24 - 8 * index, b_immediate=1, immediate=0, d=0),
            MicroOp(op=Op.MUL, a=0, b_immediate=1, immediate=1, shift=24, floor=1, d_memory=1, d=target),
        ]
    return [*found[:-1], dataclasses.replace(found[-1], end=1)]


def observed_scenarios(core: Core, seeds: range, count: int) -> Iterator[Scenario]:
    """Yield, for each seed, a program of each group with about `count` instructions."""
    for seed in seeds:
        for name, kinds in GROUPS.items():
            if all(kind().unsupported(core.config) for kind in kinds):
                continue
            bench = Benches(core).of(random.Random(f"{seed} {name}").choice((*PLAIN, *STALLS)))
            bench.fresh = False
            made = Observed(core.config, seed, kinds)
            if core.sequential:  # some hundred cycles each
                made.most = MOST_OF_SEQUENTIAL
            made.build(count)
            step = compare_memory(f"{name} {seed}", made, made.program, bench)
            yield Scenario(step.name, bench, [step])


def long_loops(core: Core, kinds: Iterable[type[Instruction]] = LOOPS) -> Iterator[Scenario]:
    """Yield a program for each of the kinds that have loops, in which each loop is long. All bytes must match, and
    counters except for kernels: the cycle model does not know divisions to the cycle."""
    for kind in kinds:
        if kind().unsupported(core.config):
            continue
        bench = Benches(core).of({"latency": 1})
        made, name = Observed(core.config, 4000, (kind,)), f"long loops of {kind.__name__}"
        made.build_loops()
        same = compare_memory if kind is Kernel else partial(compare_counters, core)
        yield Scenario(name, bench, [same(name, made, made.program, bench)])
