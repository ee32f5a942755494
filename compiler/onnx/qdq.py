"""What is known of a value of the model: constants, int8 tensors, and float values that are quantised on either side.

QDQ models compute in float between a DequantizeLinear and a QuantizeLinear. One walk over the model
gives every value one of these symbols; a QuantizeLinear that meets a `Pending` completes a device operator.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.ir.graph import Buffer, CompileError, Conv, DeviceOp, Rescale, View
from weft.compiler.ir.layout import BITS, PACKED, Layout, natural, row_major_layout
from weft.compiler.ir.network import Node
from weft.compiler.ir.products import RowIndices
from weft.compiler.ir.scales import Bounds, Pair, product_ends
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.wide import NarrowError, doubled, widened

RESULT = ""
"""Name of the buffer that an unfinished operator writes."""


@dataclass(frozen=True)
class Quant:
    """Per-tensor parameters of values of 8 or 16 `bits`. `zero` is the zero point as stored on the device (uint8 minus
    128, uint16 minus 32768)."""

    scale: float
    zero: int
    unsigned: bool
    bits: int = 8

    def same(self, other: Quant) -> bool:
        """Whether requantisation from one to the other leaves all steps where they are."""
        kind = (self.zero, self.unsigned, self.bits) == (other.zero, other.unsigned, other.bits)
        return kind and abs(self.scale / other.scale - 1) < 0.256 / (1 << self.bits)

    def level(self, value: float) -> int:
        """`value` quantised as QuantizeLinear does."""
        most = (1 << self.bits - 1) - 1
        if math.isinf(value):
            return most if value > 0 else -most - 1
        quotient = np.rint(np.float32(value) / np.float32(self.scale))
        return int(min(max(float(quotient) + self.zero, -most - 1.0), float(most)))


@dataclass(frozen=True)
class Tensor:
    """A value of 8 bits, or with `wide` of 16, whose buffer has a plane for each byte.

    `storage` names the device buffer, `value` the model's value that is in it, laid out as `source`; `layout` is that
    of this tensor, which may be a reshaped or transposed `value`. `via` are the nodes that only renamed it.
    `hosted` tensors come from the host, which can lay them out in any way: `order` is the layout of this tensor whose
    buffer is `value` in row-major order, None if there is none. `looked_up` tells that a table of its own made it.
    `made` is the recipe that brought another tensor's bytes into this order, None for others. With `index` the value
    is int64, of which so many bits are stored; only the host reads it. With `rows` it has indices of rows.
    """

    storage: str
    value: str
    source: Layout
    layout: Layout
    unsigned: bool
    hosted: bool
    via: tuple[int, ...] = ()
    order: Layout | None = None
    looked_up: bool = False
    made: Recipe | None = field(default=None, compare=False)
    wide: bool = False
    index: bool = False
    rows: RowIndices | None = None

    @property
    def dtype(self) -> str:
        """The type of its elements, or of what is stored of an `index`."""
        return f"{'u' if self.unsigned else ''}int{16 if self.wide else 8}"

    def arranged(self, layout: Layout) -> Tensor | None:
        """This tensor in a given layout: as it is, or by another transfer if it comes from the host, else None."""
        if self.layout == layout:
            return self
        if self.layout.same(layout):
            return dataclasses.replace(self, layout=layout)
        source = None if self.order is None else layout.in_order_of(self.order)
        if not self.hosted or source is None:
            return None
        storage = f"{self.value}:{'x'.join(map(str, source.shape))}:{''.join(map(str, source.perm))}"
        return dataclasses.replace(self, storage=storage, source=source, layout=layout)

    def transposed(self, shape: tuple[int, ...], perm: tuple[int, ...], layout: Layout) -> Tensor:
        """The transpose of this value of `shape`, whose bytes lie as `layout` says."""
        order = None if self.order is None else self.order.transpose(shape, perm)
        return dataclasses.replace(self, layout=layout, order=order)

    def view(self, shape: tuple[int, int, int, int] | None = None) -> View:
        """The whole buffer, or its first plane, in the layout's shape or another one of the same size."""
        shape = shape or self.layout.nhwc
        view = View(Buffer(self.storage, shape), shape)
        return doubled(view) if self.wide else view


@dataclass(frozen=True)
class Activation:
    """A float value that is ``(tensor - zero) * scale``."""

    tensor: Tensor
    quant: Quant


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant float value ``values * scale``: integers with the zero point subtracted, and a scale that broadcasts.

    Constants that were never quantised have `exact` set and hold their floats in `values`, with scale 1. What was
    quantised to 8 bits per tensor is also an `activation`, which the host can write into a buffer.
    """

    values: np.ndarray
    scale: np.ndarray
    exact: bool = False
    activation: Activation | None = None

    @property
    def floats(self) -> np.ndarray:
        return self.values * self.scale


@dataclass(frozen=True, eq=False)
class Pending:
    """A float result that is not quantised yet.

    `ops` write views of the buffer `RESULT` with scales that still lack the division by the output's; a clamp of
    [low, high] in float follows. `nodes` are the model's nodes it stands for, `notes` what the report should say.
    `join` makes operators behind `ops`, which then write buffers of their own; see `Join`.
    """

    ops: tuple[DeviceOp, ...]
    layout: Layout
    inputs: tuple[Tensor, ...]
    nodes: tuple[int, ...]
    low: float = -math.inf
    high: float = math.inf
    notes: tuple[str, ...] = ()
    join: Join | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of attention: ``q k * factor``, without the keys that `allowed` excludes (None: all are allowed).

    `q` has shape (..., queries, size), `k` shape (..., size, keys), `allowed` one that broadcasts to (..., queries,
    keys). `nodes` made them, the first is the product; `values` are all values in between. `pairs` are the Q/DQ pairs
    that scores passed, `weight_pairs` those of probabilities, `quantised` that whose integers this value is, and
    `softmax` names the node that makes probabilities of them.
    """

    q: Activation
    k: Activation
    q_shape: tuple[int, ...]
    k_shape: tuple[int, ...]
    factor: float
    allowed: np.ndarray | None
    nodes: tuple[int, ...]
    values: tuple[str, ...]
    pairs: tuple[Pair, ...] = ()
    weight_pairs: tuple[Pair, ...] = ()
    quantised: Pair | None = None
    key_mask: Activation | None = None
    softmax: str = ""

    @property
    def unit(self) -> float:
        """The score of which the product of integers is 1, before `factor`."""
        return self.q.quant.scale * self.k.quant.scale

    @property
    def bounds(self) -> Bounds:
        """Between what the product of any int8 queries and keys lies."""
        low, high = product_ends(self.q.quant.zero, self.k.quant.zero)
        size = self.q_shape[-1] * self.unit
        return Bounds(low * size, high * size)


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Softmax of scores over the keys."""

    scores: Scores


@dataclass(frozen=True, eq=False)
class Undefined:
    """IsNaN of probabilities, which is nowhere true, as no query is without a key."""

    scores: Scores


@dataclass(frozen=True, eq=False)
class RowElements:
    """What a value of `shape` is less its mean over `axes`, or with `squared` the square of it. `nodes` made it."""

    source: Activation
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    nodes: tuple[int, ...]
    squared: bool = False


@dataclass(frozen=True, eq=False)
class RowNumber:
    """One number for the elements along `axes` of a value of `shape`: ``gain * root(max(factor * total + offset,
    least))``, where `total` and `root` are as `RowTotal` has them, of the integers of `source`."""

    source: Activation
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    nodes: tuple[int, ...]
    total: str
    factor: float
    offset: float = 0.0
    root: str = ""
    least: float = 0.0
    gain: float = 1.0


Symbol = (
    Tensor
    | Activation
    | Constant
    | Pending
    | Scores
    | Probabilities
    | Undefined
    | RowElements
    | RowNumber
    | None
)
"""What is known of a value; None for one that the host computes."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """Device operators that make one int8 value; their buffers are named by storage."""

    output: Tensor
    ops: tuple[DeviceOp, ...]
    inputs: tuple[Tensor, ...]
    nodes: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Results:
    """What the outputs of a node are, in order, and the recipes for their bytes."""

    symbols: tuple[Symbol, ...]
    recipes: tuple[Recipe, ...]


Join = Callable[[Quant, str, tuple[int, int]], tuple[DeviceOp, ...]]
"""The operators that make a result: for its parameters, the name of its buffer, and the range that it is clamped to."""


def unfolded(symbol: Symbol) -> Symbol:
    """The same, but a constant of 8 bits with one scale as an activation, which the host writes into a buffer."""
    return symbol.activation or symbol if isinstance(symbol, Constant) else symbol


def result(shape: tuple[int, int, int, int]) -> View:
    """Where an unfinished operator writes."""
    return result_of(RESULT, shape)


def result_of(name: str, shape: tuple[int, int, int, int]) -> View:
    """The whole of a new buffer."""
    return View(Buffer(name, shape), shape)


def rescale(source: Activation, name: str) -> Pending:
    """Requantisation of an activation, in whatever order its elements are."""
    tensor, quant = source.tensor, source.quant
    op = Rescale(name, tensor.view(), result(tensor.layout.nhwc), quant.scale, quant.zero)
    return Pending((op,), tensor.layout, (tensor,), ())


def finish(pending: Pending, name: str, quant: Quant, node: Node) -> Recipe:
    """Complete a pending result with the parameters of the QuantizeLinear `node` that makes value `name`.

    Raises `NarrowError` for values of 16 bits of operators that have none.
    """
    bounds, wide = (quant.level(pending.low), quant.level(pending.high)), quant.bits > 8
    narrow = not has_wide(pending, quant)
    if pending.join is not None and not narrow:
        raise NarrowError(f"{pending.ops[0].name!r} is of results in between")
    if pending.join is not None:
        ops = pending.join(quant, name, bounds)
    else:
        ops = tuple(quantised(op, quant, name, bounds) for op in pending.ops)
    if not narrow:
        ops = tuple(made for op in ops for made in widened(op, wide=wide))
    output = Tensor(name, name, pending.layout, pending.layout, quant.unsigned, False, wide=wide)
    nodes = (*pending.nodes, *(index for tensor in pending.inputs for index in tensor.via), node.index)
    return Recipe(output, ops, pending.inputs, tuple(dict.fromkeys(nodes)), pending.notes)


def has_wide(pending: Pending, quant: Quant) -> bool:
    """Whether a result with these parameters has 16 bits, or what it is made of."""
    return quant.bits > 8 or any(tensor.wide for tensor in pending.inputs)


def quantised(op: DeviceOp, quant: Quant, name: str, bounds: tuple[int, int]) -> DeviceOp:
    """An operator of a pending result that writes buffer `name` with the parameters of its output."""
    old = op.dst
    dst = View(
        Buffer(name, old.buffer.shape, old.buffer.kind), old.shape, old.y, old.x, old.c, old.step, old.image
    )
    found = (key for key in ("scale", "a_scale", "b_scale") if hasattr(op, key))
    scales = {key: getattr(op, key) / quant.scale for key in found}
    return op.replace(dst=dst, y_zero=quant.zero, low=bounds[0], high=bounds[1], **scales)


def check_parameters(model: Model, node: Node) -> None:
    """Raise `CompileError` for scales of a Q or DQ node that make no sense."""
    scale = model.constants.get(node.input(1))
    if scale is None:
        return
    values = np.asarray(scale, np.float64)
    bad = values[~np.isfinite(values) | ((values == 0) & (node.op == "QuantizeLinear"))]
    if bad.size:
        raise CompileError(
            f"{node.label} has scale {bad.flat[0]:g}; scales must be finite, and not zero to quantise"
        )


@functools.lru_cache(maxsize=1)  # all conditions of a node ask for them
def parameters(model: Model, node: Node, dtype: str) -> Quant | None:
    """Per-tensor parameters of a Q or DQ node whose integer side has `dtype`; None unless it has 8 or 16 bits."""
    scale = model.constants.get(node.input(1))
    if dtype not in BITS or scale is None or scale.size != 1:
        return None
    zero = 0
    if node.input(2):
        if node.input(2) not in model.constants:
            return None
        zero = int(model.constants[node.input(2)].reshape(-1)[0])
    if not scale.reshape(-1)[0] > 0:
        return None
    unsigned, bits = dtype.startswith("u"), BITS[dtype]
    stored = zero - (1 << bits - 1) * unsigned
    return Quant(float(np.float32(scale.reshape(-1)[0])), stored, unsigned, bits)


def constant(model: Model, node: Node) -> Constant | None:
    """The constant a DequantizeLinear makes, per tensor or per axis; None if it is something else. Nodes that read the
    same values make the same one."""
    if len(model.users(node.inputs[0])) < 2:
        return _constant(model, node)
    key = node.inputs, tuple(sorted((name, repr(value)) for name, value in node.attributes.items()))
    if key not in model.dequantised:
        model.dequantised[key] = _constant(model, node)
    return model.dequantised[key]


def _constant(model: Model, node: Node) -> Constant | None:
    values, scale = model.constants.get(node.inputs[0]), model.constants.get(node.input(1))
    zero = model.constants.get(node.input(2)) if node.input(2) else np.zeros((), np.int64)
    if values is None or scale is None or zero is None or node.attributes.get("block_size", 0):
        return None
    if str(values.dtype) not in (*BITS, *PACKED, "int32"):
        return None
    shape = [1] * values.ndim
    if scale.size > 1:
        axis = node.attributes.get("axis", 1)
        shape[axis] = scale.size
    # Weights may be a hundred million: they stay small.
    dtype = np.dtype(np.int16 if values.dtype.itemsize == 1 else np.int64)
    wide: np.ndarray = values.astype(dtype)
    wide = wide - zero.astype(dtype).reshape(shape if zero.size > 1 else [1] * values.ndim)
    name = node.inputs[0]
    quant = parameters(model, node, model.dtypes[name])
    activation = None if quant is None else Activation(hosted(model, name), quant)
    steps = scale.astype(np.float32).astype(np.float64).reshape(shape)
    if values.dtype.itemsize == 2:  # no weights of the device
        floats = wide * steps
        return Constant(floats, np.ones((1,) * values.ndim), exact=True, activation=activation)
    # Scales of weights may be negative or zero: the device's are above zero, its integers take what is left.
    return Constant(
        wide * np.sign(steps).astype(dtype),
        np.where(steps == 0, 1.0, np.abs(steps)),
        activation=activation,
    )


def hosted(model: Model, name: str) -> Tensor:
    """The symbol of a value of 8 or 16 bits that comes from the host."""
    layout = natural(model.shapes[name])
    shape, dtype = model.shapes[name], model.dtypes[name]
    unsigned, wide = dtype.startswith("u"), BITS[dtype] > 8
    return Tensor(name, name, layout, layout, unsigned, True, order=row_major_layout(shape), wide=wide)


def integers(tensor: Tensor) -> Quant:
    """Parameters by which a tensor stands for its integers."""
    return Quant(1.0, 0, tensor.unsigned, 16 if tensor.wide else 8)


def is_conv(pending: Pending) -> bool:
    """Whether a pending result is of convolutions or a matrix product without a clamp, to which a bias may be added."""
    convs = pending.join is None and all(isinstance(op, Conv) for op in pending.ops)
    return convs and (pending.low, pending.high) == (-math.inf, math.inf)
