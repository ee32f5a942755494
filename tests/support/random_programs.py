"""Random programs within the rules of the program checker.

They are ordered by semaphores only as these rules need (or fully, in some programs), so units overlap in many ways.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable

import numpy as np

from weft.hdl.checker.program import ProgramError, check
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    End,
    Instruction,
    Load,
    Mm,
    Normalise,
    Opcode,
    Queue,
    Reduce,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
)
from weft.hdl.isa.config import Config
from weft.sim.device import Device, DeviceError
from weft.sim.golden.memories import Memories
from weft.sim.golden.units import EXECUTE

MEMORY = 1 << 18
INPUT, OUTPUT, PROGRAM, DUMP = 0, 0x8000, 0x10000, 0x18000  # regions of 32 KiB, but for the dump
PAGES, PAGE_COUNT = 0x7800, 64  # the page table, which no load of `Generator` meets otherwise
SOFTMAX = {Opcode.SOFTMAX, Opcode.NORMALISE, Opcode.TABLE}
FLAGS = {
    (Load, "transpose"), (Load, "paged"), (Mm, "align"), (Mm, "zero"), (Softmax, "first"), (Softmax, "final"),
    (Softmax, "causal"), (Softmax, "relative"), (Softmax, "source"), (Normalise, "scaled"), (Normalise, "v_zero"),
    (Normalise, "source"),
}  # fmt: skip
"""Fields of softmax and attention that every comparison must have met."""
BLOCKS = 2  # parameter blocks at the end of the scratchpad that nothing overwrites
ATTEMPTS = 1000


class Generator:
    """Builds one program. `memories` holds what the device would after it, so candidates can be tried."""

    def __init__(self, config: Config, seed: int, *, serial: bool) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.serial = serial
        self.memories = Memories(config, MEMORY)
        self.program: list[Instruction] = []
        self.last: dict[Queue, int] = {}
        self.seen: set[tuple[int, Queue]] = set()
        self.bases = [self.random.randrange(INPUT, OUTPUT) for _ in range(4)] + [OUTPUT, PAGES, DUMP, 0]
        self.pages = [self.random.getrandbits(32) for _ in range(PAGE_COUNT)]
        self.scratchpad = config.scratchpad_size - BLOCKS * PARAMETER_VECTORS

    def loops(self, size: int, counts: list[int], *, steps: list[int] | None = None) -> tuple[int, list[int]]:
        """A start and random strides for nested loops, outermost first, that stay within `size` addresses."""
        while True:
            strides: list[int] = []
            span = 1
            for count in reversed(counts):
                small = self.random.choice([0, 1, 2, 3, -1, -2])
                stride = self.random.choice([small, span, span, -span, span + 1])
                strides.insert(0, stride)
                span = max(span, abs(stride) * count)
            low = sum(min(0, stride * (count - 1)) for stride, count in zip(strides, counts, strict=True))
            high = sum(max(0, stride * (count - 1)) for stride, count in zip(strides, counts, strict=True))
            if high - low < size:
                return self.random.randrange(-low, size - high), strides

    def coordinates(self, counts: dict[str, int], axis: str) -> dict[str, int]:
        """A start, steps and a bound that leave some coordinates out of range, or none."""
        steps = {f"{axis}_{name}": self.random.choice([0, 1, 1, 2, -1]) for name in counts}
        if self.random.random() < 0.4:
            return {f"{axis}_{name}": 0 for name in counts} | {axis: 0, "hw"[axis == "x"]: 1}
        return steps | {axis: self.random.randrange(-3, 4), "hw"[axis == "x"]: self.random.randrange(1, 9)}

    def load(self) -> Load:
        r, n = self.random, self.config.n
        transpose, paged = (int(self.config.softmax and r.random() < 0.3) for _ in range(2))
        line, pixels, length = (
            r.randrange(1, 5),
            r.randrange(1, 7),
            r.randrange(1, (n if transpose else 3 * n + 1) + 1),
        )
        rows = line * r.choice([1, 1, r.randrange(1, 4)])
        if transpose:
            dst, (dst_row, dst_vector) = self.loops(self.scratchpad, [-(-rows * pixels // n), n])
            dst_pixel = r.randrange(-9, 9)
        else:
            dst, (dst_row, dst_pixel, dst_vector) = self.loops(
                self.scratchpad, [rows, pixels, -(-length // n)]
            )
        pitch = r.randrange(1, length + n + 1)
        needed = (pixels - 1) * pitch + length
        base = r.randrange(4 if paged else 5)
        region = OUTPUT if base == 4 else INPUT
        target = region + r.randrange(0x1000, 0x6000)
        page = r.randrange(PAGE_COUNT) if paged else 0
        return Load(
            base=base, offset=(target - self.bases[base] - paged * self.pages[page]) % (1 << 32), rows=rows,
            row_pitch=r.randrange(-300, 300), line=line, skip=r.choice([0, r.randrange(-300, 300)]),
            pixels=pixels, pitch=pitch, length=length, before=r.choice([0, 0, r.randrange(needed + 3)]),
            run=r.randrange(1, needed + 9), fill=r.randrange(-128, 128), dst=dst, dst_vector=dst_vector,
            dst_pixel=dst_pixel, dst_row=dst_row, transpose=transpose, paged=paged, table=5 * paged, page=page,
        )  # fmt: skip

    def store(self) -> Store:
        r, n = self.random, self.config.n
        rows, pixels, length = r.randrange(1, 5), r.randrange(1, 7), r.randrange(1, 3 * n + 2)
        src, (src_row, src_pixel, src_vector) = self.loops(self.scratchpad, [rows, pixels, -(-length // n)])
        return Store(
            base=4, offset=r.randrange(0x1000, 0x6000), rows=rows, row_pitch=r.randrange(-300, 300), pixels=pixels,
            pitch=length + r.choice([0, 0, r.randrange(9)]), length=length, src=src, src_vector=src_vector,
            src_pixel=src_pixel, src_row=src_row,
        )  # fmt: skip

    def mm(self) -> Mm:
        r = self.random
        nt, ky, kx, kc = (r.choice([1, 1, 2, 3]) for _ in range(4))
        oy, ox = r.choice([1, 1, 2, 5]), r.choice([1, 2, 4, 9])
        a, (a_nt, a_ky, a_kx, a_kc, a_oy, a_ox) = self.loops(self.scratchpad, [nt, ky, kx, kc, oy, ox])
        b, (b_nt, b_ky, b_kx, b_kc, b_row) = self.loops(self.scratchpad, [nt, ky, kx, kc, self.config.n])
        c, (c_nt, c_oy, c_ox) = self.loops(self.config.accumulator_size, [nt, oy, ox])
        entries = ky * kx * kc * oy * ox
        align = int(self.config.softmax and r.random() < 0.5 and entries <= self.config.alignments)
        zero = r.choice([0, -128, r.randrange(-128, 128)]) if self.config.wide_activations else 0
        return Mm(
            accumulate=r.randrange(2), nt=nt, ky=ky, kx=kx, kc=kc, oy=oy, ox=ox, a=a, a_nt=a_nt, a_ky=a_ky, a_kx=a_kx,
            a_kc=a_kc, a_oy=a_oy, a_ox=a_ox, pad=r.randrange(-128, 128), b=b, b_nt=b_nt, b_ky=b_ky, b_kx=b_kx,
            b_kc=b_kc, b_row=b_row, c=c, c_nt=c_nt, c_oy=c_oy, c_ox=c_ox,
            zero=zero, align=align, alignment=align * self.low(max(1, self.config.alignments - entries)),
            **self.coordinates({"ky": ky, "oy": oy}, "y"), **self.coordinates({"kx": kx, "ox": ox}, "x"),
        )  # fmt: skip

    def vec(self) -> Vec:
        r = self.random
        ob, oy, ox = r.choice([1, 1, 2]), r.choice([1, 2, 3]), r.choice([1, 2, 5, 9])
        reduce = r.choice(list(Reduce))
        ry, rx = (1, 1) if reduce == Reduce.NONE else (r.randrange(1, 4), r.randrange(1, 4))
        source = r.choice([Source.ACCUMULATOR, Source.ACCUMULATOR, Source.SCRATCHPAD])
        size = self.config.accumulator_size if source == Source.ACCUMULATOR else self.scratchpad
        src, (src_ob, src_oy, src_ox, src_ry, src_rx) = self.loops(size, [ob, oy, ox, ry, rx])
        dst, (dst_ob, dst_oy, dst_ox) = self.loops(self.scratchpad, [ob, oy, ox])
        b, (b_ob, b_oy, b_ox) = self.loops(self.scratchpad, [ob, oy, ox])
        low = r.choice([-128, -128, r.randrange(-128, 100)])
        params = self.scratchpad + PARAMETER_VECTORS * r.randrange(BLOCKS)
        if r.random() < 0.2:
            params = r.randrange(self.scratchpad)
        return Vec(
            source=source, reduce=reduce, add=r.randrange(2), ob=ob, oy=oy, ox=ox, ry=ry, rx=rx, src=src,
            src_ob=src_ob, src_oy=src_oy, src_ox=src_ox, src_ry=src_ry, src_rx=src_rx, pad=r.randrange(-128, 128),
            dst=dst, dst_ob=dst_ob, dst_oy=dst_oy, dst_ox=dst_ox, b=b, b_ob=b_ob, b_oy=b_oy, b_ox=b_ox,
            b_mantissa=r.randrange(1 << r.randrange(1, self.config.mantissa_bits + 1)), b_zero=r.randrange(-128, 128),
            params=params, zero=r.randrange(-128, 128), low=low, high=r.choice([127, r.randrange(low, 128)]),
            **self.coordinates({"oy": oy, "ry": ry}, "y"), **self.coordinates({"ox": ox, "rx": rx}, "x"),
        )  # fmt: skip

    def low(self, count: int) -> int:
        """An address below `count`, mostly a small one, so that instructions meet."""
        return self.random.randrange(self.random.choice([min(count, 8), min(count, 40), count]))

    def states(self, names: tuple[str, str], counts: list[int]) -> dict[str, int]:
        start, strides = self.loops(min(self.config.row_states, 64), counts)
        return {"state": start} | {f"state_{name}": step for name, step in zip(names, strides, strict=True)}

    def alignments(self, counts: list[int]) -> dict[str, int]:
        start, strides = self.loops(self.config.alignments, counts)
        if self.random.random() < 0.7:  # one after the other, as attention has them
            start, strides = self.low(16), [counts[1] * counts[2], counts[2], 1]
        names = ("alignment_ob", "alignment_oy", "alignment_ox")
        return {"alignment": start} | dict(zip(names, strides, strict=True))

    def outputs(self, counts: list[int]) -> dict[str, int]:
        """Fields of `VectorInstruction`."""
        source = self.random.choice([Source.ACCUMULATOR, Source.SCRATCHPAD])
        size = self.config.accumulator_size if source == Source.ACCUMULATOR else self.scratchpad
        src, from_ = self.loops(size, counts)
        dst, to = self.loops(self.scratchpad, counts)
        if source == Source.SCRATCHPAD and self.random.random() < 0.3:
            dst, to = src, from_
        fields = {"source": int(source), "src": src, "dst": dst}
        for name, count, one, two in zip(("ob", "oy", "ox"), counts, from_, to, strict=True):
            fields |= {name: count, f"src_{name}": one, f"dst_{name}": two}
        return fields

    def softmax(self) -> Softmax:
        r = self.random
        counts = [r.choice([1, 2, 4]), r.choice([1, 2, 3]), r.choice([1, 2, 5, 9])]
        relative, register = r.randrange(2), r.randrange(8)
        start = relative * self.bases[register]

        def bound(count: int) -> int:
            wanted = r.choice([r.randrange(-3, count + 3), count, r.randrange(-(1 << 15), 1 << 15)])
            return min(max(wanted - start, -(1 << 15)), (1 << 15) - 1)

        width = counts[0] * self.config.n
        stage = r.choice([{"first": 1}, {"final": 1}, {}])
        params = self.scratchpad + PARAMETER_VECTORS * r.randrange(BLOCKS)
        return Softmax(
            params=params if r.random() < 0.9 else r.randrange(self.scratchpad), causal=r.randrange(2),
            relative=relative, register=register, length=bound(width), diagonal=bound(width),
            **stage, **self.outputs(counts), **self.states(("oy", "ox"), counts[1:]), **self.alignments(counts),
        )  # fmt: skip

    def normalise(self) -> Normalise:
        r = self.random
        counts = [r.choice([1, 1, 2]), r.choice([1, 2, 5, 9]), r.choice([1, 2, 4])]
        low = r.choice([-128, -128, r.randrange(-128, 100)])
        return Normalise(
            scaled=r.randrange(2), scale=r.randrange(1 << 15, 1 << 16),
            exponent=r.choice([r.randrange(-4, 10), r.randrange(-64, 64)]),
            v_zero=r.choice([0, r.randrange(-128, 128)]), zero=r.randrange(-128, 128), low=low,
            high=r.choice([127, r.randrange(low, 128)]),
            **self.outputs(counts), **self.states(("ob", "oy"), counts[:2]), **self.alignments(counts),
        )  # fmt: skip

    def table(self) -> Table:
        vectors = min(self.random.choice([1, 2, 9]), self.config.table_depth // self.config.n)
        return Table(src=self.random.randrange(self.scratchpad - vectors + 1), vectors=vectors)

    def parameters(self) -> bytes:
        """A block whose results mostly lie inside int8."""
        r = self.random
        words = []
        for _ in range(self.config.n):
            mantissa = r.randrange(1 << (self.config.mantissa_bits - 1), 1 << self.config.mantissa_bits)
            shift = self.config.mantissa_bits + r.randrange(2, 10)
            words.append(r.randrange(-3000, 3000) & 0xFFFFFFFF | mantissa << 32 | shift << 56)
        return bytes(word >> 8 * byte & 0xFF for byte in range(PARAMETER_VECTORS) for word in words)

    def ordered(self, instruction: Instruction) -> list[Instruction]:
        """The program with `instruction` behind the last of every other queue; -1 marks nothing known of a queue."""
        program, wait = list(self.program), 0
        queue = instruction.QUEUE
        assert queue is not None
        for other, index in self.last.items():
            if other == queue or (index, queue) in self.seen:
                continue
            semaphore = 1 << 4 * other + queue
            program[index] = dataclasses.replace(program[index], signal=program[index].signal | semaphore)
            wait |= semaphore
            self.seen.add((index, queue))
        return [*program, dataclasses.replace(instruction, wait=wait)]

    def append(self, instruction: Instruction) -> bool:
        """Add `instruction` if it is valid here: as it is if that is no race, else behind all others."""
        try:
            check([instruction, End()], self.config)
            trial = copy.deepcopy(self.memories)
            EXECUTE[instruction.OPCODE](trial, instruction)
            if trial.table.max() >> self.config.probability_bits:
                return False  # tables of 7-bit probabilities hold no others
        except (ProgramError, DeviceError):
            return False
        self.memories = trial
        program = [*self.program, instruction]
        try:
            check([*program, End()], self.config)
            free = not self.serial
        except ProgramError:
            free = False
        if not free:
            program = self.ordered(instruction)
            check([*program, End()], self.config)
        self.program = program
        assert instruction.QUEUE is not None
        self.last[instruction.QUEUE] = len(program) - 1
        return True

    def build(self, count: int) -> None:
        """A prologue that fills the scratchpad, `count` random instructions, and a dump of the scratchpad."""
        n, size = self.config.n, self.config.scratchpad_size
        self.memories.bases = list(self.bases)
        self.memories.dram[INPUT:PROGRAM] = list(self.random.randbytes(PROGRAM - INPUT))
        blocks = b"".join(self.parameters() for _ in range(BLOCKS))
        self.memories.dram[DUMP - len(blocks) : DUMP] = list(blocks)
        self.memories.dram[PAGES : PAGES + 4 * PAGE_COUNT] = np.array(self.pages, "<u4").view(np.uint8)
        exp2 = self.config.exp2_table if self.config.softmax else b""
        self.memories.dram[DUMP - 0x2000 : DUMP - 0x2000 + len(exp2)] = list(exp2)
        self.image = self.memories.dram.tobytes()
        rows = max(1, size * n >> 13)
        whole = {"rows": rows, "length": size * n // rows, "pitch": size * n // rows}
        filling = Load(run=size * n // rows, row_pitch=997, dst_vector=1, dst_row=size // rows, **whole)
        block = {"run": len(blocks), "length": len(blocks)}
        if exp2:
            whole_table = {"run": len(exp2), "length": len(exp2)}
            assert self.append(Load(base=7, offset=DUMP - 0x2000, dst_vector=1, **whole_table))
            assert self.append(Table(vectors=len(exp2) // n))
        assert self.append(filling)
        assert self.append(
            Load(base=7, offset=DUMP - len(blocks), dst=self.scratchpad, dst_vector=1, **block)
        )
        makers: list[Callable[[], Instruction]] = [
            self.load,
            self.load,
            self.mm,
            self.mm,
            self.mm,
            self.vec,
            self.store,
        ]
        if self.config.softmax:
            makers += [self.softmax, self.softmax, self.softmax, self.normalise, self.normalise, self.table]
        for _ in range(count):
            assert any(self.append(self.random.choice(makers)()) for _ in range(ATTEMPTS))
        assert self.append(
            Store(base=6, row_pitch=size * n // rows, src_vector=1, src_row=size // rows, **whole)
        )

    def run(self, device: Device) -> bytes:
        device.write(0, self.image)
        device.write(PROGRAM, b"".join(instruction.encode() for instruction in (*self.program, End())))
        for index, address in enumerate(self.bases):
            device.set_base(index, address)
        device.start(PROGRAM)
        device.wait(5_000_000)
        return device.read(0, MEMORY)


class WithoutDivision(Generator):
    """Random programs whose time no data tells."""

    def normalise(self) -> Softmax:  # type: ignore[override]
        return self.softmax()


def memory_of(config: Config, rng: np.random.Generator) -> dict[str, float | None]:
    """Settings of a random memory, for both devices."""
    return {
        "latency": int(rng.integers(1, 80)),
        "bytes_per_cycle": [None, config.bus_bytes, config.bus_bytes / 3, 1.7][rng.integers(4)],
    }
