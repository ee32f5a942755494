"""File format of networks for proofs: operators in order, as the front end makes them.

All tensors are int8 in NHWC order. `weft.extras.proof.programs.network` defines the operators.
"""

from __future__ import annotations

import msgspec
import numpy as np

from weft.hdl.errors import WeftError

FORMAT = "weft graph 1"


class Array(msgspec.Struct, frozen=True):
    """Constant tensor: type, shape, and elements in row-major order, little endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> Array:
        return cls(array.dtype.newbyteorder("<").str, array.shape, np.ascontiguousarray(array).tobytes())

    @property
    def numpy(self) -> np.ndarray:
        """The tensor. Raises `ValueError` if the number of elements does not match the shape."""
        if min(self.shape, default=0) < 0:  # numpy would infer a negative size
            raise GraphError(f"an array has shape {self.shape}")
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class View(msgspec.Struct, frozen=True):
    """Box of a buffer, from an image, row, column and channel on; `step` is the distance of rows and of columns."""

    buffer: str
    shape: tuple[int, int, int, int]
    buffer_shape: tuple[int, int, int, int]
    start: tuple[int, int, int, int]
    step: tuple[int, int]


class Window(msgspec.Struct, frozen=True):
    """Sliding window: kernel, stride, dilation, and padding (top, left, bottom, right)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]


class Node(msgspec.Struct, frozen=True):
    """Node of a formula: a number for each element of a row, or one number for the row.

    `operands` are indices of earlier nodes. `kind` is one of:

    - "read": a byte of tensor ``value & 3``, of its second vector with ``value & 4``, unsigned with ``value & 8``.
    - "shared": a byte of the row's first column, of tensor ``value & 3``, vector ``value >> 2``.
    - "number": the first column of tensor `value`.
    - "accumulated": sum `value` of tensor 0.
    - "index": the index of the element.
    - "constant": `value`.
    - "add", "subtract", "minimum", "maximum", "less": an operation of two operands.
    - "multiply": MUL of `weft.hdl.isa.MicroOp` with `value` places. The second operand has an exponent if its kind is
      "reciprocal", "rsqrt" or "factor".
    - "reciprocal", "rsqrt": RECIPROCAL and RSQRT of `weft.hdl.isa.MicroOp`.
    - "shift": a left shift by `value`; "floor": a right shift, rounded down.
    - "table": the entry of `table`, 256 bytes, for the operand clamped to int8.
    - "choose": the second operand where the first is 1, else the third.
    - "sum", "largest": a reduction of the row.
    - "neighbour": elements 0 and 1, 2 and 3, and so on, exchanged.
    - "low byte": the lower byte as int8.
    - "known", "factor": the operand itself.
    """

    kind: str
    operands: tuple[int, ...] = ()
    value: int = 0
    table: bytes = b""


class Formula(msgspec.Struct, frozen=True):
    """Formula of a row of `columns` elements.

    `results` are indices of nodes, whose numbers are saturated to int8. `varies` is True if there is a result for each
    element. Tensors are the operator's sources, followed by `vectors`: int16 (columns,) constants for all rows, read as
    two bytes, the upper byte first.
    """

    columns: int
    nodes: tuple[Node, ...]
    results: tuple[int, ...]
    varies: bool
    vectors: tuple[Array, ...] = ()


class Operator(msgspec.Struct, frozen=True):
    """Operator: kind, operands, attributes by type and name, and a formula if it works on rows."""

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
    """Network of one program.

    `inputs` and `outputs` are the sizes of buffers that the host writes before the program and reads after it. `states`
    maps a buffer that the program keeps for its next run to the output with its new contents.
    """

    format: str
    name: str
    operators: tuple[Operator, ...]
    inputs: dict[str, int]
    outputs: dict[str, int]
    states: dict[str, str]


class GraphError(WeftError, ValueError):
    """An invalid network."""


def encode(graph: Graph) -> bytes:
    """Return the contents of a network's file."""
    return msgspec.msgpack.encode(graph)


def decode(raw: bytes) -> Graph:
    """Read a network from its file's contents. Raises `GraphError`."""
    try:
        graph = msgspec.msgpack.decode(raw, type=Graph)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GraphError(str(error)) from None
    if graph.format != FORMAT:
        raise GraphError(f"its format is {graph.format!r}, not {FORMAT!r}")
    return graph


def check_view(view: View) -> None:
    """Raise `GraphError` if a view is not inside its buffer."""
    n, h, w, c = view.shape
    image, y, x, channel = view.start
    ends = image + n, y + (h - 1) * view.step[0] + 1, x + (w - 1) * view.step[1] + 1, channel + c
    inside = all(end <= size for end, size in zip(ends, view.buffer_shape, strict=True))
    if min(view.shape) < 1 or min(*view.start, *view.step) < 0 or not inside:
        raise GraphError(
            f"a view of {view.shape} from {view.start} in steps of {view.step} is not inside {view.buffer!r} of "
            f"{view.buffer_shape}"
        )
