"""Long loops within other loops, so that their counters restart, and loads that fill the scratchpad."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from support.core_cases import Benches, Core, Scenario, compare_counters, compare_memory
from support.core_observed import Observed, iterations
from weft.hdl.isa import Instruction, Kernel, Load, Mm, Reduce, Store, Vec, places

LOOPS: dict[type[Instruction], tuple[str, ...]] = {
    Mm: ("nt", "ky", "kx", "kc", "oy", "ox"),
    Vec: ("ob", "oy", "ox", "ry", "rx"),
    Kernel: ("ob", "oy", "ox"),
    Store: ("rows", "pixels"),
    Load: ("rows", "pixels"),
}
"""Loops of each instruction, outermost first."""
COUNTS = (0xAAC, 0x557, 0x2AC, 0x157, 0xAC, 0x57, 0x2C, 0x17)
"""Iterations of the long loop: the two largest valid ones are used. Counters start at 2 less, so that each bit is 0
once and 1 once."""
MOST = {False: 1 << 13, True: 1 << 10}
"""Iterations of an instruction, by whether it is a `Kernel`."""
TRIES = 200


class Nested(Observed):
    """Builder of programs of instructions with a long loop in a short one. Parameters as in `Observed`.

    Attributes
    ----------
    counts : dict
        Iterations of the drawn instruction's loops.
    """

    def __init__(self, *parameters: Any) -> None:
        super().__init__(*parameters)
        self.counts: dict[str, int] = {}

    def draw(self, kind: type[Instruction]) -> Instruction:
        """Draw an instruction with `counts`, and operands and strides within the memories."""
        drawn = super(Observed, self).draw(kind)
        return (
            drawn if all(vars(drawn)[name] == count for name, count in self.counts.items()) else Load(run=0)
        )

    def build_nested(self) -> None:
        """Add, for each loop, the two largest valid counts, each with the instruction's observation."""
        self.prologue()
        self.observe()
        for kind in self._kinds:
            for loop in LOOPS[kind]:
                found = (count for count in COUNTS if self._append(kind, loop, count))
                for _, _count in zip(range(2), found, strict=False):
                    self.observe(accumulators=kind is Mm)

    def mm(self) -> dict[str, Any]:
        fields = super().mm() | self.counts
        entries = math.prod(fields[name] for name in ("ky", "kx", "kc", "oy", "ox"))
        return fields | ({} if entries <= self.config.alignments else {"align": 0, "alignment": 0})

    def vec(self) -> dict[str, Any]:
        fields = super().vec() | self.counts
        if fields["ry"] * fields["rx"] == 1:
            return fields
        return fields | {
            "reduce": self.random.choice([Reduce.SUM, Reduce.MAX]),
            "multiply": 0,
            "add": self.random.randrange(2),
        }

    def kernel(self) -> dict[str, Any]:
        return super().kernel() | self.counts

    def store(self) -> dict[str, Any]:
        """Choose steps that keep the store within the region of outputs."""
        fields = super().store() | self.counts
        rows, pixels = fields["rows"], fields["pixels"]
        step = max(1, 0x3000 // (rows * pixels))
        length = min(fields["length"], step)
        return fields | {
            "offset": 0x3C00,
            "length": length,
            "pitch": step,
            "row_pitch": self.random.choice([step * pixels, -step * pixels, step]),
        }

    def load(self) -> dict[str, Any]:
        """Choose rows whose bytes reach to their last pixel, within the region of inputs."""
        fields, r = super().load() | self.counts, self.random
        fields |= {"transpose": 0, "int4": 0, "blocks": 0, "length": r.randrange(1, self.config.n + 1)}
        pitch = r.randrange(1, 2 * self.config.n)
        needed = (fields["pixels"] - 1) * pitch + fields["length"]
        before = r.choice([0, r.randrange(needed)])
        return fields | {
            "line": r.choice([1, 2, fields["rows"] // 2]) if fields["rows"] % 2 == 0 else 1,
            "pitch": pitch,
            "run": max(1, needed - before - r.randrange(-9, 10)),
            "before": before,
            "row_pitch": r.randrange(-16, 17),
            "skip": r.randrange(-16, 17),
        }

    def _append(self, kind: type[Instruction], loop: str, count: int) -> bool:
        """Append the first valid instruction of many drawn ones."""
        if count > places(kind.OPCODE)[loop].high:
            return False
        others = LOOPS[kind][: LOOPS[kind].index(loop)] or LOOPS[kind][1:]
        for _ in range(TRIES):
            self.counts = dict.fromkeys(LOOPS[kind], 1) | {self.random.choice(others): 2, loop: count}
            drawn = self.draw(kind)
            few = iterations(drawn) <= min(MOST[kind is Kernel], self.most)
            if few and self.append(drawn):
                return True
        return False


def nested_scenarios(core: Core, kinds: Iterable[type[Instruction]] = LOOPS) -> Iterator[Scenario]:
    """Yield a program for each of the kinds that have loops. All bytes must match, and counters except for kernels, as
    in `support.core_observed.long_loops`."""
    for kind in kinds:
        if kind().unsupported(core.config):
            continue
        bench = Benches(core).of({"latency": 1})
        made, name = Nested(core.config, 8000, (kind,)), f"nested loops of {kind.__name__}"
        if core.sequential:
            made.most = 1 << 10
        made.build_nested()
        same = compare_memory if kind is Kernel else partial(compare_counters, core)
        yield Scenario(name, bench, [same(name, made, made.program, bench)])
