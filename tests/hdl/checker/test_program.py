"""The program checker: programs it accepts, programs it refuses with the whole message, and its verdict on races and
addresses against brute force (explicit loops, and the transitive closure of all events)."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest
from support.repeated import repeated
from support.verdicts import refusal

from weft.hdl.checker.extents import dram_accesses, on_chip_accesses
from weft.hdl.checker.program import Extent, Extents, check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import End, Instruction, Load, Mm, Queue, Reduce, Store, Vec
from weft.hdl.isa.code import assemble, disassemble
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]


def program(text: str) -> list[Instruction]:
    """Assemble instructions separated by ``/``, followed by END."""
    return assemble(text.replace("/", "\n") + "\nend")


ACCEPTED = {
    "empty": "",
    "chain": "load signal=s0 / mm wait=s0 signal=s1 / vec wait=s1 params=8 dst=16 signal=s2 / store wait=s2 src=16",
    "same queue needs no semaphore": "load dst=1 / load dst=1",
    "vec in order": "vec params=8 / vec source=scratchpad params=8 dst=1",
    "vec whose parameters the one before last writes":
        "vec params=20 dst=9 / vec params=20 dst=40 / vec params=8 dst=41",
    "vec whose parameters come when the one before is done":
        "vec params=20 dst=9 signal=s0 / load wait=s0 dst=9 signal=s1 / vec wait=s1 params=8 dst=41",
    "vec whose parameters lie between what is written": "vec params=20 ox=2 dst=29 dst_ox=9 / vec params=30 dst=1",
    "vec with a second operand waits for its parameters": "vec params=20 dst=9 / vec params=8 dst=40 add=1 b=30",
    "vec of the scratchpad waits for its parameters": "vec params=20 dst=9 / vec source=scratchpad params=8 dst=40",
    "transitive": "load signal=s0 dst=90 / mm wait=s0 signal=s1 c=9 / vec wait=s1 source=scratchpad src=90 dst=91",
    "later load of the queue": "load dst=9 / load dst=50 signal=s0 / mm wait=s0 a=9 b=9",
    "store signals behind a store": "store src=9 / store src=8 signal=s0 / load wait=s0 dst=9",
    "apart": "load dst=4 length=16 dst_vector=1 / mm a=3 b=20",
    "strides leave gaps": "load dst=0 pixels=8 dst_pixel=2 / mm ox=8 a=1 a_ox=2 b=33 c_ox=1",
    "padding reaches below": "mm ox=3 a=0xffff a_ox=1 x=-1 x_ox=1 w=2 c_ox=1",
    "accumulate in place": "mm / mm accumulate=1",
    "other base": "store base=1 / load base=2 dst=9",
    "bytes between lines": "store base=1 offset=8 length=3 / load base=1 rows=4 line=2 row_pitch=4 skip=3 run=4 "
                           "length=4 dst=9 dst_row=1",
    "other bytes": "store base=1 rows=4 row_pitch=8 length=4 / load base=1 offset=4 rows=4 row_pitch=8 length=4 "
                   "run=4 dst=9 dst_row=1",
    "vec in place": "vec source=scratchpad src=32 src_ox=1 ox=4 dst=32 dst_ox=1 params=0",
    "vec behind itself": "vec source=scratchpad src=33 src_ox=1 ox=4 dst=32 dst_ox=1 params=0",
    "own semaphore": "load signal=s0 / load wait=s0 dst=1",
    "waits out of program order": "mm wait=s0 / load signal=s0",
    "signals left over": "load signal=s0",
    "longest row of fill bytes": "load pixels=3 pitch=65535 length=3 run=1 dst_pixel=1 / "
                                 "load pixels=3 pitch=65535 length=9 before=4 run=3 dst=9 dst_pixel=3 dst_vector=1",
    "many signals": "load signal=s0 dst=99 /" * 255,
}  # fmt: skip

REFUSED = {
    "instruction 1 (VEC) reads parameters from scratchpad vector 9, which instruction 0 (VEC) may still be writing":
        "vec params=20 dst=9 / vec params=8 dst=30",
    "instruction 2 (VEC) reads parameters from scratchpad vector 15, which instruction 0 (VEC) may still be writing":
        "vec source=scratchpad params=20 ox=2 dst=6 dst_ox=9 / load dst=99 / vec params=8 dst=30",
    "instruction 3 (VEC) reads parameters from scratchpad vector 9, which instruction 1 (VEC) may still be writing":
        "vec params=20 dst=70 signal=s0 / vec params=20 dst=9 / load wait=s0 dst=99 signal=s1 /"
        "vec wait=s1 params=8 dst=41",
    "race: instruction 1 (MM) reads scratchpad vector 6, which instruction 0 (LOAD) writes, and no semaphore orders "
    "them": "load length=28 dst_vector=1 / mm a=6 b=20",
    "race: instruction 1 (LOAD) writes scratchpad vector 23, which instruction 0 (MM) reads, and no semaphore orders "
    "them": "mm a=6 b=20 b_row=1 / load dst=23",
    "race: instruction 1 (VEC) writes scratchpad vector 5, which instruction 0 (LOAD) writes, and no semaphore orders "
    "them": "load dst=5 / vec params=20 dst=5",
    "race: instruction 1 (VEC) reads scratchpad vector 21, which instruction 0 (LOAD) writes, and no semaphore orders "
    "them": "load dst=21 / vec params=20 dst=5",
    "race: instruction 1 (VEC) reads scratchpad vector 30, which instruction 0 (LOAD) writes, and no semaphore orders "
    "them ": "load dst=30 / vec params=20 dst=5 add=1 b=30",
    "race: instruction 1 (STORE) reads scratchpad vector 5, which instruction 0 (VEC) writes, and no semaphore orders "
    "them": "vec params=20 dst=5 / store src=5",
    "race: instruction 1 (VEC) reads accumulator row 3, which instruction 0 (MM) writes, and no semaphore orders them":
        "mm ox=4 c_ox=1 / vec params=20 dst=5 src=3",
    "race: instruction 1 (MM) writes accumulator row 3, which instruction 0 (VEC) reads, and no semaphore orders them":
        "vec params=20 dst=5 src=3 / mm ox=4 c_ox=1 a=8 b=8",
    "race: instruction 1 (LOAD) reads byte 42 of base register 3, which instruction 0 (STORE) writes, and no semaphore "
    "orders them": "store base=3 offset=10 rows=4 row_pitch=16 length=4 / load base=3 offset=39 run=4 dst=9",
    "race: instruction 1 (STORE) writes byte 0 of base register 0, which instruction 0 (LOAD) reads, and no semaphore "
    "orders them": "load offset=12 rows=4 row_pitch=-4 dst=9 dst_row=1 / store pixels=3 pitch=6",
    "race: instruction 1 (LOAD) reads byte 42 of base register 3, which instruction 0 (STORE) writes, and no semaphore "
    "orders them ": "store base=3 offset=42 / load base=3 offset=28 rows=6 line=3 row_pitch=3 skip=2 dst=9 dst_row=1",
    # The start of a pipelined instruction does not follow the end of the one before it in its queue.
    "race: instruction 2 (MM) reads scratchpad vector 0, which instruction 0 (LOAD) writes, and no semaphore orders "
    "them": "load dst=0 / load dst=50 / mm",
    "race: instruction 3 (LOAD) writes scratchpad vector 9, which instruction 1 (MM) reads, and no semaphore orders "
    "them": "mm signal=s0 / mm a=9 / mm / load wait=s0 dst=9",
    "deadlock: instruction 0 (MM) waits for semaphore 4, which is signalled 0 times only": "mm wait=s4",
    "deadlock: instruction 2 (MM) waits for semaphore 0, which is signalled 1 times only":
        "load signal=s0 dst=9 / mm wait=s0 / mm wait=s0",
    "deadlock: instruction 0 (LOAD) waits for semaphore 1, but instruction 1 (MM), which signals it, cannot start "
    "before": "load wait=s1 signal=s0 / mm wait=s0 signal=s1",
    "deadlock: instruction 0 (LOAD) waits for semaphore 1, but instruction 5 (MM), which signals it, is not fetched "
    "before: queues hold 4 instructions": "load wait=s1 / load / load / load / load / mm signal=s1 a=9 b=9",
    "instruction 255 (LOAD) may signal semaphore 0 beyond its largest count 255": "load signal=s0 dst=99 /" * 256,
    "instruction 256 (LOAD) may signal semaphore 0 beyond its largest count 255":
        "load signal=s0 dst=99 / mm wait=s0 /" + "load signal=s0 dst=99 /" * 255,
    "semaphore 2 is signalled by instruction 0 (LOAD) and by instruction 1 (VEC): it must have one producer queue and "
    "one consumer queue": "load signal=s2 / vec signal=s2 params=9",
    "semaphore 2 is waited for by instruction 2 (MM) and by instruction 3 (VEC): it must have one producer queue and "
    "one consumer queue": "load signal=s2 / load signal=s2 / mm wait=s2 / vec wait=s2 params=9",
    "instruction 0 (MM): two rows of A in a tile add to one accumulator row": "mm oy=3 ox=3 c_oy=2 c_ox=1",
    "instruction 0 (LOAD): two vectors go to one scratchpad address":
        "load pixels=2 length=12 dst_pixel=2 dst_vector=1",
    "instruction 0 (STORE): 'pitch' 3 is less than 'length' 4": "store pixels=2 pitch=3 length=4",
    "instruction 0 (LOAD): the pixels of a row end 131073 bytes after the bytes of 'run'; at most 131072 may be filled":
        "load pixels=3 pitch=65535 length=4 run=1 dst_pixel=1",
    "instruction 0 (VEC): 'ry' and 'rx' are 1 and 2, but without a reduction they must be 1": "vec rx=2",
    "instruction 0 (VEC): 'reduce' is 3, outside 0 to 2": "vec reduce=3",
    "instruction 0 (VEC): 'low' 5 is above 'high' 4": "vec low=5 high=4",
    "instruction 0 (VEC): 'w' is 32769, but coordinates end at 32767": "vec w=32769",
    "instruction 0 (VEC): 'dst' writes into the parameter block": "vec params=8 dst=15",
    "instruction 0 (VEC): 'dst' writes scratchpad vector 33, which a later output reads as 'src'":
        "vec source=scratchpad src=32 src_ox=1 ox=4 dst=33 dst_ox=1 params=0",
    "instruction 0 (VEC): 'dst' writes scratchpad vector 34, which a later output reads as 'b'":
        "vec add=1 b=32 b_ox=1 ox=4 dst=34 dst_ox=1 params=0",
    "instruction 0 (VEC): 'dst' writes scratchpad vector 32, which a later output reads as 'src' ":
        "vec source=scratchpad src=32 ox=4 dst=32 params=0",
    "instruction 1 (LOAD): 'dst' writes scratchpad vector 1024, but there are 1024":
        "load / load dst=1020 length=20 dst_vector=1",
    "instruction 0 (LOAD): 'dst' writes scratchpad vector 65535, but there are 1024": "load pixels=2 dst_pixel=-1",
    "instruction 0 (STORE): 'src' reads scratchpad vector 1100, but there are 1024": "store src=1100",
    "instruction 0 (MM): 'b' reads scratchpad vector 1026, but there are 1024": "mm b=1023 b_row=1",
    "instruction 0 (MM): 'a' reads scratchpad vector 1024, but there are 1024": "mm a=1023 a_kc=1 kc=2",
    "instruction 0 (MM): 'a' reads scratchpad vector 65535, but there are 1024":
        "mm ox=3 a=0xffff a_ox=1 x=0 x_ox=1 w=2 c_ox=1",
    "instruction 0 (MM): 'c' writes accumulator row 128, but there are 128": "mm c=127 c_nt=1 nt=2",
    "instruction 0 (VEC): 'src' reads accumulator row 128, but there are 128": "vec src=128 params=9",
    "instruction 0 (VEC): 'params' reads scratchpad vector 1024, but there are 1024": "vec params=1017",
    "instruction 0 (LOAD): reads bytes -1 to 2 of base register 0, which has 4294967296":
        "load rows=4 offset=2 row_pitch=-1 dst_row=1",
    "instruction 0 (LOAD): reads bytes -1 to 5 of base register 0, which has 4294967296":
        "load rows=4 offset=4 line=2 row_pitch=1 skip=-7 dst_row=1",
    "instruction 0 (LOAD): reads bytes -1 to 6 of base register 0, which has 4294967296":
        "load rows=4 offset=2 line=2 row_pitch=-3 skip=10 dst_row=1",
    "instruction 0 (LOAD): 'rows' 4 is no multiple of 'line' 3": "load rows=4 line=3 dst_row=1",
    "instruction 0 (STORE): writes bytes 4294967294 to 4294967297 of base register 0, which has 4294967296":
        "store offset=0xfffffffe length=4",
    "base register 1 is loaded from and stored to over 268435457 bytes: more than the 268435456 that can be checked":
        "load base=1 / store base=1 offset=0x10000000",
}  # fmt: skip


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(text: str) -> None:
    check(program(text), TINY)


@pytest.mark.parametrize(("message", "text"), REFUSED.items(), ids=range(len(REFUSED)))
def test_refused(message: str, text: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check(program(text), TINY)
    assert str(caught.value) == message.rstrip()


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        ([], "the program has no END"),
        ([Load()], "the program has no END"),
        ([End(), Load(), End()], "instruction 0 (END) is not the last: 3 instructions"),
        ([Load(), End(wait=1)], "instruction 1 (END) has semaphores, but it belongs to no queue"),
        ([Load(rows=0), End()], "instruction 0 (LOAD): LOAD field 'rows' is 0, outside 1 to 4095"),
    ],
)
def test_refused_programs_that_text_cannot_say(instructions: list[Instruction], message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check(instructions, TINY)
    assert str(caught.value) == message


def test_mantissas_fit_the_configuration() -> None:
    text = program("vec add=1 b_mantissa=0x10000 b=50 dst=60")
    check(text, TINY)
    with pytest.raises(ProgramError) as caught:
        check(text, TINY.replace(mantissa_bits=16))
    assert str(caught.value) == "instruction 0 (VEC): 'b_mantissa' is 65536, but mantissas have 16 bits"


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ({1: 20, 2: 100}, None),
        (
            {1: 19, 2: 100},
            "instruction 0 (LOAD): reads bytes 4 to 19 of base register 1, which leaves "
            "area 1 (bytes 0 to 18)",
        ),
        (
            {1: 20, 2: 99},
            "instruction 1 (STORE): writes bytes 90 to 99 of base register 2, which leaves "
            "area 2 (bytes 0 to 98)",
        ),
        ({2: 100}, "instruction 0 (LOAD): base register 1 is not set for this program"),
    ],
)
def test_extents(extents: dict[int, int], message: str | None) -> None:
    text = program(
        "load base=1 rows=4 offset=4 row_pitch=4 run=4 before=1 length=4 dst_row=1 signal=s0"
        " / store base=2 offset=90 length=10 wait=s0"
    )
    if message is None:
        check(text, TINY, extents=Extents.from_sizes(extents))
        return
    with pytest.raises(ProgramError) as caught:
        check(text, TINY, extents=Extents.from_sizes(extents))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("offset", "extents", "message"),
    [
        ((1 << 32) - 4, None, None),
        (
            (1 << 32) - 3,
            None,
            "reads bytes 4294967293 to 4294967296 of base register 1, which has 4294967296",
        ),
        (96, (0, 100), None),
        (97, (0, 100), "reads bytes 97 to 100 of base register 1, which leaves data (bytes 0 to 99)"),
        (3, (4, 100), "reads bytes 3 to 6 of base register 1, which leaves data (bytes 4 to 103)"),
        (0, (4, 100), "reads bytes 0 to 3 of base register 1, where nothing is"),
        (0, None, None),
    ],
)
def test_offsets_of_equal_instructions(
    offset: int, extents: tuple[int, int] | None, message: str | None
) -> None:
    """The third LOAD differs from earlier ones in its offset only; the instructions after it are wrong as well."""
    known = None if extents is None else Extents([Extent("data", 1, *extents)], {})
    loads = [f"load base=1 run=4 length=4 offset={at}" for at in (40, 44, offset)]
    check(program(" / ".join(loads[:2])), TINY, extents=known)
    if message is None:
        check(program(" / ".join(loads)), TINY, extents=known)
        return
    with pytest.raises(ProgramError) as caught:
        check(program(" / ".join([*loads, "mm h=40000"])), TINY, extents=known)
    assert str(caught.value) == f"instruction 2 (LOAD): {message}"


def test_whole_circle_of_addresses() -> None:
    """With 65536 vectors an access may wrap around to 0."""
    config = TINY.replace(scratchpad_banks=64, scratchpad_depth=1024)
    check(program("load dst=0xffff pixels=4 dst_pixel=1 / mm a=3 b=3"), config)
    with pytest.raises(ProgramError, match="MM\\) reads scratchpad vector 2, which"):
        check(program("load dst=0xffff pixels=4 dst_pixel=1 / mm a=2 b=3"), config)


def random_access(rng: random.Random) -> Instruction:
    """An instruction on a handful of addresses, so that many of them overlap; strides may be negative."""

    def at() -> int:
        return rng.randrange(8, 24)

    def small(low: int = -2) -> int:
        return rng.randint(low, 2)

    kind = rng.choice([Load, Mm, Vec, Store])
    if kind is Load:
        line = rng.randint(1, 2)
        return Load(base=rng.randrange(2), offset=rng.randrange(20), rows=line * rng.randint(1, 2), row_pitch=small(0),
                    line=line, skip=rng.choice([0, small(-2)]),
                    pixels=rng.randint(1, 2), pitch=rng.randint(1, 3), length=rng.randint(1, 6),
                    before=rng.choice([0, 2]), run=rng.randint(1, 9), dst=at(), dst_vector=small(), dst_pixel=small(),
                    dst_row=small())  # fmt: skip
    if kind is Store:
        return Store(base=rng.randrange(2), offset=rng.randrange(20), rows=rng.randint(1, 2), row_pitch=small(0),
                     pixels=rng.randint(1, 2), pitch=rng.randint(6, 8), length=rng.randint(1, 6), src=at(),
                     src_vector=small(), src_pixel=small(), src_row=small())  # fmt: skip
    if kind is Mm:
        return Mm(nt=rng.randint(1, 2), ky=rng.randint(1, 2), kx=rng.randint(1, 2), oy=rng.randint(1, 2), ox=2, a=at(),
                  a_nt=small(), a_ky=small(), a_kx=small(), a_oy=small(), a_ox=small(), y=small(), x=small(),
                  y_ky=small(), y_oy=small(), x_kx=small(), x_ox=small(), h=2, w=3, b=at(), b_nt=small(), b_ky=small(),
                  b_kx=small(), b_row=rng.randint(-1, 1), c=at(), c_nt=small(), c_oy=2, c_ox=1)  # fmt: skip
    reduce = rng.choice(list(Reduce))
    return Vec(source=rng.randrange(2), reduce=reduce, add=rng.randrange(2), oy=rng.randint(1, 2), ox=rng.randint(1, 2),
               ry=rng.randint(1, 2) if reduce else 1, src=at(), src_oy=small(), src_ox=small(), src_ry=small(),
               y=small(), x=small(), y_oy=small(), y_ry=small(), x_ox=small(), h=2, w=3, dst=at(), dst_oy=small(),
               dst_ox=small(), b=at(), b_oy=small(), b_ox=small(), params=rng.choice([90, 90, 10]))  # fmt: skip


def accesses(i: Instruction, n: int) -> tuple[set, set]:
    """Return an instruction's reads and writes as (memory, address), by explicit loops."""
    reads: set = set()
    writes: set = set()
    if isinstance(i, (Load, Store)):
        name, into = ("dst", writes) if isinstance(i, Load) else ("src", reads)
        for r, p in itertools.product(range(i.rows), range(i.pixels)):
            for byte in range(i.length):
                strides = [getattr(i, f"{name}_{part}") for part in ("row", "pixel", "vector")]
                address = getattr(i, name) + r * strides[0] + p * strides[1] + byte // n * strides[2]
                into.add(("SCRATCHPAD", address % 65536))
                if isinstance(i, Store):
                    writes.add((i.base, i.offset + r * i.row_pitch + p * i.pitch + byte))
        if isinstance(i, Load):
            for r, byte in itertools.product(range(i.rows), range(i.run)):
                reads.add((i.base, i.offset + r * i.row_pitch + r // i.line * i.skip + byte))
    elif isinstance(i, Mm):
        for nt, ky, kx in itertools.product(range(i.nt), range(i.ky), range(i.kx)):
            for j in range(n):
                reads.add(
                    ("SCRATCHPAD", (i.b + nt * i.b_nt + ky * i.b_ky + kx * i.b_kx + j * i.b_row) % 65536)
                )
            for oy, ox in itertools.product(range(i.oy), range(i.ox)):
                writes.add(("ACCUMULATOR", (i.c + nt * i.c_nt + oy * i.c_oy + ox * i.c_ox) % 65536))
                if 0 <= i.y + ky * i.y_ky + oy * i.y_oy < i.h and 0 <= i.x + kx * i.x_kx + ox * i.x_ox < i.w:
                    address = i.a + nt * i.a_nt + ky * i.a_ky + kx * i.a_kx + oy * i.a_oy + ox * i.a_ox
                    reads.add(("SCRATCHPAD", address % 65536))
    elif isinstance(i, Vec):
        reads |= {("SCRATCHPAD", i.params + byte) for byte in range(8)}
        for oy, ox, ry in itertools.product(range(i.oy), range(i.ox), range(i.ry)):
            writes.add(("SCRATCHPAD", (i.dst + oy * i.dst_oy + ox * i.dst_ox) % 65536))
            if i.add:
                reads.add(("SCRATCHPAD", (i.b + oy * i.b_oy + ox * i.b_ox) % 65536))
            if 0 <= i.y + oy * i.y_oy + ry * i.y_ry < i.h and 0 <= i.x + ox * i.x_ox < i.w:
                address = (i.src + oy * i.src_oy + ox * i.src_ox + ry * i.src_ry) % 65536
                reads.add(("SCRATCHPAD" if i.source else "ACCUMULATOR", address))
    return reads, writes


@repeated("seed", range(300))
def test_accesses_against_loops(seed: int) -> None:
    instruction = random_access(random.Random(seed))
    got: tuple[set, set] = (set(), set())
    for access in on_chip_accesses(instruction, TINY):
        got[access.write].update((access.memory.name, int(cell)) for cell in np.arange(1024)[access.cells])
    for memory in dram_accesses(instruction, TINY):
        table = np.zeros(100, np.int32)
        memory.cells(table, 0)[...] = 1
        got[memory.write].update((memory.base, int(cell)) for cell in np.flatnonzero(table))
        assert (memory.low, memory.high) == (np.flatnonzero(table)[0], np.flatnonzero(table)[-1] + 1)
    assert got == accesses(instruction, TINY.n)


def random_program(rng: random.Random) -> list[Instruction]:
    """Semaphores carry tokens from earlier instructions to later ones, so program order is an order of execution."""
    body = [random_access(rng) for _ in range(rng.randint(2, 6))]
    body = [i for i in body if verdict([i]) == "accepted"]
    queues = [i.QUEUE for i in body]
    waits, signals = [0] * len(body), [0] * len(body)
    names = dict(zip(itertools.permutations(Queue, 2), range(12), strict=True))
    last: dict[int, tuple[int, int]] = {}
    for later in range(1, len(body)):
        for earlier in rng.sample(range(later), min(later, rng.randint(0, 3))):
            if queues[earlier] == queues[later]:
                continue
            name = names[queues[earlier], queues[later]]
            if name in last and (last[name][0] >= earlier or last[name][1] >= later):
                continue
            last[name] = (earlier, later)
            signals[earlier] |= 1 << name
            waits[later] |= 1 << name
    return [
        type(i)(**{**i.__dict__, "wait": w, "signal": s})
        for i, w, s in zip(body, waits, signals, strict=True)
    ]


def verdict(body: list[Instruction]) -> str:
    return refusal([*body, End()], TINY) or "accepted"


def order_of_events(body: list[Instruction]) -> np.ndarray:
    """The closure of all events: event 2k is the start and 2k + 1 the end of instruction k."""
    before = np.zeros((2 * len(body), 2 * len(body)), bool)
    previous: dict[Queue | None, int] = {}
    tokens: dict[int, tuple[list[int], list[int]]] = {}
    for k, i in enumerate(body):
        before[2 * k, 2 * k + 1] = True
        if i.QUEUE in previous:
            before[2 * previous[i.QUEUE], 2 * k] = before[2 * previous[i.QUEUE] + 1, 2 * k + 1] = True
        previous[i.QUEUE] = k
        for semaphore in range(16):
            given, taken = tokens.setdefault(semaphore, ([], []))
            given += [2 * k + 1] * (i.signal >> semaphore & 1)
            taken += [2 * k] * (i.wait >> semaphore & 1)
    for given, taken in tokens.values():
        for signal, wait in zip(given, taken, strict=False):
            before[signal, wait] = True
    for k in range(len(before)):
        before |= before[:, k : k + 1] & before[k]
    return before


def races(body: list[Instruction], n: int) -> bool:
    before = order_of_events(body)
    for one, two in itertools.combinations(range(len(body)), 2):
        if body[one].QUEUE != body[two].QUEUE:
            (r1, w1), (r2, w2) = accesses(body[one], n), accesses(body[two], n)
            ordered = before[2 * one + 1, 2 * two] or before[2 * two + 1, 2 * one]
            if not ordered and (w1 & (r2 | w2) or w2 & r1):
                return True
    return False


def early(body: list[Instruction], n: int) -> bool:
    """Return whether a VEC that starts before the previous one ends reads parameters that this one writes."""
    before = order_of_events(body)
    vecs = [k for k, i in enumerate(body) if isinstance(i, Vec)]
    for one, two in itertools.pairwise(vecs):
        i = body[two]
        block = {("SCRATCHPAD", i.params + byte) for byte in range(8)}
        if (
            not i.source
            and not i.add
            and not before[2 * one + 1, 2 * two]
            and accesses(body[one], n)[1] & block
        ):
            return True
    return False


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(8))
def test_races_against_the_closure_of_events(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = []
    for _ in range(150):
        body = random_program(rng)
        expected = "race: " if races(body, TINY.n) else "instruction" if early(body, TINY.n) else "accepted"
        verdicts.append(expected)
        assert verdict(body).startswith(expected), disassemble(body)
    assert 15 < verdicts.count("race: ") < 135


def test_long_programs_are_checked_in_seconds() -> None:
    """A pipeline over four buffers, with all four queues busy: 5000 instructions."""
    config = PRESETS["default"]
    body: list[Instruction] = []
    for tile in range(1250):
        buffer = tile % 4
        wait = 0 if tile < 4 else 1
        a, out = 1000 * buffer, 8000 + 512 * buffer
        body += [
            Load(base=1, offset=4096 * (tile % 64), rows=16, row_pitch=1024, pixels=28, pitch=16, length=16, run=448,
                 dst=a, dst_pixel=1, dst_row=28, wait=16 * wait, signal=1),
            Mm(ky=3, kx=3, oy=14, ox=28, a=(a - 29) % 65536, a_ky=28, a_kx=1, a_oy=28, a_ox=1, y=-1, x=-1, y_ky=1,
               x_kx=1, y_oy=1, x_ox=1, h=16, w=28, b=12000, b_row=9, b_ky=3, b_kx=1, c=512 * buffer, c_oy=28, c_ox=1,
               wait=1 + 32 * wait, signal=2 + 16),
            Vec(oy=14, ox=28, src=512 * buffer, src_oy=28, src_ox=1, dst=out, dst_oy=28, dst_ox=1, params=13000,
                wait=2 + 64 * wait, signal=4 + 32),
            Store(base=2, offset=8192 * (tile % 64), rows=14, row_pitch=512, pixels=28, pitch=16, length=16, src=out,
                  src_pixel=1, src_row=28, wait=4, signal=64),
        ]  # fmt: skip
    started = time.monotonic()
    check([*body, End()], config)
    assert time.monotonic() - started < 20  # 1 s on an idle machine
