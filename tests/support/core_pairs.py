"""MICROCODE beside the other units.  It takes few cycles, in which random programs hardly ever begin another
instruction, or have a long one under way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from support.core_cases import Benches, Core, Scenario, compare_counters
from support.random_programs import Generator
from weft.hdl.checker.program import check
from weft.hdl.isa import End, Instruction, Load, Microcode, Mm, Source, Store, Vec

TO_MM, TO_STORE, FROM_LOAD = 1 << 0, 1 << 5, 1 << 10
"""Semaphores of VEC that a `Generator` does not use: it would order instructions within a queue with them."""
TURNS = 4
"""Rounds of each pair; MICROCODE has more instructions in each round."""


def beside(core: Core) -> Iterator[Scenario]:
    """Scenario in which MICROCODE starts while LOAD and STORE work, and MM and STORE start while it works."""
    if core.sequential or Microcode().unsupported(core.config):
        return
    bench = Benches(core).of({"latency": 1})
    made = Generator(core.config, 7000, serial=True)
    made.prologue()
    for turn in range(TURNS):
        assert made.append(dataclasses.replace(made.dump(), offset=turn))
        _add(made, made.draw(Microcode))
        whole = next(item for item in made.program if isinstance(item, Load) and not item.wait)
        assert made.append(dataclasses.replace(whole, signal=0, rows=1, length=1, run=1))
        _signals(made, FROM_LOAD)
        assert made.append(dataclasses.replace(whole, signal=0))
        _add(made, dataclasses.replace(made.draw(Microcode), wait=FROM_LOAD))
        for semaphore, second in ((TO_MM, Mm()), (TO_STORE, Store(base=6, offset=0x100))):
            assert made.append(Vec(source=Source.SCRATCHPAD, params=made.block(), src=8, ox=40 + turn))
            _signals(made, semaphore)
            for _ in range(turn + 1):
                _add(made, made.draw(Microcode))
            _add(made, dataclasses.replace(second, wait=semaphore))
    assert made.append(made.dump())
    yield Scenario("beside", bench, [compare_counters(core, "beside", made, made.program, bench)])


def _signals(made: Generator, semaphore: int) -> None:
    """Let the last instruction give this semaphore as well."""
    last = made.program[-1]
    made.program[-1] = dataclasses.replace(last, signal=last.signal | semaphore)


def _add(made: Generator, instruction: Instruction) -> None:
    """Append an instruction without ordering it among units."""
    made.program = [*made.program, instruction]
    check([*made.program, End()], made.config)
    assert instruction.QUEUE is not None
    made.last[instruction.QUEUE] = len(made.program) - 1
