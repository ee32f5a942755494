"""Kernels of random expressions against their micro-operations on the golden interpreter."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weft.compiler.errors import KernelError
from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.evaluate import evaluate
from weft.compiler.kernel.expressions import Expression, Rows, constant
from weft.compiler.lower.rows import interleave_bytes
from weft.hdl.checker.program import check
from weft.hdl.isa import End, Kernel, Microcode, MicroOp
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.kernel import MICRO_OPS, Op
from weft.sim.golden.interpreter import GoldenDevice

CONFIGS = {
    "tiny": PRESETS["tiny"].replace(kernel=256),
    "n2": PRESETS["tiny"].replace(n=2, lanes=1, kernel=256),
    "default": PRESETS["default"].replace(kernel=256, scratchpad_depth=256),
}
OPERANDS = ("src", "b", "c", "d")


def run(
    config: Config,
    ops: tuple[MicroOp, ...],
    tensors: list[np.ndarray],
    single: bool = False,
    tables: tuple[bytes, ...] = (),
) -> np.ndarray:
    """Run a kernel on the golden interpreter: int8 (rows, columns), or with `single` (rows, 1)."""
    n, (rows, columns) = config.n, tensors[0].shape
    columns = max(tensor.shape[1] for tensor in tensors)
    vectors = -(-columns // n)
    device = GoldenDevice(config, 1 << 15)
    for number, table in enumerate(tables):
        device.memories.lookup[number] = np.frombuffer(table, np.int8)
    fields, at = {}, 0
    for name, tensor in zip(OPERANDS, tensors, strict=False):
        wide = tensor.dtype == np.int16
        if wide:
            content = np.frombuffer(b"".join(interleave_bytes(row, n) for row in tensor), np.int8).reshape(
                -1, n
            )
        else:
            width = vectors if tensor.shape[1] > 1 else 1
            content = np.full(
                (len(tensor), width * n), 77, np.int8
            )  # values after the end of a row are not zero
            content[:, : tensor.shape[1]] = tensor
            content = content.reshape(-1, n)
        device.scratchpad[at : at + len(content)] = content
        fields |= {
            name: at,
            f"{name}_oy": len(content) // len(tensor) if len(tensor) > 1 else 0,
            f"{name}_ox": 1 + wide if wide or tensor.shape[1] > 1 else 0,
        }
        fields |= {f"{name}_vectors": 1 + wide} | ({} if name == "src" else {f"with_{name}": 1})
        at += len(content)
    words = [op.encode() for op in ops]
    codes = [
        Microcode(entry=first, count=len(words[first : first + MICRO_OPS]),
                  **{f"op{at}": word for at, word in enumerate(words[first : first + MICRO_OPS])})
        for first in range(0, len(words), MICRO_OPS)
    ]  # fmt: skip
    kernel = Kernel(
        source=1,
        oy=rows,
        ox=vectors,
        tail=columns % n,
        dst=at,
        dst_oy=1 if single else vectors,
        dst_ox=0 if single else 1,
        **fields,
    )
    program = [*codes, kernel, End()]
    check(program, config)
    device.write(0, b"".join(instruction.encode() for instruction in program))
    device.start(0)
    device.wait()
    stored = 1 if single else vectors
    return device.scratchpad[at : at + rows * stored].reshape(rows, -1)[:, : 1 if single else columns]


def random_table(rng: random.Random, dtype: type) -> np.ndarray:
    """Return any entries, up to the ends of int16."""
    ends = np.iinfo(dtype)
    return np.array([rng.randint(ends.min, min(ends.max, 32639)) for _ in range(256)], dtype)


def random_expression(rng: random.Random, rows: Rows, depth: int, pool: list[Expression]) -> Expression:
    """Return any expression with shared parts."""
    if pool and rng.random() < 0.2:
        return rng.choice(pool)
    if depth == 0 or rng.random() < 0.1:
        leaf = rng.choice(("read", "read", "wide", "constant", "index"))
        if leaf == "index":
            return rows.index()
        if leaf == "constant":
            return constant(rng.choice((rng.randrange(-300, 300), rng.randrange(-(1 << 23), 1 << 23))))
        return rows.read(rng.randrange(2)) if leaf == "read" else rows.wide(2)
    a = random_expression(rng, rows, depth - 1, pool)
    kind = rng.choice(
        ("add", "subtract", "times", "shift", "least", "most", "choose", "sum", "largest", "over", "scaled",
         "floored", "table", "between")
    )  # fmt: skip
    if kind in ("sum", "largest", "shift", "scaled", "floored", "table", "between"):
        result = {
            "sum": lambda: rows.sum(a), "largest": lambda: rows.largest(a), "shift": lambda: a << rng.randrange(1, 4),
            "scaled": lambda: a.scale(rng.uniform(-2, 2)), "floored": lambda: a.shift_right(rng.randrange(12)),
            "table": lambda: a.look_up(random_table(rng, np.int8)),
            "between": lambda: a.interpolate(random_table(rng, rng.choice((np.int8, np.int16))), rng.randrange(1, 8)),
        }[kind]()  # fmt: skip
    else:
        b = random_expression(rng, rows, depth - 1, pool)
        result = {
            "add": lambda: a + b, "subtract": lambda: a - b, "times": lambda: a.times(b, rng.randrange(8)),
            "least": lambda: a.minimum(b), "most": lambda: a.maximum(b), "choose": lambda: (a < b).choose(b, a),
            "over": lambda: a.minimum(1000).maximum(-1000).over(
                (b.rsqrt() if rng.random() < 0.5 else b.reciprocal()), rng.randrange(4), 1 << 30),
        }[kind]()  # fmt: skip
    pool.append(result)
    return result


@pytest.mark.parametrize("name", CONFIGS)
def test_random(name: str) -> None:
    config, rng, done = CONFIGS[name], random.Random(3), 0
    kinds: set[int] = set()
    while done < 80:
        columns, count = rng.randrange(1, 3 * config.n), rng.randrange(1, 12)
        rows = Rows(columns, 3)
        try:
            result = random_expression(rng, rows, rng.randrange(1, 5), [])
            if not result.varies and rng.random() < 0.8:
                continue
            rows.store(result)
            ops = generate(rows, config.n)
        except KernelError:
            continue
        tables = tables_of(rows)
        if len(tables) > config.lookup_tables:
            continue
        numbers = tuple(rng.sample(range(config.lookup_tables), len(tables)))
        filled = dict(zip(numbers, tables, strict=True))
        source = np.random.default_rng(rng.getrandbits(32))
        tensors = [source.integers(-128, 128, (count, columns)).astype(np.int8)]
        tensors += [source.integers(-128, 128, (rng.choice([1, count]), columns)).astype(np.int8)]
        tensors += [source.integers(-(1 << 15), 1 << 15, (rng.choice([1, count]), columns)).astype(np.int16)]
        expected = evaluate(rows, tensors)
        given = tuple(filled.get(number, bytes(256)) for number in range(config.lookup_tables))
        actual = run(config, with_tables(ops, numbers), tensors, tables=given)
        assert np.array_equal(actual, expected), (rows, ops)
        kinds |= {op.op for op in ops}
        done += 1
    assert kinds == set(Op) - {Op.EQ}


@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_of_rows(name: str) -> None:
    """Each row has one scalar operand, with any neighbours in memory, and one result."""
    config, rng = CONFIGS[name], np.random.default_rng(5)
    for columns in (2, 3, config.n, 2 * config.n + 1):
        tensors = [rng.integers(-128, 128, (9, width)).astype(np.int8) for width in (columns, 1)]
        for single in (False, True):
            rows = Rows(columns, 2)
            x, number = rows.read(0), rows.number(1)
            if single:
                rows.store_number((rows.largest(x) + number).scale(0.5))
            else:
                rows.store((x + number).scale(0.5))
            expected = evaluate(rows, tensors)
            assert expected.shape == (9, 1 if single else columns)
            ops = generate(rows, config.n)
            assert bool(ops[-1].again) != single
            assert np.array_equal(run(config, ops, tensors, single), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_ends_of_rows_in_several_sums(name: str) -> None:
    """Padding counts in no sum: of one loop, after a comparison, and in the next loop."""
    config, rng = CONFIGS[name], np.random.default_rng(6)
    columns = 2 * config.n + 1
    rows = Rows(columns, 2)
    x, y = rows.read(0), rows.read(1)
    first, second = (rows.sum((a < b).choose(a + 2, b - 3)) for a, b in ((x, y), (y, x)))
    third = rows.sum((x + 2).times(3, 1) + first.scale(0.1))
    rows.store(x + second.scale(0.1) + (rows.largest(first.scale(0.1) - y) + third).scale(0.05))
    tensors = [rng.integers(-128, 128, (9, columns)).astype(np.int8) for _ in range(2)]
    ops = generate(rows, config.n)
    assert sum(op.op == Op.INDEX for op in ops) == 3
    assert np.array_equal(run(config, ops, tensors), evaluate(rows, tensors))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("columns", [1, 5, 16, 19])
def test_neighbours_in_the_padding_are_zero(name: str, columns: int) -> None:
    """The last of an odd number of elements has 0 as its neighbour, whatever is computed in the padding."""
    config, rng = CONFIGS[name], np.random.default_rng(columns)
    tensors = [rng.integers(-100, 100, (3, columns)).astype(np.int8)]
    for element in (
        lambda rows: rows.read(0) + 9,
        lambda rows: rows.index() + rows.sum(rows.read(0) + rows.index()).minimum(3),
        lambda rows: rows.read(0),
    ):
        rows = Rows(columns, 1)
        rows.store((element(rows).neighbour() + element(rows)).minimum(100))
        actual = run(config, generate(rows, config.n), tensors)
        assert (actual == evaluate(rows, tensors)).all()


def test_chains_are_one_loop() -> None:
    """A chain of k operations takes k micro-operations; reads and shifts take none."""
    rows = Rows(100, 2)
    x, y = rows.read(0), rows.read(1)
    rows.store((((x << 4) + y).times(77, 3) - 5).maximum(y))
    ops = generate(rows, 16)
    # y is in two registers: second operand of a sum, and of a maximum with a register.
    assert [op.op for op in ops] == [Op.ADD, Op.ADD, Op.MUL, Op.SUB, Op.MAX]
    assert [op.again for op in ops] == [0, 0, 0, 0, 1]


def test_squares_are_read_again() -> None:
    """Two loops: the mean, and its uses."""
    rows = Rows(64, 1)
    x = rows.read(0)
    rows.store(x - rows.sum(x).scale(1 / 64))
    ops = generate(rows, 16)
    assert sum(op.again for op in ops) == 2
    assert [op.swap for op in ops if op.swap] == [1, 2, 3, 4]


def test_too_many_registers() -> None:
    rows = Rows(8, 1)
    x = rows.read(0)
    parts = [x.times(x + index, index) for index in range(12)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    for part in parts:
        total = total.minimum(part)
    rows.store(total)
    with pytest.raises(
        KernelError, match=r"test_kernel_code.py, line \d+: the kernel needs more than 8 registers"
    ):
        generate(rows, 4)
