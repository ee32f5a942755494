"""Tasks of two operators in one order: nothing passes what it depends on, and both units work."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from support.op_cases import convolution, whole
from support.repeated import repeated

from weft.compiler.machine.memory import Allocation, runs
from weft.compiler.machine.schedule import merge_overlapped
from weft.compiler.machine.tasks import Tasks
from weft.hdl.checker.conflicts import DRAM, SCRATCHPAD, Uses
from weft.hdl.isa import Lookup, Mm, Queue, Vec

LOAD, MM, VEC, STORE = (int(queue) for queue in (Queue.LOAD, Queue.MM, Queue.VEC, Queue.STORE))


def tasks_of(rows: list[tuple[int, int, int, list[tuple[bool, int]]]]) -> Tasks:
    """Of (layer, queue, cycles, what it touches: whether it writes, and the address)."""
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
    """A layer of its own, two to merge, one of which the array computes, and one behind them."""
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
def test_what_conflicts_keeps_its_order(seed: int) -> None:
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
    """Products with a result each, and kernels that need nothing of them, ahead of them or behind. `loads` are the
    cycles of a LOAD for each product, if it has one."""
    own = [(1 - int(not first), queue, cycles, [(write, place)])
           for index in range(products) for queue, cycles, write, place in (
               (LOAD, loads, True, 50 + index % 4), (MM, 100, True, 10 + index % 2), (VEC, 5, False, 10 + index % 2))
           if cycles]  # fmt: skip
    other = [(int(not first), VEC, 150, [(True, 90 + index)]) for index in range(kernels)]
    return tasks_of(other + own if first else own + other)


@pytest.mark.parametrize("loads", [0, 90])
@pytest.mark.parametrize("first", [True, False])
def test_kernels_are_spread(first: bool, loads: int) -> None:
    """Between the results of products, about as many ahead of each as there are: one for every four. What is loaded
    for products takes no time of the array."""
    tasks = pair(10, 40, first=first, loads=loads)
    made = merge_overlapped(tasks, (0,))
    kernels = np.flatnonzero(made.cycles == 150)
    assert np.diff(kernels).max() < 2 * len(tasks) / 10
    assert kernels[0] < 12
    assert kernels[-1] > len(tasks) - 16
    assert made.paces.sum() == 40
    assert np.diff(np.cumsum(made.queue == MM)[kernels])[1:].tolist() == [4] * 8


def test_kernels_that_all_wait_for_count_for_nothing() -> None:
    """The array waits for the first four of ten kernels. The next one comes with the first product nevertheless, and
    all others behind four products each, as if there had been none before."""
    kernels = [(0, VEC, 150, [(True, 90 + index)]) for index in range(10)]
    products = [
        (1, MM, 100, [(False, 93), (True, 10)]),
        *((1, MM, 100, [(True, 10 + at % 2)]) for at in range(39)),
    ]
    made = merge_overlapped(tasks_of(kernels + products), (0,))
    before = np.cumsum(made.queue == MM)[made.cycles == 150]
    assert before.tolist() == [0, 0, 0, 0, 1, 5, 9, 13, 17, 21]


def test_nothing_to_merge() -> None:
    tasks = pair(2, 3, first=True)
    assert merge_overlapped(tasks, ()) is tasks


def test_memory_of_what_runs_together() -> None:
    """A result is not written over what the operator beside it still reads."""
    values = [whole(f"v{index}", (1, 4, 4, 8), "input" if not index else "temp") for index in range(4)]
    ops = [convolution(src, 8).replace(dst=dst) for src, dst in itertools.pairwise(values)]
    plain, beside = Allocation(ops), Allocation(ops, overlapped=(1,))
    assert plain.offsets["v1"] == plain.offsets["v3"]
    assert len({beside.offsets[name] for name in ("v1", "v2", "v3")}) == 3


def tables_of(rng: np.random.Generator) -> tuple[Tasks, list[tuple[str, int]]]:
    """Products with results, and others around, that fill look-up tables and use them; what is done with which."""
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
def test_tables_hold_what_they_did(seed: int) -> None:
    """Each instruction finds the table that was filled last before it one after the other."""
    tasks, done = tables_of(np.random.default_rng(seed))

    def seen(order: list[int]) -> dict[int, int]:
        held, found = dict[int, int](), dict[int, int]()
        for task in order:
            kind, table = done[task]
            if kind == "fill":
                held[table] = task
            elif kind == "use":
                found[task] = held.get(table, -1)
        return found

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
def test_what_is_read_is_not_written_before(reads: bool) -> None:
    """A result waits for what reads the same memory ahead of it, but not for another result: of the same rows, these
    are other bytes."""
    rows = [
        (0, LOAD, 900, [(False, 300 + int(reads)), (True, 60)]),
        (0, VEC, 900, [(False, 60), (True, 70)]),
        (0, STORE, 900, [(False, 70), (True, 500)]),
        (0, LOAD, 900, [(False, 301), (True, 61)]),
        (1, MM, 100, [(True, 10)]),
        (1, STORE, 5, [(False, 10), (True, 300 + int(reads)), (True, 500)]),
    ]
    made = order_of(in_memory(rows), (0,))
    assert made.index(5) < made.index(2) or reads
    assert (made.index(3) < made.index(5)) is reads


def test_more_than_two_at_a_time() -> None:
    """Kernels of the operators ahead of the products' one and behind it follow each other beside it."""
    others = [
        [(layer, VEC, 150, [(True, 90 + 20 * layer + index)]) for index in range(5)] for layer in (0, 2)
    ]
    own = [(1, queue, cycles, [(write, 10 + at % 2)]) for at in range(40) for queue, cycles, write in (
        (MM, 100, True), (VEC, 5, False))]  # fmt: skip
    made = merge_overlapped(tasks_of(others[0] + own + others[1]), (0, 1))
    before = np.cumsum(made.queue == MM)[made.cycles == 150]
    assert made.layer[made.cycles == 150].tolist() == [0] * 5 + [2] * 5
    assert before[-1] < 40
    assert np.diff(before)[1:].tolist() == [4] * 8
    assert runs((7, 1, 2, 5)) == [range(1, 4), range(5, 7), range(7, 9)]
