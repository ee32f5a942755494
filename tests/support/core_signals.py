"""Signals of every kind of instruction: it gives the semaphores of its mask, and no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from support.core_cases import Benches, Core, Scenario
from support.core_directed import ends
from weft.hdl.isa import (
    SEMAPHORES,
    Instruction,
    Load,
    Lookup,
    Microcode,
    Mm,
    Normalise,
    Queue,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
)

MASKS = (0x5555, 0xAAAA, 0x3333, 0xCCCC, 0x0FF0, 0xFFFF)
KINDS: tuple[Instruction, ...] = (
    Load(base=0, run=1),
    Load(base=0, run=1, transpose=1),
    Load(base=0, run=1, paged=1, table=5),
    Load(base=0, run=4, length=4, int4=1),
    Mm(),
    Mm(depthwise=1),
    Mm(align=1),
    Vec(),
    Vec(source=Source.SCRATCHPAD),
    Vec(source=Source.SCRATCHPAD, multiply=1, add=1),
    Vec(source=Source.SCRATCHPAD, lookup=1),
    Softmax(first=1),
    Softmax(source=Source.SCRATCHPAD),
    Normalise(),
    Table(),
    Lookup(),
    Microcode(count=1, entry=1),
    Store(base=4, offset=0x100),
)
"""Short instructions. A `Kernel` is not among them, because it runs unknown micro-operations, which might not end."""


def signals(core: Core) -> Iterator[Scenario]:
    """Yield programs that end if and only if an instruction gives the semaphores of its mask."""
    if core.sequential:  # has none
        return
    steps = []
    for number, given in enumerate(item for item in KINDS if not item.unsupported(core.config)):
        takers: list[Instruction] = [Load(base=0, run=1), Mm(), Vec(), Store(base=4, offset=0x200)]
        taker = [item for item in takers if item.QUEUE != given.QUEUE][number % 3]
        assert isinstance(given.QUEUE, Queue)
        name = f"{number}, {type(given).__name__}"
        for mask in MASKS:
            program = [dataclasses.replace(given, signal=mask), dataclasses.replace(taker, wait=mask)]
            steps.append(ends(program, f"signals {mask:#x} of {name}"))
        for semaphore in range(SEMAPHORES):
            bit = 1 << semaphore
            program = [dataclasses.replace(given, signal=0xFFFF ^ bit), dataclasses.replace(taker, wait=bit)]
            steps.append(ends(program, f"signals without {semaphore} of {name}", never=True))
    yield Scenario("signals", Benches(core).of({"latency": 2}), steps)
