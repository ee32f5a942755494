"""Instructions of the VEC queue; `weft.hdl.isa.instructions` describes conventions that all instructions share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weft.hdl.isa.config import PARAMETER_VECTORS, Feature
from weft.hdl.isa.encoding import Instruction, Opcode, Queue, bits, count, register, stride
from weft.hdl.isa.operands import Bound, Count, Loop, Memory, Operand, loops_over

_OUTPUTS = ("ob", "oy", "ox")


class Source(enum.IntEnum):
    """Memory of the first operand of a VEC instruction."""

    ACCUMULATOR = 0
    SCRATCHPAD = 1


class Reduce(enum.IntEnum):
    """Reduction of `Vec` over the elements of its reduction loops."""

    NONE = 0
    MAX = 1
    SUM = 2


@dataclass(frozen=True)
class VectorInstruction(Instruction):
    """Base class of the VEC instructions with loops: common fields, at the same bits in all of them."""

    QUEUE = Queue.VEC

    source: int = bits(1, "0 accumulator rows, 1 scratchpad vectors")
    ob: int = count("outputs, outer")
    oy: int = count("outputs, rows")
    ox: int = count("outputs, columns")
    src: int = bits(16, "first source row or vector")
    src_ob: int = stride("source")
    src_oy: int = stride("source")
    src_ox: int = stride("source")
    dst: int = bits(16, "first destination vector")
    dst_ob: int = stride("destination")
    dst_oy: int = stride("destination")
    dst_ox: int = stride("destination")


def _source(*loops: str, bounds: tuple[Bound, ...] = ()) -> tuple[Operand, Operand]:
    # The field `source` selects the memory of the first operand.
    accumulator, scratchpad = (
        Operand("src", memory, loops_over("src", *loops), when={"source": source}, bounds=bounds)
        for memory, source in (
            (Memory.ACCUMULATOR, Source.ACCUMULATOR),
            (Memory.SCRATCHPAD, Source.SCRATCHPAD),
        )
    )
    return accumulator, scratchpad


_PARAMETERS = Operand("params", Memory.SCRATCHPAD, (Loop("vector", Count(number=PARAMETER_VECTORS), 1),))
_DESTINATION = Operand("dst", Memory.SCRATCHPAD, loops_over("dst", *_OUTPUTS), write=True)


@dataclass(frozen=True)
class Vec(VectorInstruction):
    """Requantise from accumulator or scratchpad to scratchpad.

    Loops, outermost first: ``ob``, ``oy``, ``ox`` (outputs), ``ry``, ``rx`` (reduction). For every output and each of
    its N columns j::

        e     = source element at (ob, oy, ox, ry, rx), sign extended to int32;
                out of range (not 0 <= y < h and 0 <= x < w; 16-bit, wrapping): `pad`, or -2**31 under MAX
        e     = (e - pad) * (B[j] - b_zero)                            with `multiply`
        r     = e of the only element, the maximum, or the sum (modulo 2**32) over (ry, rx)
        v     = (r + bias[j]) modulo 2**32, as int32
        p     = v * mantissa[j] + (B[j] - b_zero) * b_mantissa        (second term only with `add`, without `multiply`;
                                                                       it is subtracted with `subtract`)
        q     = round_half_even(p / 2**shift[j])
        out   = min(max(q + zero, low), high)                          as int8
        out   = entry out + 128 of look-up table `table`               with `lookup`

    B is the vector at (ob, oy, ox) of the second operand, which is read with `add`. `multiply` needs `add`, a source in
    the scratchpad, and no reduction. Reduce.NONE reads only the last element of the reduction loops, so they should
    have count 1.

    The parameter block is `PARAMETER_VECTORS` vectors from ``params`` on. Vector i holds byte i of every column's
    64-bit parameter word: bias (int32, bits 0-31), mantissa (uint24, bits 32-55), shift (uint6, bits 56-61), all little
    endian. With ``mantissa_bits`` 16 the upper byte of mantissas, `b_mantissa` included, must be 0. Without `add`, and
    with a source in the accumulator, the previous `Vec` must not write the block unless semaphores order the two: the
    block is read while the results of the previous `Vec` are still being written.
    """

    OPCODE = Opcode.VEC
    OPERANDS = (
        *_source(
            *_OUTPUTS, "ry", "rx", bounds=(Bound("y", "h", ("oy", "ry")), Bound("x", "w", ("ox", "rx")))
        ),
        _PARAMETERS,
        Operand("b", Memory.SCRATCHPAD, loops_over("b", *_OUTPUTS), when={"add": 1}),
        Operand("table", Memory.LOOKUP, (), when={"lookup": 1}),
        _DESTINATION,
    )

    params: int = bits(16, "first vector of the parameter block")
    reduce: int = bits(2, "0 none, 1 maximum, 2 sum")
    add: int = bits(1, "add the second operand")
    ry: int = count("reduction, rows")
    rx: int = count("reduction, columns")
    src_ry: int = stride("source")
    src_rx: int = stride("source")
    y: int = stride("y of the first element")
    x: int = stride("x of the first element")
    y_oy: int = stride("y per oy", 8)
    y_ry: int = stride("y per ry", 8)
    x_ox: int = stride("x per ox", 8)
    x_rx: int = stride("x per rx", 8)
    h: int = bits(16, "bound of y", default=1)
    w: int = bits(16, "bound of x", default=1)
    pad: int = bits(8, "element where (y, x) is out of range", signed=True)
    b: int = bits(16, "first vector of the second operand")
    b_ob: int = stride("second operand")
    b_oy: int = stride("second operand")
    b_ox: int = stride("second operand")
    b_mantissa: int = bits(24, "multiplier of the second operand")
    b_zero: int = bits(8, "zero point of the second operand", signed=True)
    zero: int = bits(8, "zero point of the output", signed=True)
    low: int = bits(8, "smallest output", signed=True, default=-128)
    high: int = bits(8, "largest output", signed=True, default=127)
    lookup: int = bits(1, "replace outputs by entries of a look-up table", requires=Feature.LOOKUP)
    table: int = bits(3, "look-up table", requires=Feature.LOOKUP)
    multiply: int = bits(1, "multiply by the second operand instead of adding it", requires=Feature.MULTIPLY)
    subtract: int = bits(1, "subtract the second operand", requires=Feature.MULTIPLY)


@dataclass(frozen=True)
class Softmax(VectorInstruction):
    """Compute a step of softmax, from scores to block floating point probabilities.

    Loops, outermost first: ``ob`` (groups of N columns), ``oy``, ``ox`` (rows of scores; ``ox`` is the row's position
    for the causal mask). For every group and row, in this order, with the N elements ``s[j]`` of the source at
    (ob, oy, ox), sign extended to int32, and the row state ``m, l`` at ``state`` plus its strides::

        y[j]  = sat16(round_half_even(((s[j] + bias[j]) modulo 2**32) * mantissa[j] / 2**shift[j]))
        valid = ob*N + j < length'   and, with `causal`,   ob*N + j <= diagonal' + ox
        e     = the maximum of ceil(y[j] / 128) over valid j; -256 if there is none
        d[j]  = 128*e - y[j]
        p[j]  = table[d[j] >> (11 - log2(table_depth))] if valid and d[j] < 2048, else 0
        m'    = max(m, e)
        u, v  = min(m' - m, 31), min(m' - e, 31)                      (one of them is 0)
        l'    = (rsh(l, u) + rsh(256 * sum p, v)) modulo 2**32
        dst   = p - 128 (8-bit probabilities) or p (7-bit), N bytes at (ob, oy, ox)
        alignment at (ob, oy, ox) = u - v

    y is Q8.7, in octaves: the multiplier includes log2(e) times the scale of the scores. With ``first``, group 0 starts
    from m = -256, l = 0. With ``final``, the states are only read, and the alignment is ``min(max(m - e, 0), 31)``, the
    shift of each vector of probabilities relative to the maximum of the whole row.

    length' and diagonal' are the fields, plus base register ``register`` with ``relative`` (modulo 2**32 as int32),
    clamped to int16. Parameters are as in `Vec`. Each row must have a state of its own. No output may overwrite a
    vector that a later output reads.

    The online softmax with a running maximum is that of Milakov and Gimelshein (2018), arXiv:1805.02867; exponents per
    block make the probabilities block floating point.
    """

    OPCODE = Opcode.SOFTMAX
    REQUIRES = Feature.SOFTMAX
    OPERANDS = (
        *_source(*_OUTPUTS),
        _PARAMETERS,
        Operand("table", Memory.TABLE, (Loop("entry", Count(parameters=("table_depth",)), 1),), start=0),
        Operand(
            "state",
            Memory.STATES,
            loops_over("state", "oy", "ox"),
            distinct=("oy", "ox"),
            clash="two rows of scores have one row state",
        ),
        _DESTINATION,
        Operand("alignment", Memory.ALIGNMENTS, loops_over("alignment", *_OUTPUTS), write=True),
        Operand("state", Memory.STATES, loops_over("state", "oy", "ox"), write=True, when={"final": 0}),
    )

    params: int = bits(16, "first vector of the parameter block")
    first: int = bits(1, "reset row states")
    final: int = bits(1, "keep row states, align to their maximum")
    causal: int = bits(1, "mask columns after the diagonal")
    relative: int = bits(1, "`length` and `diagonal` are relative to a base register")
    register: int = register("base register")
    length: int = stride("valid columns, from the first column of the source on")
    diagonal: int = stride("last valid column of the rows with ox = 0")
    state: int = bits(16, "first row state")
    state_oy: int = stride("row state")
    state_ox: int = stride("row state")
    alignment: int = bits(16, "first alignment")
    alignment_ob: int = stride("alignment")
    alignment_oy: int = stride("alignment")
    alignment_ox: int = stride("alignment")


@dataclass(frozen=True)
class Normalise(VectorInstruction):
    """Divide by the sum of each row, from accumulator or scratchpad to scratchpad.

    Loops, outermost first: ``ob``, ``oy`` (rows), ``ox`` (vectors of a row). For every (ob, oy), with ``l`` of the row
    state at ``state`` plus its strides::

        E = number of bits of l (0 to 32);  t = its top 17 bits: l << (17 - E), or l >> (E - 17) if E > 17
        r = min(65535, floor(scale * 2**16 / t)), and 0 if l = 0
        z = v_zero * rsh(l, 8)

    and for every ox and column j, with the source element ``e`` (from the scratchpad: the probability p that Softmax
    stored as e), and ``a`` the alignment at (ob, oy, ox) under ``scaled``, else 0::

        s   = min(max(E + exponent + a, 0), 63)
        q   = round_half_even(((e - z) modulo 2**32, as int32) * r / 2**s)
        out = min(max(q + zero, low), high)                           as int8

    The result is ``multiplier * (e - z) / (l / 256)`` if ``scale`` is ``multiplier * 2**(exponent + 9)``, rounded.
    """

    OPCODE = Opcode.NORMALISE
    REQUIRES = Feature.SOFTMAX
    OPERANDS = (
        *_source(*_OUTPUTS),
        Operand("state", Memory.STATES, loops_over("state", "ob", "oy")),
        Operand("alignment", Memory.ALIGNMENTS, loops_over("alignment", *_OUTPUTS), when={"scaled": 1}),
        _DESTINATION,
    )

    scaled: int = bits(1, "shift by alignments")
    scale: int = bits(16, "multiplier, scaled by a power of two", least=1 << 15, default=1 << 15)
    exponent: int = bits(7, "part of the shift", signed=True)
    v_zero: int = bits(8, "zero point of V, if the source is products of probabilities and V", signed=True)
    state: int = bits(16, "first row state")
    state_ob: int = stride("row state")
    state_oy: int = stride("row state")
    alignment: int = bits(16, "first alignment")
    alignment_ob: int = stride("alignment")
    alignment_oy: int = stride("alignment")
    alignment_ox: int = stride("alignment")
    zero: int = bits(8, "zero point of the output", signed=True)
    low: int = bits(8, "smallest output", signed=True, default=-128)
    high: int = bits(8, "largest output", signed=True, default=127)


@dataclass(frozen=True)
class Table(Instruction):
    """Fill the softmax table: entry i is byte i of the vectors ``src`` to ``src + vectors - 1``, unsigned.

    The entries after these keep their contents; ``N * vectors`` is at most ``table_depth``. For softmax, entry i is
    ``round(top * 2**-((i + 1/2)/steps - 1/256))`` with ``steps`` entries per octave and ``top`` 255 or 127. In a table
    of 2048 entries, entry 0 is then exactly 1.
    """

    OPCODE = Opcode.TABLE
    QUEUE = Queue.VEC
    REQUIRES = Feature.SOFTMAX
    OPERANDS = (
        Operand("src", Memory.SCRATCHPAD, (Loop("vector", "vectors", 1),)),
        Operand(
            "vectors", Memory.TABLE, (Loop("entry", Count(("vectors",), ("n",)), 1),), write=True, start=0
        ),
    )

    src: int = bits(16, "first vector")
    vectors: int = count("vectors")


@dataclass(frozen=True)
class Lookup(Instruction):
    """Fill look-up table `table` from entry `entry` on with the bytes of the vectors ``src`` to ``src + vectors - 1``.

    The other entries keep their contents; ``entry + N * vectors`` is at most `LOOKUP_ENTRIES`. `Vec` replaces the
    output ``i - 128`` by entry i.
    """

    OPCODE = Opcode.LOOKUP
    QUEUE = Queue.VEC
    REQUIRES = Feature.LOOKUP
    OPERANDS = (
        Operand("src", Memory.SCRATCHPAD, (Loop("vector", "vectors", 1),)),
        Operand("table", Memory.LOOKUP, (), write=True),
    )

    src: int = bits(16, "first vector")
    vectors: int = count("vectors")
    table: int = bits(3, "look-up table")
    entry: int = bits(8, "first entry")
