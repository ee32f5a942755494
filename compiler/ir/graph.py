"""Graph of device operators: the compiler's representation below ONNX, as frozen dataclasses.

Device tensors are packed int8 in NHWC order, one byte per element. A tensor of rank 2 [rows, features] is (1, 1,
rows, features). The model's uint8 tensors are stored as value - 128 with zero point - 128, so that all device tensors
are int8.
"""

from __future__ import annotations

import dataclasses
import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from weft.compiler.ir.layout import Rows
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import ONE, Window


class _Operator:
    """Interface of all operators: output view, its zero point, and its clamp range."""

    name: str
    dst: View
    y_zero: int
    low: int
    high: int

    @property
    def sources(self) -> tuple[View, ...]:
        """Views that it reads."""
        return (self.src,)  # type: ignore[attr-defined]  # most kinds have one operand of this name

    @property
    def macs(self) -> int:
        """Useful multiply-accumulates."""
        return 0


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(kind))


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceOp(_Operator):
    """Operator of the device. `weft.compiler.operators` has a record for each kind.

    Attributes
    ----------
    lookup : ndarray or None
        Table int8 (256,) that maps each result q to ``lookup[q + 128]``. It applies after the clamp, and after a
        convolution's pool, but before its epilogue. Attention and Softmax have none.
    plan : object
        Tiling into instructions, from the kind's planner; None until planned.
    """

    lookup: np.ndarray | None = None
    plan: Any = None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        # `dataclasses.replace` is so slow that it dominates passes over networks of many steps.
        kind: Any = type(self)
        copy, names = object.__new__(kind), _fields(kind)
        # A cached property (`signature`, `kernel`) must not survive, so copy the fields only.
        values = {name: getattr(self, name) for name in names} | changes
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} has no fields {', '.join(changes.keys() - set(names))}")
        copy.__dict__.update(values)
        return copy

    @cached_property
    def signature(self) -> Hashable:
        """Key that is equal for operators that differ only in names and in the positions of their views."""
        return _signature(self, {})

    def map_views(self, view: Callable[[View], View]) -> Self:
        """Return a copy with `view` applied to all operands and the output."""
        views = {name: value for name, value in vars(self).items() if isinstance(value, View)}
        return self.replace(**{name: view(value) for name, value in views.items()})


def _signature(op: DeviceOp, numbers: dict[str, int]) -> Hashable:
    kind: Any = type(op)
    values = vars(op)
    return kind, *[_plain(values[name], numbers) for name in _fields(kind) if name != "name"]


def _plain(value: Any, numbers: dict[str, int]) -> Hashable:
    """Return a field's value in hashable form; `numbers` replace the names of buffers."""
    # Positions of views do not count, only shapes and steps: equal operators may share tasks.
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
"""Hash of each array, by identity. Entries of deleted arrays stay until another array has their identity."""


def _digest(array: np.ndarray) -> bytes:
    """Return a hash of an immutable array's contents, computed once."""
    # No callback removes entries of deleted arrays: an interrupt within a callback would be lost.
    reference, content = _digests.get(id(array), (None, b""))
    if reference is None or reference() is not array:
        content = hashlib.blake2b(array.tobytes(), digest_size=16).digest()
        _digests[id(array)] = weakref.ref(array), content
    return content


class Weighted(DeviceOp):
    """Base of convolutions over the windows of `src`, with weights (out, kh, kw, in / groups)."""

    src: View
    weight: np.ndarray
    window: Window

    @property
    def macs(self) -> int:
        """Output elements times contraction length."""
        n, h, w, _ = self.src.shape
        oh, ow = self.window.output(h, w)
        return n * oh * ow * int(self.weight.size)

    @cached_property
    def weight_range(self) -> tuple[int, int]:
        """Least and greatest weight."""
        return int(self.weight.min()), int(self.weight.max())


@dataclass(frozen=True, eq=False)
class Conv(Weighted):
    """Convolution, or matrix product as 1x1 convolution, with requantisation, optional pooling and epilogue.

    q = sat(round_half_even((sum (x - x_zero) * weight + bias) * scale) + y_zero), then clamped to [low, high];
    padding reads x_zero.

    Attributes
    ----------
    weight : ndarray
        int16 (out, kh, kw, in / groups), zero point already subtracted, |weight| <= 255.
    bias : ndarray
        int32 (out,).
    scale : ndarray
        float64 (out,), the exact quotient of the model's float32 scales.
    pool : Window or None
        Windows whose maximum of q is the output; out-of-range elements are ignored.
    epilogue : Add, Multiply, Rescale or None
        Operator on that output, which is its first operand and has no buffer. Its `dst` is `dst`.
    """

    name: str
    src: View
    dst: View
    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray
    window: Window = ONE
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

    "max": q is the maximum of x over in-range elements. "average": q is the sum of (x - x_zero) over in-range
    elements divided by their number. With `include_pad` padding counts as x_zero, and the divisor is the number of
    elements in the padded input. Output: sat(round_half_even((q - x_zero) * scale) + y_zero), clamped to [low, high].
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
    """Elementwise operator of two operands. `a` has the shape of `dst`; `b` may broadcast one image, row or column."""

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
    """Base of operators that requantise single elements."""

    scale: float
    x_zero: int

    @property
    def keeps_values(self) -> bool:
        """True if it leaves values within its range unchanged, look-up table aside."""
        return self.scale == 1.0 and self.x_zero == self.y_zero

    @property
    def is_identity(self) -> bool:
        """True if every byte stays as it is."""
        return self.keeps_values and (self.low, self.high) == (-128, 127) and self.lookup is None


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
    """Padding of an image with bytes `fill`, then requantisation as in `Rescale`.

    `window` has a 1x1 kernel, and the padding (top, left, bottom, right).
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
    """Requantisation of scores to 8 bits: r = round_half_even(product * scale) + zero, clamped to [low, high]."""

    scale: float
    zero: int = 0
    low: int = -128
    high: int = 127


@dataclass(frozen=True, eq=False)
class Attention(DeviceOp):
    """Fused scaled dot product attention of whole heads: softmax(Q K^T) V, without the matrix of scores in memory.

    For every image, query head h (reading key and value head ``h // (heads // kv_heads)``) and query row i::

        z[j] = (q[i] - q_zero) . (k[j] - k_zero) * score_scale
        out  = sum_j softmax(z)[j] * (v[j] - v_zero)
        q    = sat(round(out * scale) + y_zero), clamped to [low, high]

    over the keys j below ``lengths[image]`` and, if `causal`, with ``j <= i + offset``; rows without keys are
    `y_zero`. Intermediate values are those of the device's softmax unit (`weft.hdl.isa.Softmax`, `Normalise`) and
    depend on N. With `rounding` the product is requantised first, and ``z[j] = (r[j] - rounding.zero) *
    score_scale``.

    Heads lie side by side in the channels, shape (images, 1, rows, heads * size), or one after the other as images,
    shape (images * heads, 1, rows, size); operands may differ in this.

    With `page` above 0 keys and values are paged: pages of `page` rows, shape (pages, 1, page, kv_heads * size), in
    buffers of kind "pages". `table`, a buffer of kind "table", has the pages' 32-bit byte offsets in order. There is
    one image. A base register holds its number of keys, at most ``lengths[0]``, and `offset` is relative to that
    number: query i sees the keys up to ``i + offset + keys``.
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
        """Capacity in keys."""
        return self.lengths[0] if self.page else self.k.shape[2]

    @property
    def v_size(self) -> int:
        """Elements of a value."""
        if self.page:
            return self.v.shape[3] // self.kv_heads
        return int(np.prod(self.v.shape)) // (self.images * self.kv_heads * self.v.shape[2])

    @property
    def macs(self) -> int:
        """Multiply-accumulates of scores and values that the mask leaves."""
        rows = np.arange(self.q.shape[2])
        pairs = 0
        for length in self.lengths:
            # Number of keys that each query sees.
            last = np.minimum(rows + self.offset + 1, length) if self.causal else np.full(rows.size, length)
            pairs += int(np.maximum(last, 0).sum())
        return self.heads * pairs * (self.head_size + self.v_size)


@dataclass(frozen=True, eq=False)
class Softmax(DeviceOp):
    """Softmax over the channels of each pixel: q = sat(round(softmax((x - x_zero) * score_scale) * scale) + y_zero),
    clamped to [low, high]."""

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
    """Operators in order, with an index of each buffer's readers and writers by name."""

    @cached_property
    def reads(self) -> dict[str, list[tuple[int, View]]]:
        """Reads of each buffer, in order: index of the operator, and the view that it reads."""
        reads: dict[str, list[tuple[int, View]]] = {}
        for at, op in enumerate(self):
            for view in op.sources:
                reads.setdefault(view.buffer.name, []).append((at, view))
        return reads

    @cached_property
    def writers(self) -> dict[str, list[int]]:
        """Indices of the operators that write each buffer, in order."""
        writers: dict[str, list[int]] = {}
        for at, op in enumerate(self):
            writers.setdefault(op.dst.buffer.name, []).append(at)
        return writers

    def __reduce__(self) -> tuple[type[Ops], tuple[tuple[DeviceOp, ...]]]:
        return Ops, (tuple(self),)


Region = tuple[int, int]
"""Start and end address of a part of the scratchpad."""


class Strips(NamedTuple):
    """A chain of operators that run strip by strip.

    `first` and `stop` are the indices of the first strip's first operator and after the last strip's last. `macs` are
    the chain's useful multiply-accumulates, without what strips compute twice.
    """

    first: int
    stop: int
    macs: int


@dataclass(frozen=True, eq=False)
class DeviceSegment:
    """Operators that run on the device as one program, in a valid order.

    The host writes every "input" buffer before, and reads every "output" buffer after the program. Passes record
    their results here.

    Attributes
    ----------
    rows : mapping of str to Rows
        Inputs whose rows the host interleaves.
    resident : mapping of str to int
        Scratchpad address of each buffer that stays on chip and is never in DRAM.
    regions : tuple of Region
        Free part of the scratchpad for each operator; empty if operators may use all of it.
    overlapped : tuple of int
        Indices of operators that run at the same time as the next operator.
    strips : tuple of Strips
        Chains that run strip by strip.
    states : mapping of str to str
        For each "state" buffer the "output" buffer, of equal size, that replaces its contents at the end of a run.
        The pass `store_states` turns these into operators.
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
            # The dataclass is frozen; `Ops` adds the index of readers and writers.
            object.__setattr__(self, "ops", Ops(self.ops))

    @property
    def index(self) -> Ops:
        """Operators with their index of readers and writers."""
        assert isinstance(self.ops, Ops)
        return self.ops


def readers(ops: Iterable[DeviceOp]) -> Counter[str]:
    """Return how often each buffer is read, by name."""
    return Counter(view.buffer.name for op in ops for view in op.sources)
