"""Contention of units for the on-chip memories.  Kernels, rows of scores and loads run beside products, results and
stores without an order between them; loads of both kinds follow each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

from support.core_cases import Benches, Core, Scenario, Step, compare_counters, compare_memory
from support.kernel_model import random_kernel
from support.random_programs import KERNELS, Generator
from weft.hdl.isa import (
    Instruction,
    Kernel,
    Load,
    Memory,
    MicroOp,
    Mm,
    Normalise,
    Softmax,
    Source,
    Store,
    Vec,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import STRIP_ROWS, Op

TURNS = 8
"""Rounds of products and stores, each beside other instructions."""
BESIDE = 5
RESULTS = 4
TRIES = 100
SEEDS: dict[type[Instruction], range] = {Kernel: range(500, 502), Load: range(500, 508)}
MANY = 40
"""Columns of a long kernel."""
PLACES = 4
"""Destinations of kernels, a row of vectors each."""
REFUSED: dict[type[Instruction], range] = {Kernel: range(510, 513), Softmax: range(510, 513)}
"""Seeds of `Crowded` and `Refused`, by the kind of instruction beside the others."""


class Crowded(Generator):
    """Builder of a program in which long products and stores read the second bank of the scratchpad, while others work
    in the first bank. Parameters as in `support.random_programs.Generator`."""

    def __init__(self, config: Config, seed: int, *, serial: bool) -> None:
        super().__init__(config, seed, serial=serial)
        self.few = False

    def build_beside(self, kind: type[Instruction]) -> None:
        """Add rounds with instructions of a kind beside products and stores."""
        self.prologue()
        for turn in range(TURNS):
            if kind is Kernel:
                self._kernels(turn)
            self._draw_many(kind, 1)  # waits for the store of all, so that none of the others has to
            others = [self._product(kind)] if kind is not Load or turn % 2 else [self._results()] * RESULTS
            for instruction in (*others, self._store_results(turn)):
                assert self.append(instruction)
            self._draw_many(kind, BESIDE)
            self._behind(kind)
            assert self.append(self.dump())

    def is_timed(self, kind: type[Instruction]) -> bool:
        """Return whether the cycle model predicts the program's time to the cycle, which divisions prevent."""
        return kind is Load

    def _behind(self, kind: type[Instruction]) -> None:
        """Return instructions that reveal more of the preceding work of that kind."""

    def _draw_many(self, kind: type[Instruction], count: int) -> None:
        for _ in range(count):
            assert any(self.append(self.draw(kind)) for _ in range(TRIES)), f"no {kind.__name__} is valid"

    def size(self, memory: Memory) -> int:
        """Confine others to the first half of the first bank of the scratchpad: the second half is for results."""
        return self.config.scratchpad_depth // 2 if memory is Memory.SCRATCHPAD else super().size(memory)

    def kernel(self) -> dict[str, Any]:
        """Draw a kernel with many columns, whose vectors lie where products read theirs."""
        fields = super().kernel() | {
            "source": Source.SCRATCHPAD,
            "ox": 40,
            "oy": self.random.choice([1, 3, 8]),
        }
        for name in ("src", "b", "c", "d"):
            place = {name: self.config.scratchpad_depth + self.random.randrange(8)}
            fields |= place | {f"{name}_{loop}": int(loop == "ox") for loop in ("ob", "oy", "ox")}
        return fields | {
            "dst": 0,
            "dst_ob": 0,
            "dst_oy": 0,
            "dst_ox": 1,
            "dst2": 60,
            "dst2_oy": 0,
            "dst2_ox": 0,
            "dst2_ob": 0,
        }

    def load(self) -> dict[str, Any]:
        """Draw, in turn, a load of many pixels (transposed if the core can) and one of few pixels that are not. The
        second waits for the first while the next one comes."""
        self.few = not self.few
        wanted = int(self.config.softmax and not self.few)
        fields = next(fields for fields in iter(super().load, None) if fields["transpose"] == wanted)
        one = {"paged": 0, "table": 0, "page": 0, "int4": 0, "blocks": 0, "rows": 1, "line": 1, "before": 0}
        fields |= one | {"base": 0, "offset": self.random.randrange(0x1000), "dst_pixel": 1}
        if self.few:
            return fields | {"pixels": self.random.randrange(1, 4), "length": 1, "pitch": 1, "run": 4}
        length = self.config.n * self.random.randrange(1, self.config.transposed_vectors + 1)
        pixels = self.random.randrange(1, 4 * self.config.n)
        return fields | {"pixels": pixels, "length": length, "pitch": length, "run": length * pixels}

    def _kernels(self, turn: int) -> None:
        """Return kernels: new micro-operations, then for each column a write of its number and a read. The read may
        have to wait when the next column's number comes."""
        room = self.config.kernel // KERNELS
        for start in self.kernels:
            ops = random_kernel(self.random, self.config, range(8), range(4))[: room - 4]
            ops = [dataclasses.replace(op, again=0, end=0) for op in ops]
            column = [
                MicroOp(op=Op.INDEX, b_immediate=1, immediate=turn, d=1),
                MicroOp(op=Op.ADD, a=1, b=2, d=3),
                MicroOp(op=Op.MUL, a=3, b_immediate=1, immediate=1, floor=1, d_memory=1, d=0),
                MicroOp(
                    op=Op.ADD,
                    a_memory=1,
                    a=0,
                    b_immediate=1,
                    immediate=0,
                    d=2,
                    again=1,
                    target=len(ops),
                    end=1,
                ),
            ]
            self.put([*ops, *column], start)

    def _product(self, kind: type[Instruction]) -> Instruction:
        """Return a product that reads a few vectors of the upper half for a long time."""
        first, r = self.config.scratchpad_depth, self.random
        steps = {
            "a": (first // 2 if kind is not Load else first) + r.randrange(8),
            "a_ox": 1,
            "b": first + r.randrange(30),
            "b_row": 1,
        }
        return Mm(
            kc=100 if kind is not Load else 20, nt=4, ox=8, c_ox=1, a_kc=r.randrange(2), h=1, w=1, **steps
        )

    def _results(self) -> Instruction:
        """Return results that go to the bank of loads one after the other, from a fixed address."""
        quarter = self.scratchpad // 4
        return Vec(
            source=Source.SCRATCHPAD, src=2 * quarter, dst=quarter, dst_ox=1, ox=quarter, params=self.block()
        )

    def _store_results(self, turn: int) -> Instruction:
        first = self.config.scratchpad_depth
        length = (self.scratchpad - first) * self.config.n
        return Store(base=6, offset=0x4000 + turn, length=length, src=first, src_vector=1, signal=0)


class Refused(Crowded):
    """Builder of kernels that write to disjoint places right after a read that may be refused, with further reads after
    it. Sums of rows of scores show in quotients. Parameters as in `Crowded`."""

    def __init__(self, config: Config, seed: int, *, serial: bool) -> None:
        super().__init__(config, seed, serial=serial)
        self.turn, self.banks = 0, False

    def kernel(self) -> dict[str, Any]:
        """Draw a kernel over a whole strip of rows, in new places. The second kernel has many columns and reads
        accumulators."""
        self.turn = (self.turn + 1) % (2 * PLACES)
        fields = super().kernel() | {"ob": 1, "oy": STRIP_ROWS, "ox": 1 + self.turn % 2}
        if fields["start"] != self.kernels[0]:
            source = {"source": Source.ACCUMULATOR, "src": STRIP_ROWS, "src_oy": 1, "src_ox": 0, "src_ob": 0}
            fields |= source | {"ox": MANY}
        for name, first in (("dst", 0), ("dst2", PLACES)):
            place = {name: (first + self.turn // 2) * STRIP_ROWS, f"{name}_oy": 1}
            fields |= place | {f"{name}_ox": 0, f"{name}_ob": 0}
        return fields

    def is_timed(self, kind: type[Instruction]) -> bool:
        return kind is Kernel

    def softmax(self) -> dict[str, Any]:
        """Draw as many rows as there are states, with vectors where products read theirs."""
        r, rows = self.random, self.config.row_states
        place = {"src": self.config.scratchpad_depth + r.randrange(8), "dst": r.randrange(8)}
        steps = {"src_ob": rows, "src_ox": 1, "src_oy": 0, "dst_ob": 0, "dst_oy": 0, "dst_ox": 1}
        states = {"state": 0, "state_oy": 0, "state_ox": 1, "register": 0, "relative": 0, "causal": 0}
        fields = {"ob": 3, "oy": 1, "ox": rows, "source": Source.SCRATCHPAD, "params": self.block()}
        fields |= {"first": 1, "final": 0, "length": r.randrange(3 * self.config.n + 1), "diagonal": 0}
        return fields | place | steps | states

    def _kernels(self, turn: int) -> None:
        """Return kernels: each column's number, a sum that is written at once, and another vector. Then, for many
        columns, the elements' numbers are written, with a read before the next column."""
        shown = {"b_immediate": 1, "immediate": 1, "floor": 1, "d_memory": 1}
        few = [
            MicroOp(op=Op.INDEX, b_immediate=1, immediate=turn, d=1),
            MicroOp(op=Op.ADD, a_memory=1, a=0, b=1, d=2),
            MicroOp(op=Op.MUL, a=2, d=0, **shown),
            MicroOp(op=Op.ADD, a_memory=1, a=1, b=2, d=3),
            MicroOp(op=Op.ADD, a_memory=1, a=6, b=3, d=4),
            MicroOp(op=Op.MUL, a=4, d=1, again=1, end=1, **shown),
        ]
        many = [
            MicroOp(op=Op.INDEX, b_immediate=1, immediate=turn - MANY * self.config.n, d=1),
            MicroOp(op=Op.MUL, a=1, d=0, **shown),
            MicroOp(op=Op.ADD, a_memory=1, a=0, b=1, d=2, again=1, end=1),
        ]
        for start, ops in zip(self.kernels, (few, many), strict=True):
            self.put(ops, start)

    def _product(self, kind: type[Instruction]) -> Instruction:
        """Return, in turn, a product that reads its second operand in four of five cycles, and one whose rows go to
        both banks of accumulators alternately."""
        self.banks = not self.banks
        rows = {"ox": self.config.n + 1}
        if self.banks:
            rows = {
                "c": 0,
                "c_ox": self.config.accumulator_depth,
                "c_oy": 1,
                "ox": 2,
                "oy": self.config.n // 2 + 1,
            }
        fields: dict[str, Any] = rows | {"kc": 300, "a_kc": 0}
        return dataclasses.replace(super()._product(kind), **fields)

    def _behind(self, kind: type[Instruction]) -> None:
        if kind is not Softmax:
            return
        bits = max(int(total).bit_length() for total in self.memories.sums)
        fields = {"ob": 1, "oy": self.config.row_states, "ox": 1, "state": 0, "state_oy": 1, "state_ob": 0}
        fields |= {"scaled": 1, "exponent": 17 - bits, "v_zero": 0, "zero": 0, "low": -128, "high": 127}
        fields |= {"source": Source.SCRATCHPAD, "src": 0, "src_oy": 1, "dst": 32, "dst_oy": 1}
        drawn = (dataclasses.replace(self.draw(Normalise), **fields) for _ in range(TRIES))
        assert any(self.append(item) for item in drawn)


def crowded_scenarios(core: Core) -> Iterator[Scenario]:
    """Yield kernels and loads beside products and stores, with memories of several kinds."""
    if core.sequential:
        return
    for builder, (kind, seeds) in (
        *((Crowded, item) for item in SEEDS.items()),
        *((Refused, item) for item in REFUSED.items()),
    ):
        if kind().unsupported(core.config):
            continue
        for seed in seeds:
            bench = Benches(core).of({"latency": 1 + 8 * (seed % 2)})
            bench.fresh = False
            made, name = builder(core.config, seed, serial=False), f"beside {kind.__name__}"
            made.build_beside(kind)
            same = partial(compare_counters, core) if made.is_timed(kind) else compare_memory
            step: Step = same(f"{name} {seed}", made, made.program, bench)
            yield Scenario(step.name, bench, [step])
