"""Parameter blocks that the vector unit reads while the instruction before may still write."""

from __future__ import annotations

import numpy as np

from weft.hdl.checker.accesses import ProgramError, name
from weft.hdl.checker.conflicts import SCRATCHPAD
from weft.hdl.checker.forms import Forms
from weft.hdl.checker.order import Order
from weft.hdl.isa import PARAMETER_VECTORS, Memory, Opcode, Queue, Source
from weft.hdl.isa.code import Code


def check_early(code: Code, forms: Forms, order: Order) -> None:
    """Raises `ProgramError` for a `Vec` whose parameter block is read early, as `weft.hdl.isa.Vec` tells, and written
    by the `Vec` just before it; unless it waits for what waits for the end of that one, as a LOAD of the block does."""
    queue = np.flatnonzero(code.queues == Queue.VEC)
    before, after = queue[:-1], queue[1:]
    both = (code.opcodes[before] == Opcode.VEC) & (code.opcodes[after] == Opcode.VEC)
    before, after = before[both], after[both]
    source, add = (code.field(field, Opcode.VEC, after) for field in ("source", "add"))
    known = np.zeros(len(code), np.int64)  # instructions of the queue that are done, as others tell
    known[order.visited] = np.array(order.clocks, np.int64).reshape(-1, len(Queue))[:, Queue.VEC]
    early = (source == Source.ACCUMULATOR) & (add == 0) & (known[after] <= order.positions[before])
    before, after = before[early], after[early]
    blocks = code.field("params", Opcode.VEC, after)
    # What lies between the first and the last vector that is written, and only if that meets a block what is written.
    low, high = _written(forms, len(code))
    meets = (low[before] < blocks + PARAMETER_VECTORS) & (blocks < high[before])
    for first, second, block in zip(before[meets], after[meets], blocks[meets], strict=True):
        _check(code, forms, int(first), int(second), int(block))


def _written(forms: Forms, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each instruction the first vector of the scratchpad that it writes, and one past the last."""
    uses = forms.uses
    rows = np.flatnonzero((uses.space == SCRATCHPAD) & (uses.kind & 1 == 1))
    low, high = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(low, uses.task[rows], uses.start[rows])
    np.maximum.at(high, uses.task[rows], uses.stop[rows])
    return low, high


def _check(code: Code, forms: Forms, first: int, second: int, block: int) -> None:
    vectors = set(range(block, block + PARAMETER_VECTORS))
    for access in forms.accesses(first)[0]:
        if not access.write or access.memory is not Memory.SCRATCHPAD:
            continue
        cells = access.cells
        found = vectors & set(range(cells.start, cells.stop) if isinstance(cells, slice) else cells.tolist())
        if found:
            raise ProgramError(
                f"{name(second, code[second])} reads parameters from scratchpad vector {min(found)}, which"
                f" {name(first, code[first])} may still be writing"
            )
