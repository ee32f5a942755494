"""Networks as a proof reads them: operators in order, as the front end gives them, in a file of their own.

All tensors are int8 in NHWC order. What operators compute is in `weft.extras.proof.programs.meaning`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from weft.hdl.errors import WeftError

FORMAT = "weft graph 1"


class Array(msgspec.Struct, frozen=True):
    """A tensor: type, shape, and elements in row-major order, little endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> Array:
        return cls(array.dtype.newbyteorder("<").str, array.shape, np.ascontiguousarray(array).tobytes())

    @property
    def numpy(self) -> np.ndarray:
        """Raises `ValueError` if there are not as many elements as the shape says."""
        if min(self.shape, default=0) < 0:  # of which numpy would make any number
            raise GraphError(f"an array has shape {self.shape}")
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class View(msgspec.Struct, frozen=True):
    """A box of a buffer: from an image, row, column and channel on; `step` is from row to row and column to column."""

    buffer: str
    shape: tuple[int, int, int, int]
    buffer_shape: tuple[int, int, int, int]
    start: tuple[int, int, int, int]
    step: tuple[int, int]


class Window(msgspec.Struct, frozen=True):
    """A sliding window: kernel, stride, dilation, and padding (top, left, bottom, right)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]


class Node(msgspec.Struct, frozen=True):
    """A number for each element of a row, or one for all of it.

    `kind` is what makes it of `operands`, places of nodes before it. "read" is a byte of tensor `value` & 3: & 4: of
    its second vector, & 8: unsigned; "shared" that of the row's first column, tensor `value` & 3, vector `value` >> 2;
    "number" the first column of tensor `value`; "accumulated" sum `value` of tensor 0; "index" the number of the
    element; "constant" `value`. "add", "subtract", "minimum", "maximum" and "less" are of two numbers. "multiply" is
    MUL of `weft.hdl.isa.MicroOp` with `value` places, whose second operand has an exponent if its kind is "reciprocal",
    "rsqrt" (RECIPROCAL and RSQRT there) or "factor". "shift" is to the left by `value`, "floor" to the right and down.
    "table" is the entry for a number, clamped to int8, of `table`, 256 bytes. "choose" is the second operand where the
    first one holds, else the third. "sum" and "largest" are over a row; "neighbour" exchanges elements 0 and 1, 2 and
    3 and so on; "low byte" is the number modulo 256, from -128. "known" and "factor" are their operand.
    """

    kind: str
    operands: tuple[int, ...] = ()
    value: int = 0
    table: bytes = b""


class Formula(msgspec.Struct, frozen=True):
    """Results of a row of so many `columns`: places of nodes, each saturated to int8. `varies` tells whether there is
    one for each element. Tensors are the operator's sources and, behind them, `vectors`: int16 (columns,), the same for
    all rows, of two bytes, the upper one first."""

    columns: int
    nodes: tuple[Node, ...]
    results: tuple[int, ...]
    varies: bool
    vectors: tuple[Array, ...] = ()


class Operator(msgspec.Struct, frozen=True):
    """An operator: its kind, operands, and what else is told of it, by name; and its formula, if it works on rows."""

    kind: str
    name: str
    sources: tuple[View, ...]
    dst: View
    numbers: dict[str, float]
    texts: dict[str, str]
    arrays: dict[str, Array]
    windows: dict[str, Window]
    formula: Formula | None = None


class Graph(msgspec.Struct, frozen=True):
    """The operators of one program, the buffers that hold something before it and those that are read behind it, with
    their sizes, and what those that are kept become: by their names the names of outputs."""

    format: str
    name: str
    operators: tuple[Operator, ...]
    inputs: dict[str, int]
    outputs: dict[str, int]
    states: dict[str, str]


class GraphError(WeftError, ValueError):
    """A file that holds no such network."""


def encode(graph: Graph) -> bytes:
    """The bytes of a network."""
    return msgspec.msgpack.encode(graph)


def decode(raw: bytes) -> Graph:
    """The network of some bytes. Raises `GraphError`."""
    try:
        graph = msgspec.msgpack.decode(raw, type=Graph)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GraphError(str(error)) from None
    if graph.format != FORMAT:
        raise GraphError(f"its format is {graph.format!r}, not {FORMAT!r}")
    return graph


def check_view(view: View) -> None:
    """Raises `GraphError` if a view is not inside its buffer."""
    n, h, w, c = view.shape
    image, y, x, channel = view.start
    ends = image + n, y + (h - 1) * view.step[0] + 1, x + (w - 1) * view.step[1] + 1, channel + c
    inside = all(end <= size for end, size in zip(ends, view.buffer_shape, strict=True))
    if min(view.shape) < 1 or min(*view.start, *view.step) < 0 or not inside:
        raise GraphError(
            f"a view of {view.shape} from {view.start} in steps of {view.step} is not inside {view.buffer!r} of "
            f"{view.buffer_shape}"
        )
