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
opcodes SOFTMAX, NORMALISE and TABLE do not exist, and fields marked "softmax only" must be 0. Configurations with
`lookup_tables` have so many *look-up tables* of 256 bytes; without them the opcode LOOKUP does not exist, and fields
marked "look-up tables only" must be 0. Fields marked "products of elements only" must be 0 without `multiply`,
those marked "sums along rows only" without `depthwise_taps`, those marked "values of 4 bits only" without `int4`, and
those marked "blocks of values of 4 bits only" unless that is 2.
Without `loops` the opcodes SET, LOOP, NEXT and READ do not exist, and base registers are those that the host sets, 0 to
7. With it there are 16: 0 to 7 start as the host set them, 8 to 15 as 0, and a program may change all of them. What an
instruction needs of them it has from when it passes fetch, which is in program order, whenever its unit starts it.
``rsh(x, s)`` stands for ``(x + 2**(s-1)) >> s``, arithmetic, and for ``x`` where ``s = 0``.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.hdl.isa.config import Feature
from weft.hdl.isa.encoding import (
    FACTORS_SHIFT,
    Instruction,
    Opcode,
    Queue,
    bits,
    count,
    register,
    stride,
)
from weft.hdl.isa.operands import LANES, Bound, Count, Loop, Memory, Operand, over

FILL_MAX = 1 << 17
"""Most fill bytes of a `Load`'s row behind those from DRAM: as it passes them, nothing tells that a program goes on."""
COORDINATE_MAX = (1 << 15) - 1
"""Largest row or column of an operand with bounds: coordinates are 16-bit two's complement."""
PAGE_ENTRY = 4
"""Bytes of an entry of a page table."""
INT4_RUN_MAX = 1 << 23
"""Most bytes of a `Load`'s row with `int4`: twice as many values are what its counters hold."""


def _pixels(name: str) -> tuple[Loop, ...]:
    """Loops over the scratchpad vectors of pixels in rows; fields ``{name}_row`` and so on are the strides."""
    vectors = Count(("length",), per="n")
    counts = (("row", "rows"), ("pixel", "pixels"), ("vector", vectors))
    return tuple(Loop(loop, count, f"{name}_{loop}") for loop, count in counts)


@dataclass(frozen=True)
class End(Instruction):
    """Stop fetching. The program is done when every queue is empty and every unit idle."""

    OPCODE = Opcode.END


@dataclass(frozen=True)
class Load(Instruction):
    """DRAM to scratchpad.

    A row is a run of bytes: ``before`` fill bytes, then ``run`` bytes from DRAM at ``base[base] + offset +
    row * row_pitch + row // line * skip``, then as many fill bytes as its pixels have, at most `FILL_MAX`. ``rows`` is
    a multiple of ``line``. Pixel ``p`` of a row is its bytes ``p*pitch .. p*pitch + length - 1``, unpacked into
    ``ceil(length / N)`` vectors; lanes past ``length`` hold the fill byte. Vector ``v`` goes to
    ``dst + row*dst_row + p*dst_pixel + v*dst_vector``; no vector may be written twice. With ``pitch < length`` pixels
    overlap: that is how windows of a convolution with few channels fill the contraction. Where not all channels of a
    box of pixels are wanted, each pixel is a row here, and each row of the box a line.

    With ``transpose``, a pixel is at most `weft.hdl.isa.config.Config.transposed_vectors` vectors, and pixels of more
    than one vector do not overlap. The pixels, in order of row, are taken in groups of N, the last one filled up with
    pixels of the fill byte. Byte i of vector v of all pixels of group g is a vector, which goes to ``dst + g*dst_row +
    v*dst_pixel + i*dst_vector``, for all i from 0 to N - 1.

    With ``paged``, the address of every row has ``entry`` added, the little-endian 32-bit word at ``base[table] + 4 *
    page``, read when the instruction starts. ``base[table]`` is a multiple of 4.

    With ``int4``, every byte from DRAM is two signed values of 4 bits, the low nibble first, and each of them is a byte
    of the row: ``2 * run`` bytes of it come from DRAM. The other fields count bytes of the row as ever. ``run`` is at
    most `INT4_RUN_MAX`, and every row begins in DRAM at a multiple of the width of the bus. ``paged`` is 0 then.

    With ``blocks`` as well, values are in groups of `weft.hdl.isa.encoding.GROUP` words of N, ahead of which DRAM has N
    factors, signed bytes. Value v of word w of a group becomes ``min(max(rsh(v * factor[w mod N], 3), -128), 127)``.
    ``run`` is a multiple of a group's values, and a sixteenth of it comes from DRAM in addition.
    """

    OPCODE = Opcode.LOAD
    QUEUE = Queue.LOAD
    OPERANDS = (
        Operand(
            "offset",
            Memory.DRAM,
            (Loop("line", "lines", "line_pitch"), Loop("row", "line", "row_pitch"), Loop("byte", "taken", 1)),
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
            _pixels("dst"),
            write=True,
            when={"transpose": 0},
            distinct=("row", "pixel", "vector"),
            clash="two vectors go to one scratchpad address",
        ),
        Operand(
            "dst",
            Memory.SCRATCHPAD,
            (
                Loop("group", Count(("rows", "pixels"), per="n"), "dst_row"),
                Loop("vector", Count(("length",), per="n"), "dst_pixel"),
                Loop("byte", LANES, "dst_vector"),
            ),
            write=True,
            when={"transpose": 1},
            distinct=("group", "vector", "byte"),
            clash="two vectors go to one scratchpad address",
        ),
    )

    base: int = register("base register")
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
    dst_vector: int = stride("vectors of one pixel, or their bytes under `transpose`")
    dst_pixel: int = stride("pixels, or their vectors under `transpose`")
    dst_row: int = stride("rows, or groups under `transpose`")
    transpose: int = bits(1, "transpose groups of N pixels", requires=Feature.SOFTMAX)
    paged: int = bits(1, "add a page table's entry to the address", requires=Feature.SOFTMAX)
    table: int = register("base register of the page table", requires=Feature.SOFTMAX)
    page: int = bits(16, "index of the page table's entry", requires=Feature.SOFTMAX)
    int4: int = bits(1, "bytes in DRAM are two values of 4 bits", requires=Feature.INT4)
    blocks: int = bits(1, "groups of values have factors", requires=Feature.BLOCKS)

    @property
    def taken(self) -> int:
        """Bytes of a row from DRAM, with those of factors."""
        return self.run + (self.run >> FACTORS_SHIFT if self.blocks else 0)

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

    With ``depthwise``, each channel is by itself, and rows of A that follow each other along ``ox`` are added up, T =
    `depthwise_taps` of them: ``C[i, k] += sum_t (A[i - T + 1 + t, k] - zero) * B[N - 2*T + 2*t, k]``, t = 0..T-1. Rows
    of A ahead of the first one of a line, the one with ``ox = 0``, count as zero there. The other words of B are read,
    and have no effect.

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
            (Loop("step", Count(("ky", "kx", "kc")), "rows"), Loop("row", "rows", 1)),
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
    depthwise: int = bits(
        1, "channels by themselves, and rows that follow each other", requires=Feature.DEPTHWISE
    )

    @property
    def rows(self) -> int:
        """Rows of A in a tile."""
        return self.oy * self.ox


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
            _pixels("src"),
        ),
        Operand(
            "offset",
            Memory.DRAM,
            (Loop("row", "rows", "row_pitch"), Loop("pixel", "pixels", "pitch"), Loop("byte", "length", 1)),
            write=True,
            register="base",
        ),
    )

    base: int = register("base register")
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
