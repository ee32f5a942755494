"""Schedules of random tasks: every dependency is kept, LOADs run as far ahead as slots allow, and both units work."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from support.op_cases import convolution, whole
from support.random_programs import MEMORY, PROGRAM, Generator
from support.repeated import repeated

from weft.compiler.machine.memory import Allocation, runs
from weft.compiler.machine.schedule import merge_overlapped, schedule, sequential_forms
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task, Tasks
from weft.hdl.checker.conflicts import DRAM, SCRATCHPAD, Uses, conflicts
from weft.hdl.isa import WORD_BYTES, End, Instruction, Load, Lookup, Mm, Opcode, Queue, Store, Vec
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.timing import SequentialTimingDevice

QUEUES = len(Queue)


TINY = PRESETS["tiny"]
FAST, SLOW = Target(TINY), Target(dataclasses.replace(TINY, queue_depth=1), 0.5)
"""Slow memories change the order of programs; short queues exercise its rules."""


def draw_tasks(rng: random.Random) -> Tasks:
    """Draw tasks on few addresses; `layer` tells them apart."""
    tasks = []
    for index in range(rng.randint(1, 60)):
        count = rng.randint(1, 4)
        instruction = rng.choice([
            Load(base=1, offset=64 * rng.randrange(6), rows=count, row_pitch=64, dst=rng.randrange(12), dst_row=1),
            Load(base=2, dst=rng.randrange(12)),
            Mm(ox=count, a=rng.randrange(12), a_ox=1, w=9, b=rng.randrange(12), c=rng.randrange(12), c_ox=1),
            Vec(ox=count, src=rng.randrange(12), src_ox=1, w=9, dst=rng.randrange(12), dst_ox=1, params=20),
            Store(base=1, offset=64 * rng.randrange(6), rows=count, row_pitch=64, src=rng.randrange(12), src_row=1),
        ])  # fmt: skip
        cycles = rng.choice([1, 50, 900])
        tasks.append(Task(instruction, index, cycles, paces=isinstance(instruction, Mm)))
    return Tasks.of(tasks, TINY)


def completed_before(code: Code) -> list[set[int]]:
    """Return the instructions done at each instruction's start, from semaphores alone: the k-th wait takes the k-th
    signal, and earlier instructions of a queue count."""
    arguments: dict[int, list[set[int]]] = {}
    taken: dict[int, int] = {}
    started: list[set[int]] = [set() for _ in range(QUEUES)]
    result = []
    for index, instruction in enumerate(code):
        assert instruction.QUEUE is not None
        known = set(started[instruction.QUEUE])
        for semaphore in range(16):
            if instruction.wait >> semaphore & 1:
                at = taken.get(semaphore, 0)
                taken[semaphore] = at + 1
                known |= arguments[semaphore][at]
        started[instruction.QUEUE] = known
        result.append(known)
        before = {other for other in range(index) if code[other].QUEUE == instruction.QUEUE}
        for semaphore in range(16):
            if instruction.signal >> semaphore & 1:
                arguments.setdefault(semaphore, []).append(known | before | {index})
    return result


@pytest.mark.drawn(1)
@pytest.mark.parametrize("target", [FAST, SLOW], ids=["fast", "slow"])
@repeated("seed", range(150))
def test_random_tasks(seed: int, target: Target) -> None:
    tasks = draw_tasks(random.Random(seed))
    before = conflicts(len(tasks), tasks.uses)
    ordered, code, _ = schedule(tasks, target)
    assert code[-1] == End()
    place = np.empty(len(tasks), np.int64)
    place[ordered.layer] = np.arange(len(tasks))
    # LOADs and products only move up, past no conflict; each queue keeps its order, and so do
    # tasks shared by the vector unit and STORE.
    for queues in ({Queue.LOAD}, {Queue.MM}, {Queue.VEC, Queue.STORE}):
        kept = [layer for layer, queue in zip(ordered.layer, ordered.queue, strict=True) if queue in queues]
        assert kept == sorted(kept)
    after = conflicts(len(tasks), ordered.uses)
    assert np.array_equal(after[place], np.where(before < 0, -1, place[before]))
    done = completed_before(code[:-1])
    for index, causes in enumerate(after.tolist()):
        assert {cause for cause in causes if cause >= 0} <= done[index]


def test_no_semaphores_without_need() -> None:
    chain = [
        Task(Load(rows=12, dst_row=1), 0, 9),
        Task(Mm(b=4, b_row=1), 0, 9, paces=True),
        Task(Vec(params=4, dst=20), 0, 9),
        Task(Store(src=20), 0, 9),
    ]
    code = schedule(Tasks.of(chain, TINY), FAST).code
    # VEC reads LOAD's data too: it waits for MM, which waited for LOAD.
    assert [bin(item.wait).count("1") for item in code] == [0, 1, 1, 1, 0]
    assert [bin(item.signal).count("1") for item in code] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("cycles", [10, 300, 1000])
def test_loads_run_ahead_of_compute(cycles: int) -> None:
    tasks = []
    for slot in range(8):
        tasks.append(Task(Load(rows=4, dst=4 * slot, dst_row=1), 2 * slot, 9))
        tasks.append(Task(Mm(a=4 * slot, b=4 * slot, b_row=1, c=slot), 2 * slot + 1, cycles, paces=True))
    order = schedule(Tasks.of(tasks, TINY), FAST)[0].layer.tolist()
    # Each LOAD follows an MM: long ones the MM two slots before, short ones the first.
    assert order[:4] == [0, 1, 2, 4]
    for slot in range(3, 8):
        before = [layer for layer in order[: order.index(2 * slot)] if layer % 2]
        assert before == ([1] if cycles == 10 else list(range(1, 2 * slot - 2, 2)))


@pytest.mark.parametrize(("depth", "slots"), [(1, 2), (4, 2), (4, 4), (8, 2), (16, 3)])
def test_products_precede_a_full_vector_queue(depth: int, slots: int) -> None:
    """Blocks of 12 VECs: the array gets its next product when a slot is free and its queue has room, not after all
    VECs of the previous block."""
    config = dataclasses.replace(TINY, queue_depth=depth)
    tasks = []
    for block in range(8):
        sums = 16 * (block % slots)
        tasks.append(Task(Mm(nt=12, c=sums, c_nt=1, a=0, b=4), 100 + block, 240, paces=True))
        tasks += [Task(Vec(src=sums + tile, dst=40, params=20), block, 20) for tile in range(12)]
    order = schedule(Tasks.of(tasks, config), Target(config)).tasks.layer.tolist()
    for block in range(8):
        vecs = sum(item < 100 for item in order[: order.index(100 + block)])
        needed = 12 * max(block - slots + 1, 0)
        room = 12 * max(block - depth, 0) + 1  # the product so many before has started
        assert max(needed, 0) <= vecs <= max(needed, room + depth)


LOAD, MM, VEC, STORE = (int(queue) for queue in (Queue.LOAD, Queue.MM, Queue.VEC, Queue.STORE))


def tasks_of(rows: list[tuple[int, int, int, list[tuple[bool, int]]]]) -> Tasks:
    """Build tasks from (layer, queue, cycles, accesses as (writes, address))."""
    layer, queue, cycles, touched = zip(*rows, strict=True)
    uses = [
        (task, 2 * queue[task] + write, SCRATCHPAD, at, at + 1, 1)
        for task, places in enumerate(touched)
        for write, at in places
    ]
    count, columns = len(rows), np.array(uses, np.int64).reshape(-1, 6).T
    words = np.arange(count * 8, dtype=np.uint64).reshape(count, 8) << np.uint64(8)  # of no opcode
    return Tasks(
        words, np.array(queue), np.array(layer), np.array(cycles),
        np.zeros(count, np.int64), np.ones(count, bool), Uses(*columns),
    )  # fmt: skip


def order_of(tasks: Tasks, firsts: tuple[int, ...]) -> list[int]:
    return (merge_overlapped(tasks, firsts).words[:, 0] >> np.uint64(11)).astype(int).tolist()


def random_rows(rng: np.random.Generator) -> list[tuple[int, int, int, list[tuple[bool, int]]]]:
    """A layer alone, two to merge, one of them on the array, and one after them."""
    rows, paced = [], int(rng.integers(1, 3))
    for layer in range(4):
        for _ in range(rng.integers(1, 30)):
            queues = [LOAD, MM, VEC, STORE] if layer in (0, 3, paced) else [LOAD, VEC, STORE]
            queue = int(rng.choice(queues))
            places = [(bool(rng.integers(2)), int(rng.integers(12))) for _ in range(rng.integers(1, 4))]
            rows.append((layer, queue, int(rng.integers(1, 50)), [(w, 12 * queue + at) if w else (w, at + 12 * int(
                rng.choice([LOAD, MM, VEC, STORE]))) for w, at in places]))  # fmt: skip
    return rows


@repeated("seed", range(60))
def test_conflicting_tasks_keep_their_order(seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed))
    order = order_of(tasks_of(rows), (1,))
    assert sorted(order) == list(range(len(rows)))
    place = {task: index for index, task in enumerate(order)}
    for late, (layer, queue, _, touched) in enumerate(rows):
        for early in range(late):
            other = rows[early]
            clash = any(at == of and (write or wrote) for write, at in touched for wrote, of in other[3])
            same = queue == other[1] and other[0] == layer
            if clash or same or other[0] == 0 or layer == 3:
                assert place[early] < place[late], (early, late)


def pair(kernels: int, products: int, *, first: bool, loads: int = 0) -> Tasks:
    """Products with a result each, and independent kernels before or after them. `loads` are cycles of a LOAD for
    each product, if any."""
    own = [(1 - int(not first), queue, cycles, [(write, place)])
           for index in range(products) for queue, cycles, write, place in (
               (LOAD, loads, True, 50 + index % 4), (MM, 100, True, 10 + index % 2), (VEC, 5, False, 10 + index % 2))
           if cycles]  # fmt: skip
    other = [(int(not first), VEC, 150, [(True, 90 + index)]) for index in range(kernels)]
    return tasks_of(other + own if first else own + other)


@pytest.mark.parametrize("loads", [0, 90])
@pytest.mark.parametrize("first", [True, False])
def test_kernels_are_spread(first: bool, loads: int) -> None:
    """One kernel for every four products, between their results; LOADs take no time of the array."""
    tasks = pair(10, 40, first=first, loads=loads)
    result = merge_overlapped(tasks, (0,))
    kernels = np.flatnonzero(result.cycles == 150)
    assert np.diff(kernels).max() < 2 * len(tasks) / 10
    assert kernels[0] < 12
    assert kernels[-1] > len(tasks) - 16
    assert result.paces.sum() == 40
    assert np.diff(np.cumsum(result.queue == MM)[kernels])[1:].tolist() == [4] * 8


def test_kernels_needed_by_all_are_not_spread() -> None:
    """The array waits for the first four of ten kernels. The next comes with the first product, the others after
    four products each."""
    kernels = [(0, VEC, 150, [(True, 90 + index)]) for index in range(10)]
    products = [
        (1, MM, 100, [(False, 93), (True, 10)]),
        *((1, MM, 100, [(True, 10 + at % 2)]) for at in range(39)),
    ]
    result = merge_overlapped(tasks_of(kernels + products), (0,))
    before = np.cumsum(result.queue == MM)[result.cycles == 150]
    assert before.tolist() == [0, 0, 0, 0, 1, 5, 9, 13, 17, 21]


def test_nothing_to_merge() -> None:
    tasks = pair(2, 3, first=True)
    assert merge_overlapped(tasks, ()) is tasks


def test_concurrent_operators_do_not_share_memory() -> None:
    """A result does not overwrite an operand of the operator beside it."""
    values = [whole(f"v{index}", (1, 4, 4, 8), "input" if not index else "temp") for index in range(4)]
    ops = [convolution(src, 8).replace(dst=dst) for src, dst in itertools.pairwise(values)]
    plain, beside = Allocation(ops), Allocation(ops, overlapped=(1,))
    assert plain.offsets["v1"] == plain.offsets["v3"]
    assert len({beside.offsets[name] for name in ("v1", "v2", "v3")}) == 3


def tables_of(rng: np.random.Generator) -> tuple[Tasks, list[tuple[str, int]]]:
    """Products with results, and other tasks that fill and use look-up tables, with their actions."""
    rows, done, words = [], list[tuple[str, int]](), list[bytes]()
    for layer in range(3):
        for _ in range(int(rng.integers(4, 20))):
            table, kind = int(rng.integers(2)), str(rng.choice(["fill", "use", "none"]))
            queue = MM if layer == 1 and kind == "none" else VEC
            word = {
                "fill": Lookup(table=table),
                "use": Vec(lookup=1, table=table),
                "none": Mm() if queue == MM else Vec(),
            }
            rows.append((layer, queue, int(rng.integers(1, 50)), [(True, 40 * layer + len(rows) % 3)]))
            done.append((kind, table))
            words.append(word[kind].encode())
    columns = np.frombuffer(b"".join(words), "<u8").reshape(len(words), -1)
    return dataclasses.replace(tasks_of(rows), words=columns, dram_bytes=np.arange(len(rows))), done


@pytest.mark.parametrize("seed", range(10))
def test_tables_keep_their_contents(seed: int) -> None:
    """Each instruction finds the table that was filled last before it in program order."""
    tasks, done = tables_of(np.random.default_rng(seed))

    def seen(order: list[int]) -> dict[int, int]:
        held, actual = dict[int, int](), dict[int, int]()
        for task in order:
            kind, table = done[task]
            if kind == "fill":
                held[table] = task
            elif kind == "use":
                actual[task] = held.get(table, -1)
        return actual

    order = merge_overlapped(tasks, (0, 1)).dram_bytes.tolist()
    assert seen(order) == seen(sorted(order))


def in_memory(rows: list[tuple[int, int, int, list[tuple[bool, int]]]]) -> Tasks:
    """Tasks whose addresses from 300 on are in memory, 64 bytes each."""
    tasks = tasks_of(rows)
    uses = tasks.uses
    memory = uses.start >= 300
    scale = np.where(memory, 64, 1)
    space = np.where(memory, DRAM + 1, uses.space)
    uses = dataclasses.replace(uses, space=space, start=uses.start * scale, stop=uses.stop * scale)
    return dataclasses.replace(tasks, uses=uses)


@pytest.mark.parametrize("reads", [True, False])
def test_results_wait_for_readers_of_their_memory(reads: bool) -> None:
    """A result waits for earlier readers of its memory, but not for other bytes of equal rows."""
    rows = [
        (0, LOAD, 900, [(False, 300 + int(reads)), (True, 60)]),
        (0, VEC, 900, [(False, 60), (True, 70)]),
        (0, STORE, 900, [(False, 70), (True, 500)]),
        (0, LOAD, 900, [(False, 301), (True, 61)]),
        (1, MM, 100, [(True, 10)]),
        (1, STORE, 5, [(False, 10), (True, 300 + int(reads)), (True, 500)]),
    ]
    result = order_of(in_memory(rows), (0,))
    assert result.index(5) < result.index(2) or reads
    assert (result.index(3) < result.index(5)) is reads


def test_more_than_two_at_a_time() -> None:
    """Kernels of the operators before and after the products run in turn beside them."""
    others = [
        [(layer, VEC, 150, [(True, 90 + 20 * layer + index)]) for index in range(5)] for layer in (0, 2)
    ]
    own = [(1, queue, cycles, [(write, 10 + at % 2)]) for at in range(40) for queue, cycles, write in (
        (MM, 100, True), (VEC, 5, False))]  # fmt: skip
    result = merge_overlapped(tasks_of(others[0] + own + others[1]), (0, 1))
    before = np.cumsum(result.queue == MM)[result.cycles == 150]
    assert result.layer[result.cycles == 150].tolist() == [0] * 5 + [2] * 5
    assert before[-1] < 40
    assert np.diff(before)[1:].tolist() == [4] * 8
    assert runs((7, 1, 2, 5)) == [range(1, 4), range(5, 7), range(7, 9)]


RUN_AHEAD_SLOW = Target(TINY, 1)


def order(loads: list[int], compute: int, target: Target, slots: int) -> list[int]:
    """Order of LOADs (negative) and the MMs that use them. LOADs take `loads` cycles each, MMs `compute`."""
    tasks = []
    for index, cycles in enumerate(loads):
        slot = 8 * (index % slots)
        tasks.append(Task(Load(rows=4, dst=slot, dst_row=1), ~index, cycles))
        tasks.append(Task(Mm(a=slot, b=slot, b_row=1, c=index % 2), index, compute, paces=True))
    return schedule(Tasks.of(tasks, target.config), target)[0].layer.tolist()


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_long_loads_overlap_the_first_products(depth: int) -> None:
    """Seven short LOADs, then seven long ones, which start about 1,200 cycles in, during the second product. Two
    have left the queue by then, and `depth` more have room."""
    target = Target(dataclasses.replace(TINY, queue_depth=depth), 1)
    actual = order([100] * 7 + [2000] * 7, 1000, target, slots=14)
    assert [item for item in actual[: actual.index(~7)] if item >= 0] == list(range(min(depth + 2, 7)))


def test_a_slot_in_use_is_not_filled() -> None:
    actual = order([900] * 8, 1000, RUN_AHEAD_SLOW, slots=2)
    for index in range(2, 8):
        assert actual.index(~index) > actual.index(index - 2)


def test_products_do_not_wait_for_later_loads() -> None:
    actual = order([1000] * 12, 10, RUN_AHEAD_SLOW, slots=12)
    for index in range(12 - TINY.queue_depth):
        assert actual.index(index) < actual.index(~(index + TINY.queue_depth))


CONFIG = PRESETS["tiny"].replace(depthwise_taps=0, int4=1)
N = CONFIG.n


def form(instruction: Instruction) -> Instruction:
    return Code(sequential_forms(Code.of([instruction]).words, N))[0]


def results(generator: Generator) -> bytes:
    """Memory after a program, without the program's own area."""
    held, size = generator.run(GoldenDevice(CONFIG, MEMORY)), len(generator.program) * WORD_BYTES
    return held[:PROGRAM] + held[PROGRAM + size :]


def test_merged_programs_are_equivalent() -> None:
    changed = set()
    for seed in range(15):
        generator = Generator(CONFIG, seed, serial=True)
        generator.build(25)
        expected = results(generator)
        actual = list(Code(sequential_forms(Code.of(generator.program).words, N)))
        changed |= {new.OPCODE for old, new in zip(generator.program, actual, strict=True) if old != new}
        generator.program = actual
        assert results(generator) == expected, f"seed {seed}"
    assert changed == {Opcode.VEC, Opcode.LOAD}


def cycles(load: Load, rng: np.random.Generator) -> tuple[bytes, int]:
    """Cycles of an instruction, checked against the scratchpad that a LOAD leaves."""
    vectors = CONFIG.scratchpad_size
    whole = Store(offset=0x4000, pixels=vectors, length=N, pitch=N, src_pixel=1)
    program = b"".join(instruction.encode() for instruction in (load, whole, End()))
    inputs = rng.integers(0, 256, 0x1000, np.uint8).tobytes()
    golden, model = GoldenDevice(CONFIG, 1 << 16), SequentialTimingDevice(CONFIG, 1 << 16)
    for device in (golden, model):
        device.write(0, inputs)
        device.write(0x2000, program)
        device.start(0x2000)
        device.wait()
    held = golden.read(0x4000, N * vectors)
    assert model.computed[0x4000 : 0x4000 + N * vectors].tobytes() == held
    return held, model.counters()[Counter.LOAD_BUSY]


def test_single_vector_rows_have_no_stride() -> None:
    plain = Load(rows=9, row_pitch=24, pixels=1, length=N - 1, pitch=24, run=N - 1, dst_row=2)
    actual = form(plain)
    assert isinstance(actual, Load)
    assert actual.pitch == N - 1
    (held, long), (same, short) = (cycles(load, np.random.default_rng(5)) for load in (plain, actual))
    assert held == same
    assert short < long


def test_instructions_that_do_not_change() -> None:
    for load in (
        Load(pixels=2, length=N, pitch=9),
        Load(pixels=1, length=N, pitch=9, transpose=1),
        Load(pixels=1, length=N + 1, pitch=40),
        Mm(y=1, h=9),
    ):
        assert form(load) == load


def test_coordinates_in_range_stand_still() -> None:
    still = Vec(oy=3, ox=5)
    for vec in (
        Vec(oy=3, ox=5, y_oy=1, x_ox=2, h=3, w=9),
        Vec(oy=3, ox=5, y=2, y_oy=-1, x=8, x_ox=-2, h=3, w=9),
        Vec(oy=3, ox=5, y=4, x=7, h=5, w=8, y_ry=3),
    ):
        actual = form(vec)
        assert isinstance(actual, Vec)
        assert (actual.y, actual.y_oy, actual.h, actual.x, actual.x_ox, actual.w) == (0, 0, 1, 0, 0, 1)
        assert (actual.oy, actual.ox, actual.y_ry) == (still.oy, still.ox, vec.y_ry)
    for vec in (
        Vec(oy=3, ox=5, y_oy=1, h=2),
        Vec(oy=3, ox=5, y=-1, y_oy=1, h=9),
        Vec(oy=3, ox=5, y=1, y_oy=-1, h=9),
        Vec(oy=1, ox=5, x_ox=2, w=8),
        Vec(ry=2, h=9, y_ry=1),
        Vec(rx=2, w=9, x_rx=0),
        Vec(oy=600, y_oy=127, h=(1 << 16) - 1),  # wraps to the first ones
        Vec(x=-(1 << 15) + 5, w=(1 << 16) - 1),
        Vec(oy=2, y=(1 << 15) - 1, y_oy=1, h=(1 << 16) - 1),
    ):
        assert form(vec) == vec
