"""The compiler's representation below ONNX: plain frozen dataclasses, and a verifier that runs after every pass.

Tensors on the device are int8 in NHWC order, packed, one byte an element. A tensor of rank 2 [rows, features] is
(1, 1, rows, features). uint8 tensors of the model are stored as value - 128 with zero point - 128, so everything on
the device is int8.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from weft.compiler.ir.layout import Rows
from weft.hdl.errors import WeftError


class IrError(AssertionError):
    """A graph that breaks the rules of this module: a bug in a pass, never the user's mistake."""


class CompileError(WeftError, ValueError):
    """A model or configuration that cannot be compiled; one sentence with node or field, value and remedy."""


@dataclass(frozen=True)
class Buffer:
    """A packed NHWC int8 array in DRAM.

    `kind` is "input" and "output" for what the host writes before and reads after a device segment, "state" for what
    keeps its contents from run to run, "temp" otherwise.

    Buffers of one name are one piece of memory: an operator may see it in another shape of the same size (a matrix of
    B rows as (B, 1, 1, F) or (1, 1, B, F), an image as one long pixel). They must agree in size and kind.
    """

    name: str
    shape: tuple[int, int, int, int]
    kind: str = "temp"

    @cached_property
    def size(self) -> int:
        n, h, w, c = self.shape
        return n * h * w * c


@dataclass(frozen=True)
class View:
    """A box of a buffer: all images, rows from `y`, columns from `x`, channels from `c` on; shape (n, h, w, c).

    Of a buffer whose elements have 16 bits it is one plane, half of the images, from `image` on; see `planes`.
    `step` says how many rows and columns of the buffer it is from one row and column of the view to the next; 0, where
    it is read only, repeats one row or column. Concatenation is several operators writing views of one buffer.
    """

    buffer: Buffer
    shape: tuple[int, int, int, int]
    y: int = 0
    x: int = 0
    c: int = 0
    step: tuple[int, int] = (1, 1)
    image: int = 0

    @property
    def pixel_pitch(self) -> int:
        """Bytes from one pixel to the next in a row."""
        return self.step[1] * self.buffer.shape[3]

    @property
    def row_pitch(self) -> int:
        return self.step[0] * self.buffer.shape[2] * self.buffer.shape[3]

    @property
    def image_pitch(self) -> int:
        return math.prod(self.buffer.shape[1:])

    @property
    def offset(self) -> int:
        """Byte offset of the first element of the first image in the buffer."""
        pixel = (self.image * self.buffer.shape[1] + self.y) * self.buffer.shape[2] + self.x
        return pixel * self.buffer.shape[3] + self.c

    @property
    def ends(self) -> tuple[int, int, int, int]:
        """Images, rows, columns and channels that the buffer must have."""
        n, h, w, c = self.shape
        y, x = (first + (count - 1) * step + 1 for first, count, step in
                ((self.y, h, self.step[0]), (self.x, w, self.step[1])))  # fmt: skip
        return self.image + n, y, x, self.c + c

    @property
    def plane_pitch(self) -> int:
        """Bytes from the plane of upper bytes to that of lower ones."""
        return self.shape[0] * self.image_pitch

    @cached_property
    def planes(self) -> tuple[View, View]:
        """Upper and lower bytes of elements of 16 bits, of which this view is the upper ones.

        Elements of 16 bits are two planes, one behind the other: all upper bytes, signed, then all lower bytes less
        128. So planes are the first and the second half of the images of a buffer, in whatever shape it is seen.
        """
        return self, dataclasses.replace(self, image=self.shape[0])

    @property
    def contiguous(self) -> bool:
        """Whether the view is its whole buffer."""
        return self.shape == self.buffer.shape and self.step == (1, 1)


@dataclass(frozen=True)
class Window:
    """A sliding window: kernel (h, w), strides, dilations, and padding (top, left, bottom, right)."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)

    def reach(self, axis: int, first: int, count: int, size: int) -> tuple[int, int]:
        """First element and number of elements, of `size`, that outputs ``[first, first + count)`` read along an axis.

        Where all of them lie in the padding it is one element, which no coordinate selects.
        """
        start = first * self.stride[axis] - self.pad[axis]
        stop = start + (count - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
        start = min(max(start, 0), size - 1)
        return start, max(min(stop, size) - start, 1)

    def output(self, h: int, w: int) -> tuple[int, int]:
        """Output height and width for an input of h x w (padding counts as given; round down)."""
        sizes = []
        for axis, size in enumerate((h, w)):
            span = (self.kernel[axis] - 1) * self.dilation[axis] + 1
            sizes.append((size + self.pad[axis] + self.pad[axis + 2] - span) // self.stride[axis] + 1)
        return sizes[0], sizes[1]


ONE = Window()
"""Windows of one element: outputs are elements of the input, one by one."""


class _Operator:
    """What all operators have: the output, its zero point, and the range that it is clamped to."""

    name: str
    dst: View
    y_zero: int
    low: int
    high: int

    @property
    def sources(self) -> tuple[View, ...]:
        """The views that it reads."""
        return (self.src,)  # type: ignore[attr-defined]  # all but a few have one operand of this name

    @property
    def macs(self) -> int:
        """Useful multiplications."""
        return 0


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(kind))


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceOp(_Operator):
    """An operator of the device. Each kind is described by a record in `weft.compiler.operators`.

    `lookup` is what becomes of each result q, int8 (256,): ``lookup[q + 128]``; None for q itself. It comes behind the
    clamp, and behind the pool of a convolution, but ahead of its epilogue. Attention and Softmax have none.
    `plan` says how it is cut into instructions, as the kind's planner made it; None until it is planned.
    """

    lookup: np.ndarray | None = None
    plan: Any = None

    def replace(self, **changes: Any) -> Self:
        """The same with other values of some fields."""
        # As dataclasses.replace, which takes most of the time of passes over networks of many steps.
        kind: Any = type(self)
        made, names = object.__new__(kind), _fields(kind)
        values = {name: getattr(self, name) for name in names} | changes
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} has no fields {', '.join(changes.keys() - set(names))}")
        made.__dict__.update(values)
        return made

    @cached_property
    def signature(self) -> Hashable:
        """Equal for operators that differ in nothing but names, and in where their views are in buffers."""
        return _signature(self, {})

    def on(self, view: Callable[[View], View]) -> Self:
        """The same with all operands and the output changed by `view`."""
        views = {name: value for name, value in vars(self).items() if isinstance(value, View)}
        return self.replace(**{name: view(value) for name, value in views.items()})


def _signature(op: DeviceOp, numbers: dict[str, int]) -> Hashable:
    kind: Any = type(op)
    values = vars(op)
    return kind, *[_plain(values[name], numbers) for name in _fields(kind) if name != "name"]


def _plain(value: Any, numbers: dict[str, int]) -> Hashable:
    """A field of an operator as what can be hashed; `numbers` stand for the names of buffers."""
    if isinstance(value, int | float | str | None):
        return value
    if isinstance(value, View):
        buffer = value.buffer
        number = numbers.setdefault(buffer.name, len(numbers))
        return number, buffer.shape, buffer.kind, value.shape, value.step
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, _digest(value)
    if isinstance(value, tuple):
        return tuple(_plain(item, numbers) for item in value)
    return _signature(value, numbers) if isinstance(value, DeviceOp) else value


_digests: dict[int, tuple[weakref.ref[np.ndarray], bytes]] = {}
"""By the identity of each array that is still there."""


def _digest(array: np.ndarray) -> bytes:
    """A hash of the contents of an array, which nothing changes; computed once."""
    key = id(array)
    if key not in _digests:
        content = hashlib.blake2b(array.tobytes(), digest_size=16).digest()
        _digests[key] = weakref.ref(array, lambda _: _digests.pop(key, None)), content
    return _digests[key][1]


class Weighted(DeviceOp):
    """A convolution over the windows of `src`, with weights (out, kh, kw, in / groups)."""

    src: View
    weight: np.ndarray
    window: Window

    @property
    def macs(self) -> int:
        """Elements of the convolution's output times the contraction length."""
        n, h, w, _ = self.src.shape
        oh, ow = self.window.output(h, w)
        return n * oh * ow * int(self.weight.size)

    @cached_property
    def weight_range(self) -> tuple[int, int]:
        """The least and the greatest weight."""
        return int(self.weight.min()), int(self.weight.max())


@dataclass(frozen=True, eq=False)
class Conv(Weighted):
    """Convolution, or matrix product as 1x1 convolution, and requantisation; optionally max pooling of the result, and
    then an epilogue: an addition to it or another requantisation.

    q = sat(round_half_even((sum (x - x_zero) * weight + bias) * scale) + y_zero), then clamped to [low, high]; padding
    reads x_zero. `weight` is int16 of shape (out, kh, kw, in / groups), zero point already subtracted, |weight| <= 255;
    `bias` int32 (out,); `scale` float64 (out,), the exact quotient of the model's float32 scales.
    If `pool` is set, the maximum over its windows of q is the output (out-of-range elements are left out).
    If `epilogue` is set, its first operand stands for that output, whose buffer does not exist, and its `dst` is `dst`.
    """

    name: str
    src: View
    dst: View
    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray
    window: Window = Window()
    groups: int = 1
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    pool: Window | None = None
    epilogue: Add | Multiply | Rescale | None = None

    @property
    def sources(self) -> tuple[View, ...]:
        return (self.src,) if self.epilogue is None else (self.src, *self.epilogue.sources[1:])


@dataclass(frozen=True, eq=False)
class Pool(DeviceOp):
    """Max or average pooling with requantisation.

    "max": q = the maximum of x over in-range elements. "average": the sum of (x - x_zero) over in-range elements
    divided by their number (by the full kernel if `include_pad`; then padding counts x_zero and the divisor counts only
    the padded extent). Output: sat(round_half_even((q - x_zero) * scale) + y_zero), clamped to [low, high].
    """

    name: str
    src: View
    dst: View
    kind: str
    window: Window
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    include_pad: bool = False


class _Pairwise(DeviceOp):
    """An operator of two operands, element by element. `b` may have one image, one row or one column for all of `a`,
    whose shape is that of `dst`.
    """

    a: View
    b: View

    @property
    def sources(self) -> tuple[View, ...]:
        return self.a, self.b


@dataclass(frozen=True, eq=False)
class Add(_Pairwise):
    """q = sat(round_half_even((a - a_zero) * a_scale + (b - b_zero) * b_scale) + y_zero), clamped to [low, high].

    Scales are already divided by the output's. `b_scale` may be negative.
    """

    name: str
    a: View
    b: View
    dst: View
    a_scale: float
    b_scale: float
    a_zero: int = 0
    b_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127


@dataclass(frozen=True, eq=False)
class Multiply(_Pairwise):
    """q = sat(round_half_even((a - a_zero) * (b - b_zero) * scale) + y_zero), clamped to [low, high]."""

    name: str
    a: View
    b: View
    dst: View
    scale: float
    a_zero: int = 0
    b_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127


class _Requantising(DeviceOp):
    """An operator that makes each result of one element, by requantisation."""

    scale: float
    x_zero: int

    @property
    def keeps(self) -> bool:
        """Whether it leaves what is in its range as it is, but for a look-up table."""
        return self.scale == 1.0 and self.x_zero == self.y_zero

    @property
    def unchanged(self) -> bool:
        """Whether every byte stays as it is."""
        return self.keeps and (self.low, self.high) == (-128, 127) and self.lookup is None


@dataclass(frozen=True, eq=False)
class Rescale(_Requantising):
    """q = sat(round_half_even((x - x_zero) * scale) + y_zero), clamped to [low, high]: requantisation, or a copy."""

    name: str
    src: View
    dst: View
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127


@dataclass(frozen=True, eq=False)
class Pad(_Requantising):
    """Rows and columns around an image, and requantisation: as `Rescale`, of x with bytes `fill` around it.

    `window` has one element, and the padding: (top, left, bottom, right).
    """

    name: str
    src: View
    dst: View
    window: Window
    fill: int
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127


@dataclass(frozen=True)
class Rounding:
    """Scores of attention as 8 bits: r = round_half_even(product * scale) + zero, clamped to [low, high]."""

    scale: float
    zero: int = 0
    low: int = -128
    high: int = 127


@dataclass(frozen=True, eq=False)
class Attention(DeviceOp):
    """Scaled dot product attention of whole heads, fused: softmax(Q K^T) V without the matrix between.

    For every image, query head h (reading key and value head ``h // (heads // kv_heads)``) and query row i::

        z[j] = (q[i] - q_zero) . (k[j] - k_zero) * score_scale
        out  = sum_j softmax(z)[j] * (v[j] - v_zero)
        q    = sat(round(out * scale) + y_zero), clamped to [low, high]

    over the keys j below ``lengths[image]`` and, if `causal`, with ``j <= i + offset``; rows without any are `y_zero`.
    Numbers in between are those of the device's softmax unit (`weft.hdl.isa.Softmax`, `Normalise`): they depend on N.
    With `rounding` the product is requantised first, and ``z[j] = (r[j] - rounding.zero) * score_scale``.

    Heads lie beside each other in the channels, shape (images, 1, rows, heads * size), or one after the other as
    images, shape (images * heads, 1, rows, size); each operand as it likes.

    With `page` above 0 keys and values are pages of so many rows, shape (pages, 1, page, kv_heads * size), in buffers
    of kind "pages", in the order that `table` names: a buffer of kind "table" with a 32-bit byte offset a page. There
    is one image, its number of keys is in a base register, at most ``lengths[0]``, and `offset` is relative to it:
    query i sees the keys up to ``i + offset + keys``.
    """

    name: str
    q: View
    k: View
    v: View
    dst: View
    images: int
    heads: int
    kv_heads: int
    score_scale: float
    lengths: tuple[int, ...]
    scale: float = 1.0
    causal: bool = False
    offset: int = 0
    q_zero: int = 0
    k_zero: int = 0
    v_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    page: int = 0
    table: View | None = None
    rounding: Rounding | None = None

    @property
    def sources(self) -> tuple[View, ...]:
        return (self.q, self.k, self.v) if self.table is None else (self.q, self.k, self.v, self.table)

    @property
    def head_size(self) -> int:
        """Elements of a query and of a key."""
        return int(np.prod(self.q.shape)) // (self.images * self.heads * self.q.shape[2])

    @property
    def keys(self) -> int:
        """Keys that there is room for."""
        return self.lengths[0] if self.page else self.k.shape[2]

    @property
    def v_size(self) -> int:
        """Elements of a value."""
        if self.page:
            return self.v.shape[3] // self.kv_heads
        return int(np.prod(self.v.shape)) // (self.images * self.kv_heads * self.v.shape[2])

    @property
    def macs(self) -> int:
        """Multiplications for the scores and for the values that the mask leaves."""
        rows = np.arange(self.q.shape[2])
        pairs = 0
        for length in self.lengths:
            last = np.minimum(rows + self.offset + 1, length) if self.causal else np.full(rows.size, length)
            pairs += int(np.maximum(last, 0).sum())
        return self.heads * pairs * (self.head_size + self.v_size)


@dataclass(frozen=True, eq=False)
class Softmax(DeviceOp):
    """q = sat(round(softmax((x - x_zero) * score_scale) * scale) + y_zero), clamped, over the channels of pixels."""

    name: str
    src: View
    dst: View
    score_scale: float
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127


class Ops(tuple[DeviceOp, ...]):
    """Operators in order, with an index of what reads and writes each buffer, by its name."""

    @cached_property
    def reads(self) -> dict[str, list[tuple[int, View]]]:
        """The places of the operators that read a buffer, in order, each with the view that it reads."""
        found: dict[str, list[tuple[int, View]]] = {}
        for at, op in enumerate(self):
            for view in op.sources:
                found.setdefault(view.buffer.name, []).append((at, view))
        return found

    @cached_property
    def writers(self) -> dict[str, list[int]]:
        """The places of the operators that write a buffer, in order."""
        found: dict[str, list[int]] = {}
        for at, op in enumerate(self):
            found.setdefault(op.dst.buffer.name, []).append(at)
        return found

    def __reduce__(self) -> tuple[type[Ops], tuple[tuple[DeviceOp, ...]]]:
        return Ops, (tuple(self),)


Region = tuple[int, int]
"""A part of the scratchpad, from address to address."""


class Strips(NamedTuple):
    """A chain of operators strip by strip: indices of the first operator of the first strip and behind the last one of
    the last, and the useful multiplications of the chain; what strips compute twice does not count.
    """

    first: int
    stop: int
    macs: int


@dataclass(frozen=True, eq=False)
class DeviceSegment:
    """Operators that run on the device in one program, in a valid order. The host writes every "input" buffer before
    and reads every "output" buffer after it.

    What passes find out about buffers is kept here: `rows` has the inputs whose rows the host lays side by side,
    `resident` the scratchpad address of each buffer that stays on chip and is never in DRAM, and `regions` what that
    leaves of the scratchpad for each operator (all of it where there are none). Each operator whose index is in
    `overlapped` runs at the same time as the one behind it. `strips` says which operators are a chain strip by strip.

    `states` has, by the name of each "state" buffer, the "output" buffer that it becomes at the end of a run, of the
    same size; the pass `store_states` makes operators of that.
    """

    name: str
    ops: tuple[DeviceOp, ...]
    rows: Mapping[str, Rows] = field(default_factory=dict)
    resident: Mapping[str, int] = field(default_factory=dict)
    regions: tuple[Region, ...] = ()
    overlapped: tuple[int, ...] = ()
    strips: tuple[Strips, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.ops, Ops):
            object.__setattr__(self, "ops", Ops(self.ops))

    @property
    def index(self) -> Ops:
        """The operators, with what reads and writes each buffer."""
        assert isinstance(self.ops, Ops)
        return self.ops


def readers(ops: Iterable[DeviceOp]) -> Counter[str]:
    """How often each buffer is read, by name."""
    return Counter(view.buffer.name for op in ops for view in op.sources)
