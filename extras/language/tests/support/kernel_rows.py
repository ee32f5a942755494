"""Runs kernels made of `Rows.put` on the golden interpreter's engine, with operands placed in its memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.kernel.code import generate, tables_of, with_tables
from weft.compiler.kernel.expressions import Rows
from weft.hdl.isa import Kernel, Source
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import SOURCES, TARGETS
from weft.sim.golden.interpreter import EXECUTE
from weft.sim.golden.memories import Memories


@dataclass
class _Operand:
    """Location of an operand of (rows, columns of vectors); `row` and `column` are strides."""

    at: int
    row: int
    column: int
    vectors: int

    def fields(self, name: str) -> dict[str, int]:
        strides = {f"{name}_oy": self.row, f"{name}_ox": self.column}
        return {name: self.at, f"{name}_vectors": self.vectors, **strides}


def run_kernel(rows: Rows, tensors: Sequence[np.ndarray], config: Config) -> dict[int, np.ndarray]:
    """Run a kernel and return its stores by target, in the form of `weft.compiler.kernel.evaluate.evaluate_targets`.

    Tensors are int8 (rows, columns) or (rows, columns, 2), and the first one may be int64 (rows, columns, 1 or 2): then
    it is in the accumulator. Rows and columns may be 1 where an operand is the same for all of them.
    """
    memories, n = Memories(config, 64), config.n
    count, columns = max(map(len, tensors)), rows.columns
    tables = tables_of(rows)
    for number, table in enumerate(tables):
        memories.lookup[number] = np.frombuffer(table, np.int8)
    words = [op.encode() for op in with_tables(generate(rows, n), tuple(range(len(tables))))]
    assert len(words) <= config.kernel
    memories.kernel[: len(words)] = words
    vectors = -(-columns // n)
    fields: dict[str, int] = {"oy": count, "ox": vectors, "tail": columns % n, "source": Source.SCRATCHPAD}
    at = 0
    for name, tensor in zip(SOURCES, tensors, strict=False):
        if tensor.dtype == np.int64:
            fields["source"] = Source.ACCUMULATOR
            used = _place(memories.accumulator, tensor, 0, n)
        else:
            used = _place(memories.scratchpad, tensor, at, n)
            at += tensor.shape[0] * -(-tensor.shape[1] // n) * used.vectors
        fields |= used.fields(name) | ({} if name == "src" else {f"with_{name}": 1})
    places = {}
    for number, name in enumerate(TARGETS):
        mine = [target for target in rows.targets if target % 2 == number]
        if not mine:
            continue
        wide = 1 + max(mine) // 2
        varies = rows.result[rows.targets.index(mine[0])].varies
        places[number] = _Operand(at, (vectors if varies else 1) * wide, wide if varies else 0, wide)
        at += count * vectors * wide
        fields |= places[number].fields(name) | ({"with_dst2": 1} if number else {})
    assert at <= config.scratchpad_size
    EXECUTE[Kernel](memories, Kernel(**fields))
    stores = {}
    for target in rows.targets:
        place = places[target % 2]
        rows_at = place.at + target // 2 + np.arange(count)[:, None] * place.row
        if place.column:
            rows_at = rows_at + np.arange(vectors) * place.column
            stores[target] = memories.scratchpad[rows_at].reshape(count, -1)[:, :columns]
        else:
            stored = memories.scratchpad[rows_at[:, 0]]
            assert (stored == stored[:, :1]).all()  # all elements of the vector
            stores[target] = stored[:, :1]
    return stores


def _place(memory: np.ndarray, tensor: np.ndarray, at: int, n: int) -> _Operand:
    planes = tensor.reshape(*tensor.shape, 1) if tensor.ndim == 2 else tensor
    count, columns, wide = planes.shape
    vectors = -(-columns // n)
    padded = np.zeros((count, vectors * n, wide), memory.dtype)
    padded[:, :columns] = planes
    if columns == 1:
        padded[:] = planes  # the same in all elements
    laid = padded.reshape(count, vectors, n, wide).transpose(0, 1, 3, 2).reshape(-1, n)
    memory[at : at + len(laid)] = laid
    return _Operand(at, 0 if count == 1 else vectors * wide, 0 if columns == 1 else wide, wide)
