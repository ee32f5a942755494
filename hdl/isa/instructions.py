"""Instructions of the LOAD, MM and STORE queues, and END.

`wait` and `signal` are masks over `SEMAPHORES` counting semaphores. A unit starts an instruction when all semaphores
in `wait` are above zero, and takes one from each. When all effects of the instruction are visible to the other units,
it adds one to each semaphore in `signal`.

The addresses ``a``, ``b``, ``src``, ``dst`` and ``params`` count scratchpad vectors (N bytes), and ``c`` counts
accumulator rows (N x int32). A stride is added per iteration of the loop in its name, modulo 2**16. A count is the
number of iterations of a loop, at least 1.

Configurations with softmax (``probability_bits`` above 0) have three more memories: *row states* (a maximum ``m`` and
a sum ``l`` for each row of scores in progress, at address ``state``), *alignments* (a shift from -31 to 31 for each
vector of probabilities, at address ``alignment``), and the *table* of ``table_depth`` bytes. `lookup_tables` is the
number of *look-up tables* of 256 bytes.

Optional opcodes and fields exist only in some configurations; elsewhere the fields must be 0:

- SOFTMAX, NORMALISE, TABLE, and fields marked "softmax only": with softmax;
- LOOKUP, and fields marked "look-up tables only": with `lookup_tables`;
- fields marked "element-wise products only": with `multiply`;
- fields marked "depthwise path only": with `depthwise_taps`;
- fields marked "4-bit values only": with `int4`; fields marked "block factors only": if `int4` is 2;
- SET, LOOP, NEXT and READ: with `loops`.

Without `loops` there are the base registers 0 to 7, which the host sets. With `loops` there are 16 registers: 0 to 7
start with the host's values, 8 to 15 with 0, and the program may change all of them. An instruction gets the values of
its registers when it passes fetch, which is in program order, and not when its unit starts it.

``rsh(x, s)`` is the arithmetic shift with rounding ``(x + 2**(s-1)) >> s``, or ``x`` if ``s = 0``.
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
from weft.hdl.isa.operands import LANES, Bound, Count, Loop, Memory, Operand, loops_over

FILL_MAX = 1 << 17
"""Maximum fill bytes after the DRAM bytes of a `Load` row. While LOAD generates them, no counter shows progress."""
COORDINATE_MAX = (1 << 15) - 1
"""Largest row or column of an operand with bounds: coordinates are 16-bit two's complement."""
PAGE_ENTRY = 4
"""Bytes of an entry in a page table."""
INT4_RUN_MAX = 1 << 23
"""Maximum `run` of a `Load` with `int4`: its counters hold twice as many values."""


def _pixels(name: str) -> tuple[Loop, ...]:
    # Loops over the scratchpad vectors of the pixels of rows; the strides are the fields `{name}_row` and so on.
    vectors = Count(("length",), per="n")
    counts = (("row", "rows"), ("pixel", "pixels"), ("vector", vectors))
    return tuple(Loop(loop, count, f"{name}_{loop}") for loop, count in counts)


@dataclass(frozen=True)
class End(Instruction):
    """Stop fetching. The program is done when all queues are empty and all units idle."""

    OPCODE = Opcode.END


@dataclass(frozen=True)
class Load(Instruction):
    """Load from DRAM to scratchpad.

    A row is a sequence of bytes: ``before`` fill bytes, then ``run`` bytes from DRAM at ``base[base] + offset +
    row * row_pitch + row // line * skip``, then fill bytes, at most `FILL_MAX`, up to the end of its last pixel.
    ``rows`` is a multiple of ``line``. Pixel ``p`` of a row is its bytes ``p*pitch .. p*pitch + length - 1``, unpacked
    into ``ceil(length / N)`` vectors; bytes past ``length`` are fill bytes. Vector ``v`` is written to
    ``dst + row*dst_row + p*dst_pixel + v*dst_vector``; no vector may be written twice. With ``pitch < length`` pixels
    overlap: so the windows of a convolution with few channels fill the contraction. To load some of the channels of a
    box of pixels, each pixel is a row and each row of the box is a line.

    With ``transpose``, a pixel has at most `weft.hdl.isa.config.Config.transposed_vectors` vectors, and pixels of more
    than one vector do not overlap. The pixels, row after row, form groups of N; the last group is padded with pixels of
    fill bytes. The bytes i of the vectors v of the N pixels in group g form a vector, which is written to ``dst +
    g*dst_row + v*dst_pixel + i*dst_vector``, for i from 0 to N - 1.

    With ``paged``, the page table entry, a little-endian 32-bit word at ``base[table] + 4 * page``, is added to the
    addresses of all rows. It is read when the instruction starts. ``base[table]`` is a multiple of 4.

    With ``int4``, a byte in DRAM is two signed 4-bit values, the low nibble first, and each value becomes a byte of the
    row: ``run`` bytes from DRAM are ``2 * run`` bytes of the row. The other fields count bytes of the row. ``run`` is
    at most `INT4_RUN_MAX`, every row starts in DRAM at a multiple of the bus width, and ``paged`` is 0.

    With ``int4`` and ``blocks``, values come in groups of `weft.hdl.isa.encoding.GROUP_WORDS` words of N values. In
    DRAM a group starts with N factors, signed bytes. Value v of word w of a group becomes
    ``min(max(rsh(v * factor[w mod N], 3), -128), 127)``. ``run`` is a multiple of the bytes of a group's values and
    does not count the factors, which take a sixteenth of ``run`` in addition.
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
                Loop("byte", "row_bytes", 1),
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
    line: int = count("rows in a line")
    skip: int = stride("additional DRAM bytes from the last row of a line to the next line", 32)
    pixels: int = count("pixels in a row", 16)
    pitch: int = bits(16, "bytes from one pixel to the next", least=1, default=1)
    length: int = bits(16, "bytes of a pixel", least=1, default=1)
    before: int = bits(16, "fill bytes before the row's bytes from DRAM")
    run: int = bits(24, "bytes of a row from DRAM", least=1, default=1)
    fill: int = bits(8, "value of fill bytes", signed=True)
    dst: int = bits(16, "first scratchpad vector")
    dst_vector: int = stride("vectors of one pixel, or their bytes under `transpose`")
    dst_pixel: int = stride("pixels, or their vectors under `transpose`")
    dst_row: int = stride("rows, or groups under `transpose`")
    transpose: int = bits(1, "transpose groups of N pixels", requires=Feature.SOFTMAX)
    paged: int = bits(1, "add a page table's entry to the address", requires=Feature.SOFTMAX)
    table: int = register("base register of the page table", requires=Feature.SOFTMAX)
    page: int = bits(16, "index of the page table's entry", requires=Feature.SOFTMAX)
    int4: int = bits(1, "bytes in DRAM are two 4-bit values", requires=Feature.INT4)
    blocks: int = bits(1, "groups of values have factors", requires=Feature.BLOCKS)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in DRAM, factors included."""
        return self.run + (self.run >> FACTORS_SHIFT if self.blocks else 0)

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.rows // self.line

    @property
    def line_pitch(self) -> int:
        """DRAM bytes from the first row of a line to the first row of the next line."""
        return self.line * self.row_pitch + self.skip

    @property
    def entry(self) -> int:
        """Offset in bytes of the page table's entry."""
        return PAGE_ENTRY * self.page


@dataclass(frozen=True)
class Mm(Instruction):
    """Multiply matrices, or convolve as implicit GEMM, from scratchpad into the accumulator.

    Loops, outermost first: ``nt`` (output tiles), ``ky``, ``kx``, ``kc`` (contraction), and inside a tile ``oy``,
    ``ox`` (rows of A). The weights of a tile are the N words of B at ``b + nt*b_nt + ky*b_ky + kx*b_kx + kc*b_kc +
    j*b_row`` (j = 0..N-1): ``C[i, j] += sum_k (A[i, k] - zero) * B[j, k]``, all int8, exact. A row of A is the vector
    at ``a`` plus its strides if ``0 <= y < h`` and ``0 <= x < w`` for its coordinates (16-bit, wrapping), else N times
    ``pad``. Row (nt, oy, ox) of C is ``c + nt*c_nt + oy*c_oy + ox*c_ox``. The first contraction step (ky = kx = kc = 0)
    overwrites it unless ``accumulate`` is set; the other steps add to it modulo 2**32.

    With ``align``, each row has an alignment, identical for all nt: the entries from ``alignment`` on, in order of
    (ky, kx, kc, oy, ox). For an alignment s >= 0, a row of products p is added as ``rsh(C, s) + p``, else as
    ``C + rsh(p, -s)``. When C is overwritten, its old value counts as 0.

    With ``depthwise``, channels do not mix, and T = `depthwise_taps` successive rows of A along ``ox`` are summed:
    ``C[i, k] += sum_t (A[i - T + 1 + t, k] - zero) * B[N - 2*T + 2*t, k]``, t = 0..T-1. Rows of A before the row with
    ``ox = 0`` count as zero. The other words of B are read without effect.

    Within a tile all C rows must differ.
    """

    OPCODE = Opcode.MM
    QUEUE = Queue.MM
    OPERANDS = (
        Operand(
            "a",
            Memory.SCRATCHPAD,
            loops_over("a", "nt", "ky", "kx", "kc", "oy", "ox"),
            bounds=(Bound("y", "h", ("ky", "oy")), Bound("x", "w", ("kx", "ox"))),
        ),
        Operand(
            "b", Memory.SCRATCHPAD, (*loops_over("b", "nt", "ky", "kx", "kc"), Loop("row", LANES, "b_row"))
        ),
        Operand(
            "alignment",
            Memory.ALIGNMENTS,
            (Loop("step", Count(("ky", "kx", "kc")), "rows"), Loop("row", "rows", 1)),
            when={"align": 1},
        ),
        Operand(
            "c",
            Memory.ACCUMULATOR,
            loops_over("c", "nt", "oy", "ox"),
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
    depthwise: int = bits(1, "sum successive rows within each channel", requires=Feature.DEPTHWISE)

    @property
    def rows(self) -> int:
        """Rows of A in a tile."""
        return self.oy * self.ox


@dataclass(frozen=True)
class Store(Instruction):
    """Store from scratchpad to DRAM, the inverse of `Load` without fill bytes.

    Byte ``i`` of pixel ``p`` of a row is written to ``base[base] + offset + row*row_pitch + p*pitch + i`` for
    ``i < length``, and no other byte is written. With ``pitch == length`` a row is one run of bytes; otherwise every
    pixel is a burst of its own. ``pitch`` must not be less than ``length`` if ``pixels > 1``.
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
