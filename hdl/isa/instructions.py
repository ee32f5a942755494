"""The instruction set, defined once; `weft.hdl.isa.encoding` tells how it becomes words.

`wait` and `signal` are masks over `SEMAPHORES` counting semaphores. A unit starts an instruction once every
semaphore in `wait` is above zero, taking one from each; it adds one to each in `signal` when all effects of the
instruction are visible to the other units.

Addresses named ``a``, ``b``, ``src``, ``dst`` and ``params`` count scratchpad vectors (N bytes), ``c`` counts
accumulator rows (N x int32). Strides are added per iteration of the loop they name, modulo 2**16. Counts are the
number of iterations, at least 1.

Configurations with softmax (``probability_bits`` above 0) have three more memories: *row states* (a maximum ``m`` and
a sum ``l`` for each row of scores under way, addressed by ``state``), *alignments* (a shift from -31 to 31 for each
vector of probabilities, addressed by ``alignment``), and the *table* of ``table_depth`` bytes. Without softmax the
opcodes SOFTMAX, NORMALISE and TABLE do not exist, and fields marked "softmax only" must be 0. ``rsh(x, s)`` stands
for ``(x + 2**(s-1)) >> s``, arithmetic, and for ``x`` where ``s = 0``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weft.hdl.isa.encoding import (
    Instruction,
    Opcode,
    Queue,
    bits,
    count,
    stride,
)
from weft.hdl.isa.features import Feature
from weft.hdl.isa.operands import LANES, Bound, Count, Loop, Memory, Operand, over
from weft.hdl.isa.parameters import PARAMETER_VECTORS

BASES = 8
"""Base registers that DRAM addresses are relative to."""
FILL_MAX = 1 << 17
"""Most fill bytes of a `Load`'s row behind those from DRAM: as it passes them, nothing tells that a program goes on."""
COORDINATE_MAX = (1 << 15) - 1
"""Largest row or column of an operand with bounds: coordinates are 16-bit two's complement."""
PAGE_ENTRY = 4
"""Bytes of an entry of a page table."""


_VECTORS = Count(("length",), per="n")
"""Vectors of a pixel."""
_OUTPUTS = ("ob", "oy", "ox")


class Source(enum.IntEnum):
    """Where instructions of the VEC queue read their (first) operand."""

    ACCUMULATOR = 0
    SCRATCHPAD = 1


class Reduce(enum.IntEnum):
    """How `Vec` combines the elements of its reduction loops."""

    NONE = 0
    MAX = 1
    SUM = 2


@dataclass(frozen=True)
class End(Instruction):
    """Stop fetching. The program is done when every queue is empty and every unit idle."""

    OPCODE = Opcode.END


@dataclass(frozen=True)
class Load(Instruction):
    """DRAM to scratchpad.

    A row is a run of bytes: ``before`` fill bytes, then ``run`` bytes from DRAM at ``base[base] + offset +
    row * row_pitch + row // line * skip``, then as many fill bytes as its pixels have, at most `FILL_MAX`. ``rows`` is
    a multiple of ``line``. Pixel ``p`` of a row is its bytes ``p*pitch .. p*pitch + length - 1``, carved into
    ``ceil(length / N)`` vectors; lanes past ``length`` hold the fill byte. Vector ``v`` goes to
    ``dst + row*dst_row + p*dst_pixel + v*dst_vector``; no vector may be written twice. With ``pitch < length`` pixels
    overlap: that is how windows of a convolution with few channels fill the contraction. Where not all channels of a
    box of pixels are wanted, each pixel is a row here, and each row of the box a line.

    With ``transpose``, ``length`` is at most N, so a pixel is one vector. The vectors, in order of row and pixel, are
    taken in groups of N, the last one filled up with vectors of the fill byte. Vector i of group g consists of byte i
    of each vector of the group, and goes to ``dst + g*dst_row + i*dst_vector``, for all i from 0 to N - 1.

    With ``paged``, the address of every row has ``entry`` added, the little-endian 32-bit word at ``base[table] + 4 *
    page``, read when the instruction starts. ``base[table]`` is a multiple of 4.
    """

    OPCODE = Opcode.LOAD
    QUEUE = Queue.LOAD
    OPERANDS = (
        Operand(
            "offset",
            Memory.DRAM,
            (
                Loop("line", "lines", "line_pitch"),
                Loop("row", "line", "row_pitch"),
                Loop("byte", "run", 1),
            ),
            when={"paged": 0},
            register="base",
        ),
        Operand(
            "entry",
            Memory.DRAM,
            (Loop("byte", Count(number=PAGE_ENTRY), 1),),
            when={"paged": 1},
            register="table",
        ),
        Operand(
            "dst",
            Memory.SCRATCHPAD,
            (
                Loop("row", "rows", "dst_row"),
                Loop("pixel", "pixels", "dst_pixel"),
                Loop("vector", _VECTORS, "dst_vector"),
            ),
            write=True,
            when={"transpose": 0},
            distinct=("row", "pixel", "vector"),
            clash="two vectors go to one scratchpad address",
        ),
        Operand(
            "dst",
            Memory.SCRATCHPAD,
            (Loop("group", Count(("rows", "pixels"), per="n"), "dst_row"), Loop("byte", LANES, "dst_vector")),
            write=True,
            when={"transpose": 1},
            distinct=("group", "byte"),
            clash="two vectors go to one scratchpad address",
        ),
    )

    base: int = bits(3, "base register")
    offset: int = bits(32, "DRAM offset in bytes of the first row's first byte")
    rows: int = count("rows")
    row_pitch: int = stride("DRAM bytes from one row to the next", 32)
    line: int = count("rows of a line")
    skip: int = stride("DRAM bytes more from the last row of a line to the next line", 32)
    pixels: int = count("pixels in a row", 16)
    pitch: int = bits(16, "bytes from one pixel to the next", least=1, default=1)
    length: int = bits(16, "bytes of a pixel", least=1, default=1)
    before: int = bits(16, "fill bytes ahead of the row's bytes from DRAM")
    run: int = bits(24, "bytes of a row that come from DRAM", least=1, default=1)
    fill: int = bits(8, "value of fill bytes", signed=True)
    dst: int = bits(16, "first scratchpad vector")
    dst_vector: int = stride("vectors of one pixel")
    dst_pixel: int = stride("pixels")
    dst_row: int = stride("rows, or groups under `transpose`")
    transpose: int = bits(1, "transpose groups of N vectors", requires=Feature.SOFTMAX)
    paged: int = bits(1, "add a page table's entry to the address", requires=Feature.SOFTMAX)
    table: int = bits(3, "base register of the page table", requires=Feature.SOFTMAX)
    page: int = bits(16, "index of the page table's entry", requires=Feature.SOFTMAX)

    @property
    def lines(self) -> int:
        """Whole lines."""
        return self.rows // self.line

    @property
    def line_pitch(self) -> int:
        """DRAM bytes from the first row of a line to that of the next."""
        return self.line * self.row_pitch + self.skip

    @property
    def entry(self) -> int:
        """Offset in bytes of the page table's entry."""
        return PAGE_ENTRY * self.page


@dataclass(frozen=True)
class Mm(Instruction):
    """Matrix multiply, or convolution as implicit GEMM, from scratchpad into the accumulator.

    Loops, outermost first: ``nt`` (output tiles), ``ky``, ``kx``, ``kc`` (contraction), and inside a tile ``oy``,
    ``ox`` (rows of A). For each tile, N words of B at ``b + nt*b_nt + ky*b_ky + kx*b_kx + kc*b_kc + j*b_row``
    (j = 0..N-1) are the weights: ``C[i, j] += sum_k (A[i, k] - zero) * B[j, k]``, all int8, exact. A row of A is the
    vector at ``a`` plus its strides if ``0 <= y < h`` and ``0 <= x < w`` for its coordinates (16-bit, wrapping), else N
    times ``pad``. Row (nt, oy, ox) of C is ``c + nt*c_nt + oy*c_oy + ox*c_ox``; the first contraction step (ky = kx =
    kc = 0) overwrites it unless ``accumulate`` is set, the others add modulo 2**32.

    With ``align``, rows have an alignment each, the same for every nt: the entries from ``alignment`` on, in order of
    (ky, kx, kc, oy, ox). Where it is s >= 0, a row of products p is added as ``rsh(C, s) + p``, else as
    ``C + rsh(p, -s)``; overwriting takes C for 0.

    Within a tile all C rows must differ.
    """

    OPCODE = Opcode.MM
    QUEUE = Queue.MM
    OPERANDS = (
        Operand(
            "a",
            Memory.SCRATCHPAD,
            over("a", "nt", "ky", "kx", "kc", "oy", "ox"),
            bounds=(Bound("y", "h", ("ky", "oy")), Bound("x", "w", ("kx", "ox"))),
        ),
        Operand("b", Memory.SCRATCHPAD, (*over("b", "nt", "ky", "kx", "kc"), Loop("row", LANES, "b_row"))),
        Operand(
            "alignment",
            Memory.ALIGNMENTS,
            (
                Loop("step", Count(("ky", "kx", "kc")), "rows"),
                Loop("row", "rows", 1),
            ),
            when={"align": 1},
        ),
        Operand(
            "c",
            Memory.ACCUMULATOR,
            over("c", "nt", "oy", "ox"),
            write=True,
            distinct=("oy", "ox"),
            clash="two rows of A in a tile add to one accumulator row",
        ),
    )

    accumulate: int = bits(1, "add to C from the first contraction step on")
    nt: int = count("tiles of N output columns")
    ky: int = count("contraction, kernel rows")
    kx: int = count("contraction, kernel columns")
    kc: int = count("contraction, vectors of a pixel")
    oy: int = count("rows of A, outer")
    ox: int = count("rows of A, inner")
    a: int = bits(16, "first A vector")
    a_nt: int = stride("A")
    a_ky: int = stride("A")
    a_kx: int = stride("A")
    a_kc: int = stride("A")
    a_oy: int = stride("A")
    a_ox: int = stride("A")
    y: int = stride("y of the first A row")
    x: int = stride("x of the first A row")
    y_ky: int = stride("y per ky: the dilation", 8)
    y_oy: int = stride("y per oy: the stride", 8)
    x_kx: int = stride("x per kx: the dilation", 8)
    x_ox: int = stride("x per ox: the stride", 8)
    h: int = bits(16, "bound of y", default=1)
    w: int = bits(16, "bound of x", default=1)
    pad: int = bits(8, "A byte where (y, x) is out of range", signed=True)
    b: int = bits(16, "first B vector")
    b_nt: int = stride("B")
    b_ky: int = stride("B")
    b_kx: int = stride("B")
    b_kc: int = stride("B")
    b_row: int = stride("B, from one word of a tile to the next")
    c: int = bits(16, "first C row")
    c_nt: int = stride("C")
    c_oy: int = stride("C")
    c_ox: int = stride("C")
    zero: int = bits(8, "zero point of A", signed=True, requires=Feature.WIDE_ACTIVATIONS)
    align: int = bits(1, "align C and products", requires=Feature.SOFTMAX)
    alignment: int = bits(12, "first alignment", requires=Feature.SOFTMAX)

    @property
    def rows(self) -> int:
        """Rows of A in a tile."""
        return self.oy * self.ox


@dataclass(frozen=True)
class VectorInstruction(Instruction):
    """What instructions of the VEC queue with loops share; fields at the same bits in all of them."""

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
    """The first operand of an instruction of the VEC queue, in the one memory or the other."""
    accumulator, scratchpad = (
        Operand("src", memory, over("src", *loops), when={"source": source}, bounds=bounds)
        for memory, source in (
            (Memory.ACCUMULATOR, Source.ACCUMULATOR),
            (Memory.SCRATCHPAD, Source.SCRATCHPAD),
        )
    )
    return accumulator, scratchpad


_PARAMETERS = Operand("params", Memory.SCRATCHPAD, (Loop("vector", Count(number=PARAMETER_VECTORS), 1),))
_DESTINATION = Operand("dst", Memory.SCRATCHPAD, over("dst", *_OUTPUTS), write=True)


@dataclass(frozen=True)
class Vec(VectorInstruction):
    """Requantise: accumulator or scratchpad in, scratchpad out.

    Loops, outermost first: ``ob``, ``oy``, ``ox`` (outputs), ``ry``, ``rx`` (reduction). For every output and every
    one of its N columns j::

        e     = source element at (ob, oy, ox, ry, rx), sign extended to int32;
                out of range (0 <= y < h, 0 <= x < w fails; 16-bit, wrapping): `pad`, or -2**31 under MAX
        r     = e of the only element, the maximum, or the sum (modulo 2**32) over (ry, rx)
        v     = (r + bias[j]) modulo 2**32, as int32
        p     = v * mantissa[j] + (B[j] - b_zero) * b_mantissa        (second term only with `add`)
        q     = round_half_even(p / 2**shift[j])
        out   = min(max(q + zero, low), high)                          as int8

    Reduce.NONE reads only the last element of the reduction loops, so they should have count 1.
    The parameter block is `PARAMETER_VECTORS` vectors from ``params`` on; vector i holds byte i of every column's
    64-bit parameter word, which is bias (int32, bits 0-31), mantissa (uint24, bits 32-55), shift (uint6, bits 56-61),
    all little endian. With ``mantissa_bits`` 16 the upper byte of mantissas, `b_mantissa` included, must be 0.
    """

    OPCODE = Opcode.VEC
    OPERANDS = (
        *_source(
            *_OUTPUTS, "ry", "rx", bounds=(Bound("y", "h", ("oy", "ry")), Bound("x", "w", ("ox", "rx")))
        ),
        _PARAMETERS,
        Operand("b", Memory.SCRATCHPAD, over("b", *_OUTPUTS), when={"add": 1}),
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


@dataclass(frozen=True)
class Store(Instruction):
    """Scratchpad to DRAM, the mirror of `Load` without fill: byte ``i`` of pixel ``p`` of a row goes to
    ``base[base] + offset + row*row_pitch + p*pitch + i`` for ``i < length``, and no other byte is written.

    With ``pitch == length`` a row is one run of bytes; otherwise every pixel is its own burst. ``pitch`` must not be
    less than ``length`` when ``pixels > 1``.
    """

    OPCODE = Opcode.STORE
    QUEUE = Queue.STORE
    OPERANDS = (
        Operand(
            "src",
            Memory.SCRATCHPAD,
            (
                Loop("row", "rows", "src_row"),
                Loop("pixel", "pixels", "src_pixel"),
                Loop("vector", _VECTORS, "src_vector"),
            ),
        ),
        Operand(
            "offset",
            Memory.DRAM,
            (
                Loop("row", "rows", "row_pitch"),
                Loop("pixel", "pixels", "pitch"),
                Loop("byte", "length", 1),
            ),
            write=True,
            register="base",
        ),
    )

    base: int = bits(3, "base register")
    offset: int = bits(32, "DRAM offset in bytes of the first row's first byte")
    rows: int = count("rows")
    row_pitch: int = stride("DRAM bytes from one row to the next", 32)
    pixels: int = count("pixels in a row", 16)
    pitch: int = bits(16, "bytes from one pixel to the next", least=1, default=1)
    length: int = bits(16, "bytes of a pixel", least=1, default=1)
    src: int = bits(16, "first scratchpad vector")
    src_vector: int = stride("vectors of one pixel")
    src_pixel: int = stride("pixels")
    src_row: int = stride("rows")


@dataclass(frozen=True)
class Softmax(VectorInstruction):
    """A step of softmax: scores in, block floating point probabilities out.

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

    y is Q8.7, in octaves: log2(e) times the scale of the scores is part of the multiplier. ``first`` makes group 0
    start from m = -256, l = 0. With ``final`` the states are only read, and the alignment is
    ``min(max(m - e, 0), 31)``: what remains to shift each vector of probabilities by once all of a row is known.

    length' and diagonal' are the fields, with ``relative`` plus base register ``register`` (modulo 2**32 as int32),
    then clamped to int16. Parameters as in `Vec`. All rows must have states of their own. `Vec`'s rule for operands
    that overlap with the destination applies: no output may overwrite what a later one reads.

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
            over("state", "oy", "ox"),
            distinct=("oy", "ox"),
            clash="two rows of scores have one row state",
        ),
        _DESTINATION,
        Operand("alignment", Memory.ALIGNMENTS, over("alignment", *_OUTPUTS), write=True),
        Operand("state", Memory.STATES, over("state", "oy", "ox"), write=True, when={"final": 0}),
    )

    params: int = bits(16, "first vector of the parameter block")
    first: int = bits(1, "row states start anew")
    final: int = bits(1, "keep row states, align to their maximum")
    causal: int = bits(1, "mask what lies behind the diagonal")
    relative: int = bits(1, "`length` and `diagonal` are relative to a base register")
    register: int = bits(3, "base register")
    length: int = stride("columns that are valid, from the first column of the source on")
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
    """Divide by the sum of each row: accumulator or probabilities in, scratchpad out.

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

    For out to be ``multiplier * (e - z) / (l / 256)``, ``scale`` is ``multiplier * 2**(exponent + 9)``, rounded.
    """

    OPCODE = Opcode.NORMALISE
    REQUIRES = Feature.SOFTMAX
    OPERANDS = (
        *_source(*_OUTPUTS),
        Operand("state", Memory.STATES, over("state", "ob", "oy")),
        Operand("alignment", Memory.ALIGNMENTS, over("alignment", *_OUTPUTS), when={"scaled": 1}),
        _DESTINATION,
    )

    scaled: int = bits(1, "shift by alignments, too")
    scale: int = bits(16, "multiplier, scaled by a power of two", least=1 << 15, default=1 << 15)
    exponent: int = bits(7, "part of the shift", signed=True)
    v_zero: int = bits(8, "zero point of V, whose products with probabilities the source holds", signed=True)
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
    """Fill the table: entry i, from 0 on, is byte i of the vectors ``src`` to ``src + vectors - 1``, unsigned.

    Entries behind them keep their content; ``N * vectors`` is at most ``table_depth``. For softmax, entry i is
    ``round(top * 2**-((i + 1/2)/steps - 1/256))`` with ``steps`` entries an octave and ``top`` 255 or 127: entry 0 of
    2048 stands for exactly 1.
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
