"""Instructions in the form that the sequential core carries out fastest; what they do is the same.

For every output of a VEC that core asks whether it is in range, unless coordinates stand still: then once for all of
them. A LOAD takes longer if pixels do not follow each other, even where there is but one in a row.
"""

from __future__ import annotations

import numpy as np

from weft.hdl.isa import Opcode, places
from weft.hdl.isa.code import Code, mask, write

_AXES = (("y", "y_oy", "oy", "ry", "h"), ("x", "x_ox", "ox", "rx", "w"))


def sequential_forms(words: np.ndarray, n: int) -> np.ndarray:
    """Words of instructions, (count, 8) uint64, for an array of `n` columns.

    Where a VEC reads a vector once for every output, all of them in range, its coordinates are 0, and stay there. Where
    rows of a LOAD are a vector at most, nothing lies behind it.
    """
    made = words.copy()
    _stand(made)
    _shorten(made, n)
    return made


def _stand(words: np.ndarray) -> None:
    code = Code(words)
    rows = np.flatnonzero(code.opcodes == int(Opcode.VEC))
    inside = np.ones(len(rows), bool)
    for names in _AXES:
        first, step, count, window, bound = (code.field(name, Opcode.VEC, rows) for name in names)
        last = first + step * (count - 1)
        low, high = np.minimum(first, last), np.maximum(first, last)
        inside &= (window == 1) & (low >= 0) & (high < np.minimum(bound, 1 << 15))
    _set(words, rows[inside], Opcode.VEC, {"y": 0, "y_oy": 0, "h": 1, "x": 0, "x_ox": 0, "w": 1})


def _shorten(words: np.ndarray, n: int) -> None:
    code = Code(words)
    rows = np.flatnonzero(code.opcodes == int(Opcode.LOAD))
    pixels, length, transposed = (
        code.field(name, Opcode.LOAD, rows) for name in ("pixels", "length", "transpose")
    )
    short = (pixels == 1) & (length <= n) & (transposed == 0)
    _set(words, rows[short], Opcode.LOAD, {"pitch": length[short]})


def _set(words: np.ndarray, rows: np.ndarray, opcode: Opcode, fields: dict[str, int | np.ndarray]) -> None:
    chosen = words[rows] & ~mask(opcode, tuple(fields))
    for name, value in fields.items():
        write(chosen, places(opcode)[name], np.broadcast_to(np.asarray(value, np.int64), len(rows)))
    words[rows] = chosen
